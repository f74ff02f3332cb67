"""A start that takes long is one line in the log."""

import re

import pytest

from app_toolkit.observability import slow_start
from app_toolkit.observability.slow_start import reported_if_slow
from tests.patience import wait_until


def test_a_slow_start_is_one_warning_with_its_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_start, "SLOW_START_S", 0.01)
    with reported_if_slow("importing 'shop'"):
        wait_until(lambda: caplog.messages)
    (message,) = caplog.messages
    assert re.fullmatch(r"importing 'shop' has taken 0\.01 s so far: it is at tests/\S+\.py:\d+ in \S+", message)


def test_a_start_that_is_over_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with reported_if_slow("importing 'shop'"):
        pass
    assert caplog.messages == []
