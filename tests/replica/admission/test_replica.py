"""A replica admits requests: the scope of the app, peers without the secret, slots and failures."""

import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app_toolkit.replica.admission.replica import Replica
from app_toolkit.types import Message, Receive, Scope, Send
from tests.replica.client import Serve, Served, dial, field, wait_until

ECHO = """
    from app_toolkit.observability.context import request_id

    app = FastAPI()

    def seen(scope):
        return {
            "client": scope["client"],
            "server": scope["server"],
            "scheme": scope["scheme"],
            "http_version": scope["http_version"],
            "root_path": scope["root_path"],
            "path": scope["path"],
            "headers": [name.decode() for name, _ in scope["headers"]],
            "extension": scope.get("extensions", {}).get("app_toolkit"),
            "request_id": request_id(),
        }

    @app.api_route("/echo", methods=["GET", "POST"], name="echo")
    async def echo(request: Request):
        return {**seen(request.scope), "url": str(request.url), "url_for": str(request.url_for("echo"))}

    @app.websocket("/ws")
    async def talk(ws: WebSocket):
        await ws.accept()
        await ws.send_json({**seen(ws.scope), "url": str(ws.url)})
        await ws.close()
"""

SLOW = """
    app = FastAPI()

    @app.get("/")
    async def root():
        return "root"

    @app.post("/slow")
    async def slow(request: Request):
        mark("entered")
        await hold_until("go")
        return len(await request.body())

"""

FAILING = """
    app = FastAPI()

    @app.get("/before")
    async def before():
        raise ValueError("nothing was sent")

    @app.get("/fine")
    async def fine():
        return "fine"

    @app.websocket("/ws")
    async def talk(ws: WebSocket):
        await ws.accept()
        raise ValueError("in a socket")

    @app.websocket("/denied")
    async def denied(ws: WebSocket):
        await ws.close()
        raise ValueError("after the denial")

    async def bare(scope, receive, send):
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        raise ValueError("nobody answers for a bare app")
"""


@pytest.fixture(scope="module")
def echo() -> Iterator[Served]:
    """A replica that keeps nothing, so all tests may ask it."""
    serving = Serve()
    yield serving(ECHO)
    serving.close()


# The scope


def test_the_app_sees_the_client_and_the_server_of_the_proxy(echo: Served) -> None:
    answer = echo.connect().ask("/echo")
    assert answer.status == 200
    seen = json(answer)
    assert seen["client"] == ["203.0.113.9", 40_000]
    assert seen["server"] == ["shop.example", 443]
    assert seen["scheme"] == "https"
    assert seen["http_version"] == "1.1"
    assert seen["url"] == "https://shop.example/echo"
    assert seen["extension"] == {"request_id": "req-1"}
    assert seen["request_id"] == "req-1"


def test_an_unknown_client_and_an_old_version_pass_as_they_are(echo: Served) -> None:
    connection = echo.connect()
    origin = field(version=b"1.0", client=None, server=None, scheme="http")
    seen = json(connection.ask("/echo", hop=origin))
    assert (seen["client"], seen["server"]) == (None, None)
    assert (seen["scheme"], seen["http_version"]) == ("http", "1.0")
    # What the client speaks is not what the hop speaks: the connection stays.
    assert connection.ask("/echo").status == 200


def test_the_path_contains_the_root_path(serve: Serve) -> None:
    seen = json(serve(ECHO, root_path="/shop").connect().ask("/shop/echo"))
    assert (seen["root_path"], seen["path"]) == ("/shop", "/shop/echo")
    assert seen["url_for"] == "https://shop.example/shop/echo"


def test_the_callers_own_fields_do_not_reach_the_app_and_others_keep_their_order(echo: Served) -> None:
    more = [("X-App-Toolkit-Anything", "1"), ("b", "1"), ("a", "1"), ("b", "2")]
    seen = json(echo.connect().ask("/echo", *more))
    assert seen["headers"] == ["b", "a", "b", "host"]


def test_an_expectation_of_the_caller_is_kept_from_the_app_and_met(serve: Serve) -> None:
    served = serve(SLOW)
    served.release("go")
    with dial(served.address) as raw:
        name, value = field()
        head = [
            f"{name}: {value.decode()}",
            "x-app-toolkit-expect: 1",
            "expect: 100-continue",
            "content-length: 3",
        ]
        raw.sendall("\r\n".join(["POST /slow HTTP/1.1", *head, "host: a", "", ""]).encode())
        assert raw.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"abc")
        assert read_to(raw, b"3").startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ([("x-app-toolkit-expect", "1"), ("expect", "100-continue")], ["content-length", "host"]),
        ([("expect", "100-continue")], ["expect", "content-length", "host"]),
    ],
)
def test_only_an_expectation_that_the_caller_added_is_removed(
    echo: Served, more: list[tuple[str, str]], left: list[str]
) -> None:
    answer = echo.connect().ask("/echo", *more, method="POST", body=b"")
    assert json(answer)["headers"] == left


def test_a_websocket_sees_the_client_and_the_server_of_the_proxy(serve: Serve) -> None:
    socket = serve(ECHO, root_path="/shop").websocket("/shop/ws")
    seen = httpx.Response(200, text=socket.receive()).json()
    assert seen["client"] == ["203.0.113.9", 40_000]
    assert seen["url"] == "wss://shop.example/shop/ws"
    assert seen["root_path"] == "/shop"
    assert seen["request_id"] == "req-1"
    assert "x-app-toolkit-hop" not in seen["headers"]


# Who is trusted


