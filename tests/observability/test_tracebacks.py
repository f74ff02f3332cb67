"""Tracebacks in which frames that are not of user code are one line."""

import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.observability import tracebacks
from app_toolkit.observability.tracebacks import folded

PACKAGES = sysconfig.get_paths()["purelib"]
Function = Callable[..., Any]


def caller(file: str) -> Function:
    """A function in this file, which calls the first of the functions that it gets with the others."""
    names: dict[str, Any] = {}
    exec(compile("def call(first, *others):\n    return first(*others)\n", file, "exec"), names)
    function: Function = names["call"]
    return function


shop = caller("/srv/shop/web.py")
web, wire = caller(f"{PACKAGES}/web/routing.py"), caller(f"{PACKAGES}/wire.py")
SHOP = '  File "/srv/shop/web.py", line 2, in call'


def traceback_of(first: Function, *others: Any) -> list[str]:
    try:
        first(*others)
    except Exception as error:
        trace = error.__traceback__
        return folded((type(error), error, trace and trace.tb_next)).splitlines()  # without this function
    raise AssertionError("nothing was raised")


def test_frames_of_packages_between_those_of_the_user_are_one_line() -> None:
    assert traceback_of(web, wire, web, shop, wire, web, shop, int, "x") == [
        "Traceback (most recent call last):",
        "  ... 3 frames of web, wire",
        SHOP,
        "  ... 2 frames of wire, web",
        SHOP,
        "ValueError: invalid literal for int() with base 10: 'x'",
    ]


def test_frame_that_raises_the_error_is_shown_also_if_it_is_in_a_package() -> None:
    assert traceback_of(shop, wire, web, wire, int, "x")[1:-1] == [
        SHOP,
        "  ... 2 frames of wire, web",
        f'  File "{PACKAGES}/wire.py", line 2, in call',
    ]


def test_traceback_without_user_code_has_all_frames() -> None:
    lines = traceback_of(web, wire, web, wire, int, "x")
    assert len([line for line in lines if line.startswith("  File")]) == 4


def test_traceback_that_cannot_be_folded_has_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "LIBRARIES", [None])
    lines = traceback_of(web, wire, shop, int, "x")
    assert len([line for line in lines if line.startswith("  File")]) == 3
    assert lines[-1] == "ValueError: invalid literal for int() with base 10: 'x'"


def test_causes_and_members_of_groups_are_folded_too() -> None:
    def fail_twice() -> None:
        errors = []
        for text in ("first", "second"):
            try:
                web(wire, shop, int, text)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("both", errors[:1]) from errors[1]

    lines = traceback_of(fail_twice)
    for marks, message in (("", "second"), ("    | ", "first")):
        end = lines.index(f"{marks}ValueError: invalid literal for int() with base 10: '{message}'")
        assert lines[end - 2 : end] == [f"{marks}  ... 2 frames of web, wire", f"{marks}{SHOP}"]
    assert "  | ExceptionGroup: both (1 sub-exception)" in lines


def test_error_of_syntax_shows_its_line() -> None:
    def parse() -> None:
        compile("def f(:\n", "rules.py", "exec")

    assert traceback_of(web, web, parse)[-4:] == [
        '  File "rules.py", line 1',
        "    def f(:",
        "          ^",
        "SyntaxError: invalid syntax",
    ]


@given(st.lists(st.sampled_from([shop, web, wire]), max_size=8))
def test_every_frame_of_the_user_is_shown_as_python_shows_it(functions: list[Function]) -> None:
    try:
        shop(*functions, int, "x")
    except ValueError as error:
        frames = traceback.format_tb(error.__traceback__)
        text = folded((ValueError, error, error.__traceback__))
    for frame in frames:
        assert PACKAGES in frame or "Previous line" in frame or frame in text
