"""Which `CORSMiddleware` of an app counts for the responses of the toolkit itself."""

import re
from typing import Any, cast

import pytest
from fastapi import FastAPI
from pydantic import AnyHttpUrl
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from app_toolkit import Toolkit
from app_toolkit.userapp.cors import cors_of


class Ours(CORSMiddleware):
    def __init__(self, app: Any) -> None:
        super().__init__(app, allow_origins=["https://ours.example"])


def added(*middlewares: Any) -> FastAPI:
    app = Toolkit()
    for each in middlewares:
        app.add_middleware(each.cls, *each.args, **each.kwargs)
    return app


one = Middleware(CORSMiddleware, allow_origins=["https://one.example"])


@pytest.mark.parametrize(
    ("app", "origins"),
    [
        (Toolkit(), []),
        (added(Middleware(GZipMiddleware)), []),
        (FastAPI(middleware=[one]), ["https://one.example"]),
        (added(one, Middleware(GZipMiddleware)), ["https://one.example"]),
        (added(Middleware(Ours)), ["https://ours.example"]),
        (added(one, Middleware(Ours)), ["https://ours.example", "https://one.example"]),
        (Ours(added(one)), ["https://ours.example", "https://one.example"]),
        (object(), []),
    ],
    ids=["none", "another", "argument", "below another", "subclass", "two", "around the app", "no Starlette"],
)
def test_the_middlewares_around_an_app_count_from_the_outermost_on(app: Any, origins: list[str]) -> None:
    assert [origin for each in cors_of(app) for origin in each.allow_origins] == origins


class NoNames(CORSMiddleware):
    def __init__(self, app: Any) -> None:
        super().__init__(app, allow_methods=cast(Any, [None]))


class Routed(CORSMiddleware):
    def __init__(self, app: Any) -> None:
        super().__init__(app, allow_origins=[app.router.prefix])


class Unread(CORSMiddleware):
    """A subclass that has none of the attributes of its base."""

    def __init__(self, app: Any) -> None:
        self.next = app


@pytest.mark.parametrize("other", [None, AnyHttpUrl("http://a.example")], ids=["an unset variable", "a URL"])
def test_an_origin_that_is_no_text_is_left_out(other: Any) -> None:
    app = added(Middleware(CORSMiddleware, allow_origins=[other, "http://localhost:3000"]))
    assert [each.allow_origins for each in cors_of(app)] == [("http://localhost:3000",)]


@pytest.mark.parametrize("flags", [0, re.IGNORECASE, re.IGNORECASE | re.VERBOSE | re.ASCII])
def test_a_compiled_expression_keeps_its_flags(flags: int) -> None:
    regex = re.compile(r"https://\w+\.example", flags)
    (settings,) = cors_of(added(Middleware(CORSMiddleware, allow_origin_regex=cast(Any, regex))))
    assert settings.allow_origin_regex is not None
    assert re.compile(settings.allow_origin_regex).flags == regex.flags
    (again,) = cors_of(added(Middleware(CORSMiddleware, allow_origin_regex=settings.allow_origin_regex)))
    assert re.compile(again.allow_origin_regex or "").flags == regex.flags


@pytest.mark.parametrize(
    ("app", "cls", "reason"),
    [
        (added(one, Middleware(Routed)), "Routed", "AttributeError: 'function' object has no attribute 'router'"),
        (added(one, Middleware(Unread)), "Unread", "AttributeError: "),
        (added(one, Middleware(NoNames)), "NoNames", "TypeError: "),
    ],
    ids=["needs the app", "has no settings", "wrong option"],
)
def test_a_middleware_that_cannot_be_read_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture, app: Any, cls: str, reason: str
) -> None:
    assert [each.allow_origins for each in cors_of(app)] == [("https://one.example",)]
    (said,) = caplog.messages
    assert said.startswith(
        f"app_toolkit cannot read the settings of {cls}, so its own responses have no CORS fields: {reason}"
    )


def test_an_app_inside_of_a_middleware_that_cannot_be_read_is_not_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    assert cors_of(Unread(FastAPI())) == ()
    assert len(caplog.messages) == 1
