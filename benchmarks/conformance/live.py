"""A pytest plugin: tests that were written for `TestClient` talk to a real server, and what they see is written down.

`CONFORMANCE_FORM` names the server, `CONFORMANCE_OUT` the file. There is one server for the whole run, and what it
serves is whichever app a client was made for. What `TestClient` puts into a scope (its name as the client's, a root
path, the scheme of its base URL) is put into the scope here, too, once the server has made it.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

import fastapi.testclient
import httpx2 as httpx
import pytest
import starlette.testclient
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from app_toolkit.types import ASGIApp, Receive, Scope, Send
from benchmarks.conformance.servers import FORMS

PATIENCE_S = 10.0
CLIENT = ("testclient", 50000)
OF_ONE_SERVER = frozenset({"date", "server", "x-request-id"})
WRONG_METHODS = ("HEAD", "OPTIONS", "TRACE", "DELETE", "POST")
VALUES = ("1", "foo", "-7", "3.5", "true", "", "é/ü", "2026-01-01", "a" * 300)
BODIES = (b"{}", b"[]", b"{", b'{"name": "Foo", "price": 1.5}', b'"text"', b"null", b"\xff\xfe")


class Stage:
    """The app that the server serves: it plays whichever is on."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.of_client: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        #: WebSockets of the test, which run until it closes them.
        self.open = 0
        self._running = 0
        self._changed = threading.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self.loop = asyncio.get_running_loop()
            await _live(receive, send)
            return
        assert self.app is not None
        # What the server found out itself must be true before it is replaced.
        assert scope["client"][0] == "127.0.0.1", scope["client"]
        scope.update(self.of_client, client=CLIENT)
        if scope["type"] == "websocket":
            scope["scheme"] = scope["scheme"].replace("http", "ws")
        with self._changed:
            self._running += 1
        try:
            await self.app(scope, receive, send)
        except BaseException as error:
            self.error = error
            raise
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def play(self, client: "LiveClient", scheme: str) -> None:
        self.app, self.error = client.app, None
        self.of_client = {"root_path": client.root_path, "scheme": scheme, "state": dict(client.state)}

    def settled(self) -> bool:
        """Wait until nothing of the app runs, background tasks included, as `TestClient` does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running <= self.open, PATIENCE_S)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class Run:
    """One run of a suite: the server, and the notes."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.server: AbstractContextManager[int] = FORMS[os.environ["CONFORMANCE_FORM"]](self.stage)
        self.port = 0
        self.transport = httpx.HTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))
        self.test = ""
        self.outcomes: dict[str, str] = {}
        self.exchanges: dict[str, list[Any]] = {}
        self.apps: dict[int, tuple[str, ASGIApp]] = {}

    def note(self, what: str, seen: Any) -> None:
        self.exchanges.setdefault(self.test, []).append([what, seen])


RUN = Run()


class _Wire(httpx.BaseTransport):
    """Whatever host a URL names, the request goes to the server."""

    def __init__(self, client: "LiveClient") -> None:
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        RUN.stage.play(self._client, request.url.scheme)
        sent = httpx.Request(
            request.method,
            request.url.copy_with(scheme="http", host="127.0.0.1", port=RUN.port),
            headers=request.headers,  # its Host is still that of the URL
            stream=request.stream,
            extensions=request.extensions,
        )
        return RUN.transport.handle_request(sent)