def test_a_request_without_a_hop_over_a_unix_socket_is_served_without_internal_fields(echo: Served) -> None:
    path = echo.address.removeprefix("unix:")
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://debug") as client:
        answer = client.get("/echo", headers={"x-app-toolkit-hop": "not first, so no hop"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-app-toolkit")]
    assert not [name for name in answer.json()["headers"] if name.startswith("x-app-toolkit")]
    assert answer.json()["request_id"] is None


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        (field(b"fedcba9876543210"), "secret"),
        (field(b""), "secret"),
        (("x-app-toolkit-hop", b"2" + field()[1][1:]), "protocol"),
        (("x-app-toolkit-hop", b""), "protocol"),
        (("x-app-toolkit-hop", field()[1] + b" one-more"), "protocol"),
    ],
)
def test_a_wrong_hop_is_refused_with_its_reason(echo: Served, origin: tuple[str, bytes], reason: str) -> None:
    answer = echo.connect().ask("/echo", hop=origin)
    assert (answer.status, answer.getheader("x-app-toolkit-refused")) == (503, reason)
    socket = echo.websocket("/ws", hop=origin)
    assert socket.answer.status_code == 503
    assert socket.answer.headers["x-app-toolkit-refused"] == reason


def test_without_a_secret_every_hop_is_refused(serve: Serve) -> None:
    sent: list[Message] = []
    replica = Replica(unreached, name="r", max_ongoing_requests=1, trusted_without_hop=True)
    name, value = field(b"")
    scope: Scope = {"type": "http", "headers": [(name.encode(), value)]}
    finish(replica(scope, nothing, collector(sent)))
    assert (b"x-app-toolkit-refused", b"secret") in sent[0]["headers"]


# Admission


FAKING = """
    from fastapi.responses import PlainTextResponse

    app = FastAPI()

    @app.post("/{status}")
    async def fake(status: int):
        fields = {"x-app-toolkit-refused": "busy", "X-App_Toolkit-Refused": "busy", "x-own": "1"}
        return PlainTextResponse("ran", status, fields)

    @app.websocket("/ws")
    async def deny(ws: WebSocket):
        await ws.send_denial_response(PlainTextResponse("ran", 503, {"x-app-toolkit-refused": "websockets"}))
"""


def test_user_code_cannot_send_the_field_of_a_refusal(serve: Serve) -> None:
    served = serve(FAKING)
    answer = served.connect().ask("/503", method="POST", body=b"")
    assert (answer.status, answer.read(), answer.getheader("x-own")) == (503, b"ran", "1")
    assert "refused" not in str(answer.headers).lower()
    denied = served.websocket("/ws").answer
    assert denied.status_code == 503
    assert "x-app-toolkit-refused" not in denied.headers


def test_a_full_replica_refuses_before_user_code_and_admits_again_after(serve: Serve) -> None:
    served = serve(SLOW, max_ongoing_requests=1)
    held = served.connect()
    held.send_head("POST", "/slow", [field(), ("content-length", "0")])
    wait_until(lambda: served.marked("entered"), "the handler runs")
    connection = served.connect()
    refused = connection.ask("/", method="POST", body=b"unread")
    assert refused.status == 503
    assert refused.getheaders()[0] == ("x-app-toolkit-refused", "busy")
    assert refused.read() == b""
    assert repr(served.server.replica) == "<Replica shop/chat-1-1 [1 ongoing, 0 streams, 0 websockets]>"
    served.release("go")
    assert held.getresponse().status == 200
    answer = connection.ask("/")  # the refusal kept the connection
    assert (answer.status, answer.getheader("x-app-toolkit-refused")) == (200, None)


# Failures of the app


def test_a_failure_before_the_response_is_a_500_and_is_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(FAILING)
    connection = served.connect()
    answer = connection.ask("/before")
    assert (answer.status, answer.read()) == (500, b"Internal Server Error")
    assert connection.ask("/fine").status == 200
    assert_logged_once(served, caplog, "nothing was sent")


def test_a_bare_app_that_fails_is_answered_as_uvicorn_would(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(FAILING, attribute="bare")
    answer = served.connect().ask("/")
    assert (answer.status, answer.read()) == (500, b"Internal Server Error")
    assert answer.getheader("content-type") == "text/plain; charset=utf-8"
    socket = served.websocket("/ws")
    assert socket.answer.status_code == 500
    # uvicorn complains, too, where the client had left before the denial was written.
    assert len([record for record in errors(caplog) if record.name == "app_toolkit.replica"]) == 2


def test_a_failure_in_a_websocket_ends_it_with_1011_and_is_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(FAILING)
    assert served.websocket("/ws").closed_with() == 1011
    assert_logged_once(served, caplog, "in a socket")


def test_a_failure_after_a_denial_leaves_the_denial(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(FAILING)
    assert served.websocket("/denied").answer.status_code == 403
    assert_logged_once(served, caplog, "after the denial")


def assert_logged_once(served: Served, caplog: pytest.LogCaptureFixture, message: str) -> None:
    assert served.server.stop(5)  # so that whoever had something to log has done so
    (record,) = errors(caplog)
    assert record.name == "app_toolkit.replica"
    assert "req-1" in record.getMessage()
    assert record.__dict__["request_id"] == "req-1"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == message


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


# A refusal without a server


async def unreached(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("user code ran")


async def nothing() -> Message:
    raise AssertionError("nobody should ask")


def collector(sent: list[Message]) -> Send:
    async def send(message: Message) -> None:
        sent.append(message)

    return send


def finish(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


# Bytes


def json(answer: Any) -> Any:
    return httpx.Response(200, content=answer.read()).json()


def read_to(raw: socket.socket, end: bytes) -> bytes:
    read = b""
    while not read.endswith(end):
        data = raw.recv(65_536)
        assert data, read
        read += data
    return read
