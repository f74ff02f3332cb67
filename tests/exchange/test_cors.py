"""The CORS fields of the toolkit's own responses are held against those of Starlette's middleware."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app_toolkit.exchange.cors import preflight_response, response_fields
from app_toolkit.types import Header, Message
from app_toolkit.userapp.cors import cors_of

ORIGINS = "https://a.example", "https://b.example", "null"
NAMES = "X-One", "x-two", "Content-Type", "Retry-After"

options = st.fixed_dictionaries(
    {
        "allow_origins": st.sets(st.sampled_from((*ORIGINS, "*"))).map(sorted),
        "allow_origin_regex": st.sampled_from((None, r"https://.\.example", "https://b")),
        "allow_methods": st.sampled_from((("GET",), ("*",), ("POST", "DELETE"))),
        "allow_headers": st.sets(st.sampled_from((*NAMES, "*"))).map(sorted),
        "allow_credentials": st.booleans(),
        "allow_private_network": st.booleans(),
        "expose_headers": st.sets(st.sampled_from((*NAMES, "*"))).map(sorted),
        "max_age": st.integers(0, 9),
    }
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "origin": st.sampled_from(ORIGINS),
        "cookie": st.just("a=1"),
        "access-control-request-method": st.sampled_from(("GET", "POST", "PUT")),
        "access-control-request-headers": st.sampled_from(("x-one", "X-One, x-two", "x-three", "")),
        "access-control-request-private-network": st.just("true"),
    },
)


def app_with(middlewares: list[dict[str, Any]]) -> Starlette:
    async def respond(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    around = [Middleware(CORSMiddleware, **each) for each in middlewares]
    return Starlette(routes=[Route("/", respond, methods=["GET", "OPTIONS"])], middleware=around)


def starlettes_response(app: Starlette, method: str, fields: list[Header]) -> tuple[int, dict[str, str], bytes]:
    scope = {"type": "http", "method": method, "path": "/", "headers": fields, "query_string": b""}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], without(headers, "content-length", "content-type"), sent[1]["body"]


def without(headers: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


def decoded(fields: list[Header]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields}


@given(st.lists(options, max_size=2), st.sampled_from(("GET", "OPTIONS")), requests)
def test_own_responses_have_the_fields_that_the_middlewares_of_the_app_add(
    middlewares: list[dict[str, Any]], method: str, request: dict[str, str]
) -> None:
    app, fields = app_with(middlewares), [(name.encode(), value.encode()) for name, value in request.items()]
    status, expected, text = starlettes_response(app, method, fields)
    preflight = preflight_response(cors_of(app), method, fields)
    if preflight is not None:
        assert preflight[0::2] == (status, text)
        assert decoded(preflight[1]) == expected
        return
    own = decoded(response_fields(cors_of(app), fields))
    exposed = "access-control-expose-headers"
    assert without(own, exposed) == without(expected, exposed)
    if middlewares and "origin" in request:
        of_app = [*filter(None, expected.get(exposed, "").split(", "))]
        of_toolkit = [name for name in ("Retry-After", "X-Request-ID") if name not in of_app]
        assert own[exposed].split(", ") == [*of_app, *of_toolkit]
    else:
        assert exposed not in own


def test_an_app_without_the_middleware_gets_no_fields() -> None:
    assert response_fields((), [(b"origin", b"https://a.example")]) == []
    assert preflight_response((), "OPTIONS", [(b"origin", b"null"), (b"access-control-request-method", b"GET")]) is None


@pytest.mark.parametrize("expose", [[], ["X-One"], ["retry-after"]])
def test_a_page_can_read_the_fields_of_the_toolkit_and_those_of_the_app(expose: list[str]) -> None:
    app = app_with([{"allow_origins": ["*"], "expose_headers": expose}])
    fields = decoded(response_fields(cors_of(app), [(b"origin", b"https://a.example")]))
    others = {"Retry-After", "X-Request-ID"} if expose != ["retry-after"] else {"X-Request-ID"}
    assert set(fields["access-control-expose-headers"].split(", ")) == {*expose, *others}
