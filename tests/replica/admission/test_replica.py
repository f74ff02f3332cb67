"""A replica admits requests: the scope of the app, peers without the secret, slots and failures."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from app_toolkit.observability.context import request_id
from app_toolkit.observability.logs import attach_fields
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.http.websocket import CUT_OFF
from app_toolkit.types import ASGIApp, Message, Receive, Scope, Send
from app_toolkit.wire import hop
from tests.patience import until
from tests.replica.client import Serve, field
from tests.replica.talking import HANDSHAKE, Talking, handshake, head

pytestmark = pytest.mark.anyio

HOST = (b"host", b"shop.example")


async def response_of(
    app: ASGIApp,
    path: str = "/",
    *fields: tuple[bytes, bytes],
    method: str = "GET",
    root_path: str = "",
    **of_hop: Any,
) -> httpx.Response:
    talking = Talking(app, root_path=root_path)
    talking.say(head(method, path.encode(), [*fields, HOST], **of_hop))
    return await talking.response()


async def denial_of(app: ASGIApp, path: bytes = b"/ws", root_path: str = "", **of_hop: Any) -> httpx.Response:
    """The response to a handshake that opens no WebSocket."""
    talking = Talking(app, root_path=root_path)
    talking.say(handshake(path, **of_hop))
    return await talking.response()


# The scope

echo = FastAPI()


def seen(request: Request | WebSocket) -> dict[str, Any]:
    scope = request.scope
    return {
        **{name: scope[name] for name in ("client", "server", "scheme", "http_version", "root_path", "path")},
        "headers": [name.decode() for name, _ in scope["headers"]],
        "extension": scope.get("extensions", {}).get("app_toolkit"),
        "request_id": request_id(),
        "url": str(request.url),
        "url_for": str(request.url_for("echo")),
    }


@echo.api_route("/echo", methods=["GET", "POST"], name="echo")
async def answer(request: Request) -> dict[str, Any]:
    return seen(request)


@echo.websocket("/ws")
async def deny(ws: WebSocket) -> None:
    await ws.send_denial_response(JSONResponse(seen(ws)))


async def test_the_app_sees_the_client_and_the_server_of_the_proxy() -> None:
    found = (await response_of(echo, "/echo")).json()
    assert found["client"] == ["203.0.113.9", 40_000]
    assert found["server"] == ["shop.example", 443]
    assert (found["scheme"], found["http_version"]) == ("https", "1.1")
    assert found["url"] == "https://shop.example/echo"
    assert found["extension"] == {"request_id": "req-1"}
    assert found["request_id"] == "req-1"


async def test_an_unknown_client_and_an_old_version_pass_as_they_are() -> None:
    response = await response_of(echo, "/echo", version=b"1.0", client=None, server=None, scheme="http")
    found = response.json()
    assert (found["client"], found["server"]) == (None, None)
    assert (found["scheme"], found["http_version"]) == ("http", "1.0")
    assert "connection" not in response.headers, "the version of the client is not that of the hop"


async def test_the_path_contains_the_root_path() -> None:
    found = (await response_of(echo, "/shop/echo", root_path="/shop")).json()
    assert (found["root_path"], found["path"]) == ("/shop", "/shop/echo")
    assert found["url_for"] == "https://shop.example/shop/echo"


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        (["X-App-Toolkit-Anything", "b", "a", "b"], ["b", "a", "b", "host"]),
        (["x-app-toolkit-expect", "expect"], ["host"]),
        (["expect"], ["expect", "host"]),
    ],
    ids=["internal fields", "an expectation that the caller added", "an expectation of the client"],
)
async def test_the_fields_of_the_caller_do_not_reach_the_app_and_others_keep_their_order(
    sent: list[str], left: list[str]
) -> None:
    fields = [(name.encode(), b"100-continue") for name in sent]
    assert (await response_of(echo, "/echo", *fields, method="POST")).json()["headers"] == left


async def test_an_expectation_of_the_caller_is_met() -> None:
    app = FastAPI()

    @app.post("/")
    async def length(request: Request) -> int:
        return len(await request.body())

    talking = Talking(app)
    expect = [(hop.EXPECT, b"1"), (b"expect", b"100-continue"), (b"content-length", b"3")]
    talking.say(head("POST", fields=[*expect, HOST]))
    await until(lambda: talking.wire.said == b"HTTP/1.1 100 Continue\r\n\r\n")
    talking.say(b"abc")
    await until(lambda: talking.wire.said.endswith(b"\r\n\r\n3"))


async def test_a_websocket_sees_the_client_and_the_server_of_the_proxy() -> None:
    found = (await denial_of(echo, b"/shop/ws", root_path="/shop")).json()
    assert found["client"] == ["203.0.113.9", 40_000]
    assert (found["scheme"], found["root_path"], found["request_id"]) == ("wss", "/shop", "req-1")
    assert "x-app-toolkit-hop" not in found["headers"]


# Who is trusted


def test_a_sentwithout_a_hop_over_a_unix_socket_is_served_without_internal_fields(serve: Serve) -> None:
    served = serve(
        """
        app = FastAPI()

        @app.get("/")
        async def headers(request: Request):
            return list(request.headers)
        """
    )
    response = served.connect().ask("/", ("b", "1"), ("x-app-toolkit-hop", "not first, so no hop"), hop=None)
    assert (response.status, response.read()) == (200, b'["b","host"]')
    assert not [name for name, _ in response.getheaders() if name.startswith("x-app-toolkit")]


HOP, VALUE = field()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (field(b"fedcba9876543210")[1], "secret"),
        (field(b"")[1], "secret"),
        (b"2" + VALUE[1:], "protocol"),
        (b"", "protocol"),
        (VALUE + b" one-more", "protocol"),
    ],
)
async def test_a_wrong_hop_is_refused_with_its_reason(value: bytes, reason: str) -> None:
    for request in (head(target=b"/echo"), handshake(b"/ws")):
        talking = Talking(echo)
        talking.say(request.replace(VALUE, value))
        refused = await talking.response()
        assert (refused.status_code, refused.headers[hop.REFUSED.decode()]) == (503, reason)


async def test_without_a_secret_every_hop_is_refused() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def unreached(*_: object) -> Message:
        raise AssertionError("nothing is read, and no user code runs")

    replica = Replica(unreached, name="r", max_ongoing_requests=1, trusted_without_hop=True)
    name, value = field(b"")
    await replica({"type": "http", "headers": [(name.encode(), value)]}, unreached, send)
    assert (b"x-app-toolkit-refused", b"secret") in sent[0]["headers"]


# Admission


async def test_user_code_cannot_deny_a_websocket_with_the_field_of_a_refusal() -> None:
    app = FastAPI()

    @app.websocket("/ws")
    async def deny(ws: WebSocket) -> None:
        fields = {"x-app-toolkit-refused": "websockets", "X-App_Toolkit-Refused": "busy", "x-own": "1"}
        await ws.send_denial_response(PlainTextResponse("ran", 503, fields))

    denied = await denial_of(app)
    assert (denied.status_code, denied.text, denied.headers["x-own"]) == (503, "ran", "1")
    assert "refused" not in str(denied.headers).lower()


async def test_a_full_replica_refuses_before_user_code_and_admits_again_after() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await release.wait()
        await Response()(scope, receive, send)

    talking = Talking(app, max_ongoing_requests=1)
    held, refused = talking.beside(), talking.beside()
    held.say(head(fields=[HOST]))
    await entered.wait()
    refused.say(head("POST", fields=[(b"content-length", b"6"), HOST]), b"unread")
    response = await refused.response()
    assert (response.status_code, response.headers.multi_items()[0], response.content) == (
        503,
        ("x-app-toolkit-refused", "busy"),
        b"",
    )
    assert repr(talking.replica) == "<Replica r [1 ongoing, 0 streams, 0 websockets]>"
    release.set()
    assert (await held.response()).status_code == 200
    refused.say(head(fields=[HOST]))  # the refusal kept the connection
    await until(lambda: b"HTTP/1.1 200 OK" in refused.wire.said)


# Failures of the app

failing = FastAPI()


@failing.get("/before")
async def before() -> None:
    raise ValueError("out of stock")


@failing.websocket("/ws")
async def talk(ws: WebSocket) -> None:
    await ws.accept()
    raise ValueError("out of stock")


@failing.websocket("/denied")
async def denied(ws: WebSocket) -> None:
    await ws.close()
    raise ValueError("out of stock")


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("out of stock")


@pytest.mark.parametrize(
    ("app", "sent", "begin", "end"),
    [
        (failing, head(target=b"/before", fields=[HOST]), b"HTTP/1.1 500 ", b"\r\n\r\nInternal Server Error"),
        (bare, head(fields=[HOST]), b"HTTP/1.1 500 ", b"\r\n\r\nInternal Server Error"),
        (bare, HANDSHAKE, b"HTTP/1.1 500 ", b"\r\n\r\nInternal Server Error"),
        (failing, handshake(b"/ws"), b"HTTP/1.1 101 ", CUT_OFF),
        (failing, handshake(b"/denied"), b"HTTP/1.1 403 ", b""),
    ],
    ids=["of a handler", "of a bare app", "of a bare app in a handshake", "in a websocket", "after a denial"],
)
async def test_a_failure_is_answered_and_logged_once(
    app: ASGIApp, sent: bytes, begin: bytes, end: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    attach_fields()
    talking = Talking(app)
    talking.say(sent)
    await until(lambda: talking.wire.said.startswith(begin) and talking.wire.said.endswith(end))
    await talking.idle()
    (record,) = [each for each in caplog.records if each.exc_info]
    assert record.name == "app_toolkit.replica"
    assert "req-1" in record.getMessage()
    assert record.__dict__["request_id"] == "req-1"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "out of stock"