class LiveClient(httpx.Client):
    """What tests know of Starlette's `TestClient`, over the wire."""

    __test__ = False

    def __init__(
        self,
        app: ASGIApp,
        base_url: str = "http://testserver",
        raise_server_exceptions: bool = True,
        root_path: str = "",
        cookies: Any = None,
        headers: dict[str, str] | None = None,
        follow_redirects: bool = True,
    ) -> None:
        self.app = app
        self.root_path = root_path
        self.state: dict[str, Any] = {}
        self._raises = raise_server_exceptions
        self._life: Any = None
        if RUN.test and hasattr(app, "openapi"):
            RUN.apps.setdefault(id(app), (f"{RUN.test.partition('::')[0]} #{len(RUN.apps)}", app))
        super().__init__(
            base_url=base_url,
            headers={"user-agent": "testclient", **(headers or {})},
            transport=_Wire(self),
            follow_redirects=follow_redirects,
            cookies=cookies,
            timeout=PATIENCE_S,
        )

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        what = f"{request.method} {request.url.raw_path.decode()}"
        try:
            response = super().send(request, stream=stream, **options)
        except httpx.TransportError as error:
            RUN.note(what, type(error).__name__)
            self._settle()
            raise
        for each in (*response.history, response):
            RUN.note(what, _seen(each, None if stream and each is response else each.content))
        if not stream:
            self._settle()
        return response

    def websocket_connect(self, url: str, subprotocols: Any = None, **options: Any) -> "LiveSocket":
        return LiveSocket(self, self.build_request("GET", url, **options), subprotocols)

    def _settle(self) -> None:
        RUN.stage.settled()
        error, RUN.stage.error = RUN.stage.error, None
        if error is not None and self._raises and isinstance(error, Exception):
            raise error

    def __enter__(self) -> Self:
        super().__enter__()
        self._life = _lifespan(self)
        self._life.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._life.__exit__(*error)
        super().__exit__(*error)


@contextlib.contextmanager
def _lifespan(client: LiveClient) -> Iterator[None]:
    """The app's own, on the server's loop."""
    assert RUN.stage.loop is not None
    loop, ended = RUN.stage.loop, asyncio.Event()
    started = threading.Event()

    async def live() -> None:
        try:
            async with client.app.router.lifespan_context(client.app) as state:  # type: ignore[attr-defined]
                client.state = dict(state or {})
                started.set()
                await ended.wait()
        finally:
            started.set()

    living = asyncio.run_coroutine_threadsafe(live(), loop)
    started.wait(PATIENCE_S)
    if living.done():
        living.result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        living.result(PATIENCE_S)


class LiveSocket:
    """What tests know of `WebSocketTestSession`, over the wire."""

    def __init__(self, client: LiveClient, request: httpx.Request, subprotocols: Any) -> None:
        self._client = client
        self._request = request
        self._what = f"WEBSOCKET {request.url.raw_path.decode()}"
        self._subprotocols = subprotocols

    def __enter__(self) -> Self:
        RUN.stage.play(self._client, self._request.url.scheme)
        passed = [
            (name, value)
            for name, value in self._request.headers.multi_items()
            if name in ("cookie", "authorization") or name.startswith("x-")
        ]
        try:
            self._connection = connect(
                f"ws://127.0.0.1:{RUN.port}{self._request.url.raw_path.decode()}",
                additional_headers=passed,
                subprotocols=self._subprotocols,
                user_agent_header="testclient",
                proxy=None,
            )
            self._socket = self._connection.__enter__()
        except InvalidStatus as denied:
            RUN.note(self._what, ["denied", denied.response.status_code])
            raise WebSocketDisconnect(code=1006, reason=f"denied with {denied.response.status_code}") from None
        RUN.stage.open += 1
        self.accepted_subprotocol = self._socket.subprotocol
        RUN.note(self._what, ["accepted", self.accepted_subprotocol])
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)
        RUN.stage.open -= 1
        RUN.note(self._what, ["closed", self._socket.close_code, self._socket.close_reason])
        self._client._settle()

    def send_text(self, data: str) -> None:
        self._socket.send(data)

    def send_bytes(self, data: bytes) -> None:
        self._socket.send(data)

    def send_json(self, data: Any) -> None:
        self._socket.send(json.dumps(data, separators=(",", ":"), ensure_ascii=False))

    def receive_text(self) -> str:
        return str(self._receive())

    def receive_bytes(self) -> bytes:
        found = self._receive()
        assert isinstance(found, bytes)
        return found

    def receive_json(self) -> Any:
        return json.loads(self._receive())

    def close(self, code: int = 1000, reason: str = "") -> None:
        self._socket.close(code, reason)

    def _receive(self) -> str | bytes:
        try:
            found = self._socket.recv(PATIENCE_S)
        except ConnectionClosed as closed:
            code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
            RUN.note(self._what, ["disconnected", code, reason])
            raise WebSocketDisconnect(code, reason) from None
        RUN.note(self._what, ["message", found if isinstance(found, str) else base64.b64encode(found).decode()])
        return found


