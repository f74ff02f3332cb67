"""Which `CORSMiddleware` of an app counts for the responses of the toolkit itself."""

from typing import Any

import pytest
from fastapi import FastAPI
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
