"""What `breakpoint()` does in a replica."""

import sys

import pytest

from app_toolkit.replica import breakpoints


def stop_here(seen: list[int]) -> None:
    secret = 41
    breakpoint()
    seen.append(secret)


def test_a_breakpoint_is_one_warning_with_file_and_line_and_the_code_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "breakpointhook", None)  # restored at the end
    breakpoints.install()
    seen: list[int] = []
    for _ in range(3):
        stop_here(seen)
    assert seen == [41, 41, 41]
    line = stop_here.__code__.co_firstlineno + 2
    (said,) = caplog.messages
    assert said.startswith(f"breakpoint() at {__file__}:{line} does nothing in a replica")