def _seen(response: httpx.Response, body: bytes | None) -> dict[str, Any]:
    kind = response.headers.get("content-type", "")
    return {
        "status": response.status_code,
        "headers": sorted(each for each in response.headers.multi_items() if each[0] not in OF_ONE_SERVER),
        "body": None if body is None else _readable(body, kind),
    }


def _readable(body: bytes, kind: str) -> str:
    """As text where it is short. The order of an object's keys, which may be that of a Python set, is no matter."""
    if kind == "application/json":
        with contextlib.suppress(ValueError):
            body = json.dumps(json.loads(body), sort_keys=True).encode()
    return body.decode("latin-1") if len(body) < 2_000 else hashlib.sha256(body).hexdigest()


# Requests that the tests do not make


def probe(app: ASGIApp, name: str) -> None:
    """Ask every path of the app's own description, and some beside it, for right and wrong things."""
    rng = random.Random(name)  # a string's seed is the same in every process
    client = LiveClient(app, raise_server_exceptions=False, follow_redirects=False)
    try:
        paths: dict[str, Any] = app.openapi()["paths"]  # type: ignore[attr-defined]
    except Exception as error:  # an app whose description fails says so to its own clients, too
        RUN.note("openapi", type(error).__name__)
        paths = {}
    _ask(client, "GET", "/nothing/is/here")
    for path, operations in paths.items():
        for method in operations:
            if method in ("get", "post", "put", "patch", "delete", "head", "options", "trace"):
                for _ in range(3):
                    parameters = operations[method].get("parameters", ())
                    _ask(
                        client,
                        method.upper(),
                        _filled(path, rng),
                        params={each["name"]: rng.choice(VALUES) for each in parameters if each["in"] == "query"},
                        headers={
                            each["name"]: rng.choice(VALUES).encode()
                            for each in parameters
                            # A wrong Host is refused by the proxy itself, and that is on purpose.
                            if each["in"] == "header" and each["name"] != "host" and rng.random() < 0.7
                        },
                        content=rng.choice(BODIES) if "requestBody" in operations[method] else None,
                    )
        place = _filled(path, rng)
        for method in WRONG_METHODS:
            _ask(client, method, place)
        _ask(client, "GET", place.removesuffix("/") if place.endswith("/") else f"{place}/")


def _filled(path: str, rng: random.Random) -> str:
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + rng.choice(VALUES[:-3]) + rest.partition("}")[2]
    return path


def _ask(client: LiveClient, method: str, path: str, **options: Any) -> None:
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    try:
        with client.stream(method, path, headers=headers, **options) as response:
            begun, body = time.monotonic(), b""
            for piece in response.iter_raw():
                body += piece
                if len(body) > 100_000 or time.monotonic() - begun > PATIENCE_S:
                    break
        RUN.note("body", _readable(body, response.headers.get("content-type", "")))
    except httpx.TransportError:
        pass  # the client has noted it
    RUN.stage.settled()


# What pytest calls


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group: of a plugin that is not there")
    for module in (fastapi.testclient, starlette.testclient):
        setattr(module, "TestClient", LiveClient)  # noqa: B010  mypy would not have it otherwise


def pytest_sessionstart(session: pytest.Session) -> None:
    RUN.port = RUN.server.__enter__()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    RUN.test = item.nodeid
    random.seed(RUN.test)  # apps of the tutorial choose at random


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        RUN.outcomes[report.nodeid] = "xfailed" if hasattr(report, "wasxfail") else report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    for name, app in RUN.apps.values():
        RUN.test = f"probes of {name}"
        probe(app, name)
    RUN.server.__exit__(None, None, None)
    RUN.transport.close()
    with open(os.environ["CONFORMANCE_OUT"], "w") as file:
        json.dump({"outcomes": RUN.outcomes, "exchanges": RUN.exchanges, "apps": len(RUN.apps)}, file)
