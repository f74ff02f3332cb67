"""A chat over a WebSocket, with a real client and a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app_toolkit import Toolkit
from app_toolkit.chat import ChatError, ChatEvent, ChatRequest, TextEvent, api_keys, websocket_router
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import ConfigError
from app_toolkit.streaming import MemoryStreamLog, StreamLimits
from tests.chat.served import SOON_S, HeldClock, served
from tests.docs.pages import page
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

ADA, BOB = "ada-0123456789abcdef", "bob-0123456789abcdef"


class Scripted:
    """A model that says the numbers from 1 on: three of them, or as many as are allowed."""

    def __init__(self) -> None:
        self.running = 0
        self.requests: list[ChatRequest] = []
        self._allowed = asyncio.Semaphore(0)

    def allow(self, words: int) -> None:
        for _ in range(words):
            self._allowed.release()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.running += 1
        self.requests.append(request)
        try:
            if request.prompt == "refuse":
                raise ChatError("the prompt is too long", status=413, code="context_length_exceeded")
            if request.prompt == "later":
                raise HTTPException(503, "later", {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
            if request.prompt == "cancel":
                raise asyncio.CancelledError
            if request.prompt == "flood":  # more than the buffers of two sockets
                for _ in range(3_000):
                    yield TextEvent("x" * 8_000)
            for number in range(1, 4 if request.prompt == "three" else 1_000):
                if request.prompt != "three":
                    await self._allowed.acquire()
                yield TextEvent(str(number))
        finally:
            self.running -= 1


class Chat:
    """One WebSocket of a client."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, type: str, id: str | None = None, prompt: str | None = None, **fields: Any) -> None:
        if prompt is not None:
            fields["messages"] = [{"role": "user", "content": prompt}]
        if id is not None:
            fields["id"] = id
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def get(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return json.loads(await self.socket.recv())

    async def rest(self) -> list[Any]:
        """The events until the last one of a response."""
        events = [await self.get()]
        while events[-1]["type"] not in ("finish", "error"):
            events.append(await self.get())
        return events

    async def until_closed(self) -> tuple[list[Any], int | None, str | None]:
        """The messages until the server closes the WebSocket, and its code and reason."""
        messages = []
        try:
            while True:
                messages.append(await self.get())
        except ConnectionClosed as closed:
            received = closed.rcvd
        return (messages, None, None) if received is None else (messages, received.code, received.reason)


@asynccontextmanager
async def chatting(url: str, **options: Any) -> AsyncIterator[Chat]:
    async with connect(f"{url.replace('http', 'ws')}/ws", proxy=None, **options) as socket:
        yield Chat(socket)


def app_of(kind: type[FastAPI], models: Any, *, keys: Any = None, **options: Any) -> FastAPI:
    options.setdefault("log", MemoryStreamLog())
    app = kind()
    dependencies = [] if keys is None else [Depends(keys)]
    app.include_router(websocket_router(models, **options), prefix="/ws", dependencies=dependencies)
    return app


@pytest.fixture
async def model() -> AsyncIterator[Scripted]:
    model = Scripted()
    yield model
    await until(lambda: not model.running)


def numbers(events: list[Any]) -> list[int]:
    return [each["number"] for each in events]


def said(events: list[Any]) -> str:
    return "".join(each["text"] for each in events if each["type"] == "text")


# Responses


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_a_response_has_numbered_events(kind: type[FastAPI]) -> None:
    echo = EchoModel.bind() if kind is Toolkit else EchoModel()
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    async with served(app_of(kind, {"echo": echo})) as url, chatting(url) as chat:
        await chat.send("chat", "one", "/reason hello world")
        events = await chat.rest()
        assert numbers(events) == list(range(1, 8))
        assert {each["id"] for each in events} == {"one"}
        assert [each["type"] for each in events] == [*["reasoning"] * 3, *["text"] * 2, "usage", "finish"]
        assert (said(events), events[-1]["reason"]) == ("hello world", "stop")

        await chat.send("chat", "two", "/tool", tools=tools, model="echo")
        call, *parts, usage, finish = await chat.rest()
        assert (call["type"], call["call_id"], call["name"]) == ("tool_call", "call_0", "look_up")
        assert "".join(each["arguments"] for each in parts) == '{"text": "hello"}'
        assert (usage["output_tokens"], finish["reason"]) == (1, "tool_calls")


async def test_a_model_gets_the_fields_of_a_chat_completion(model: Scripted) -> None:
    async with served(app_of(FastAPI, {"a": EchoModel(), "b": model})) as url, chatting(url) as chat:
        await chat.send("chat", "r", "three", model="b", temperature=0.5, colour="red")
        await chat.rest()
        (request,) = model.requests
        assert (request.model, request.temperature, request.extra) == ("b", 0.5, {"colour": "red"})
        for fields, status, code in (({"model": "c"}, 404, "model_not_found"), ({"n": 2}, 400, "invalid_value")):
            await chat.send("chat", "s", "hello", **fields)
            (error,) = await chat.rest()
            assert (error["id"], error["status"], error["code"]) == ("s", status, code)
            assert "number" not in error
        await chat.send("chat", "t", "hello")
        assert said(await chat.rest()) == "hello"


async def test_a_failure_of_the_model_is_the_last_event_of_its_response(model: Scripted) -> None:
    async with served(app_of(FastAPI, {"scripted": model, "echo": EchoModel()})) as url, chatting(url) as chat:
        await chat.send("chat", "a", "refuse")
        (error,) = await chat.rest()
        assert (error["number"], error["status"], error["code"]) == (1, 413, "context_length_exceeded")
        await chat.send("chat", "b", "hello /break", model="echo")
        text, error = await chat.rest()
        assert (text["text"], error["number"], error["message"]) == ("hello", 2, "the model was asked to break")
        await chat.send("chat", "d", "later")
        (error,) = await chat.rest()
        assert (error["number"], error["status"], error["message"]) == (1, 503, "later")
        await chat.send("chat", "c", "cancel")
        (error,) = await chat.rest()
        assert (error["number"], error["code"]) == (1, "response_failed")


async def test_several_responses_share_a_websocket_up_to_a_limit(model: Scripted) -> None:
    async with served(app_of(FastAPI, model, max_responses=2)) as url, chatting(url) as chat:
        for id in ("a", "b", "c"):
            await chat.send("chat", id, "wait")
        refused = await chat.get()
        assert (refused["id"], refused["status"], refused["code"]) == ("c", 429, "too_many_responses")
        await until(lambda: model.running == 2)
        model.allow(2)
        assert {(await chat.get())["id"], (await chat.get())["id"]} == {"a", "b"}
        await chat.send("stop", "a")
        last = await chat.get()
        assert (last["id"], last["type"], last["reason"]) == ("a", "finish", "stopped")
        await until(lambda: model.running == 1)
        await chat.send("chat", "d", "three")
        assert [each["id"] for each in await chat.rest()] == ["d"] * 4
        await chat.send("stop", "b")
        assert (await chat.get())["reason"] == "stopped"


async def test_a_stop_ends_a_model_that_waits(model: Scripted) -> None:
    async with served(app_of(FastAPI, model)) as url, chatting(url) as chat:
        await chat.send("chat", "r", "wait")
        await chat.send("stop", "r")
        async with asyncio.timeout(SOON_S):
            (last,) = await chat.rest()
            await until(lambda: not model.running)
        assert (last["number"], last["type"], last["reason"]) == (1, "finish", "stopped")
        await chat.send("stop", "r")
        await chat.send("ping")
        assert await chat.get() == {"type": "pong"}


async def test_an_id_is_used_once(model: Scripted) -> None:
    async with served(app_of(FastAPI, model)) as url, chatting(url) as chat, chatting(url) as other:
        await chat.send("chat", "r", "wait")
        for socket in (chat, other):
            await socket.send("chat", "r", "three")
            refused = await socket.get()
            assert (refused["status"], refused["code"], "number" in refused) == (409, "id_used", False)
        await chat.send("resume", "r")
        assert (await chat.get())["code"] == "id_used"
        await chat.send("stop", "r")
        await chat.rest()
        await chat.send("chat", "r", "three")
        assert (await chat.get())["code"] == "id_used"
        assert len(model.requests) == 1


# Resume


async def test_no_user_reads_or_stops_the_response_of_another_one(model: Scripted) -> None:
    def user(name: str) -> str:
        return name

    async with (
        served(app_of(Toolkit, model, user=user)) as url,
        connect(f"{url.replace('http', 'ws')}/ws?name=ada", proxy=None) as of_ada,
        connect(f"{url.replace('http', 'ws')}/ws?name=bob", proxy=None) as of_bob,
    ):
        ada, bob = Chat(of_ada), Chat(of_bob)
        await ada.send("chat", "1", "wait")
        model.allow(1)
        assert (await ada.get())["text"] == "1"
        for command in ("resume", "stop"):
            await bob.send(command, "1")
            assert (await bob.get())["code"] == "response_unknown"
        await bob.send("chat", "1", "three")
        assert [event.get("text") for event in await bob.rest()] == ["1", "2", "3", None]
        await ada.send("stop", "1")
        assert [event["type"] for event in await ada.rest()] == ["finish"]


async def test_a_client_that_reconnects_gets_each_event_once() -> None:
    log, app = MemoryStreamLog(), FastAPI()
    app.include_router(websocket_router(EchoModel(), log=log), prefix="/ws")
    words = " ".join(map(str, range(10)))
    async with served(app) as url, served(app_of(FastAPI, EchoModel(), log=log)) as replica:
        for cut in (0, 1, 7, 10, 11):
            async with chatting(url) as chat:
                await chat.send("chat", f"r{cut}", words)
                events = [await chat.get() for _ in range(cut)]
                if not cut:
                    await chat.send("ping")
                    while (await chat.get())["type"] != "pong":
                        pass
            async with chatting(replica) as chat:
                await chat.send("resume", f"r{cut}", after=cut)
                events += await chat.rest()
            assert numbers(events) == list(range(1, 13))
            assert (said(events), events[-1]["type"]) == (words, "finish")


async def test_a_client_that_reconnects_follows_the_response_that_continues_meanwhile(model: Scripted) -> None:
    async with served(app_of(FastAPI, model)) as url:
        async with chatting(url) as chat:
            await chat.send("chat", "r", "wait")
            model.allow(1)
            assert (await chat.get())["text"] == "1"
        model.allow(1)
        async with chatting(url) as chat, chatting(url) as other:
            await chat.send("resume", "r", after=1)
            await other.send("resume", "r")
            assert (await chat.get())["text"] == "2"
            assert [(await other.get())["text"] for _ in range(2)] == ["1", "2"]
            model.allow(1)
            assert (await chat.get(), await other.get())[0]["number"] == 3
            await other.send("stop", "r")
            for each in (chat, other):
                (last,) = await each.rest()
                assert (last["number"], last["reason"]) == (4, "stopped")


async def test_a_resume_that_cannot_be_served_is_refused(model: Scripted) -> None:
    log = MemoryStreamLog(StreamLimits(max_bytes=600))
    async with served(app_of(FastAPI, model, log=log)) as url, chatting(url) as chat:
        await chat.send("chat", "ended", "three")
        await chat.rest()
        await chat.send("chat", "stopped", "wait")
        for number in range(1, 6):
            model.allow(1)
            assert (await chat.get())["number"] == number
        await chat.send("stop", "stopped")
        await chat.rest()
        for command, id, after, status, code in (
            ("resume", "missing", 0, 404, "response_unknown"),
            ("stop", "missing", 0, 404, "response_unknown"),
            ("resume", "ended", 0, 410, "history_evicted"),
            ("resume", "ended", 4, 410, "response_ended"),
            ("resume", "ended", 2**53 - 1, 410, "response_ended"),
            ("resume", "stopped", 1, 410, "history_evicted"),
            ("resume", "stopped", 6, 410, "response_ended"),
        ):
            await chat.send(command, id, after=after)
            refused = await chat.get()
            assert (refused["id"], refused["status"], refused["code"]) == (id, status, code), (command, id, after)
            assert "number" not in refused
        await chat.send("resume", "ended", after=1)
        assert numbers(await chat.rest()) == [2, 3, 4]
        await chat.send("resume", "stopped", after=5)
        assert numbers(await chat.rest()) == [6]


async def test_a_response_without_a_client_is_stopped(model: Scripted) -> None:
    keys = api_keys({"ada": ADA}, max_concurrent=1)
    headers = {"authorization": f"Bearer {ADA}"}
    clock = HeldClock()
    app = app_of(FastAPI, model, keys=keys, linger_s=0.2, log=MemoryStreamLog(now=clock))
    async with served(app) as url:
        async with chatting(url, additional_headers=headers) as chat:
            await chat.send("chat", "r", "wait")
            await until(lambda: model.running == 1)
        assert keys.running["ada"] == 1
        clock.go_on()
        await until(lambda: not model.running and not keys.running["ada"])
        async with chatting(url, additional_headers=headers) as chat:
            await chat.send("resume", "r")
            (last,) = await chat.rest()
            assert last["reason"] == "stopped"


async def test_a_stopping_server_closes_the_websocket_and_its_responses_are_lost(model: Scripted) -> None:
    log = MemoryStreamLog()
    async with served(app_of(FastAPI, model, log=log)) as other:
        async with served(app_of(FastAPI, model, log=log)) as url:
            chat = Chat(await connect(f"{url.replace('http', 'ws')}/ws", proxy=None))
            await chat.send("chat", "r", "wait")
            model.allow(1)
            assert (await chat.get())["number"] == 1
        assert (await chat.until_closed())[1] == 1012
        async with chatting(other) as chat:
            await chat.send("resume", "r", after=1)
            (last,) = await chat.rest()
            assert (last["number"], last["code"]) == (2, "response_lost")


class Broken(MemoryStreamLog):
    """A log that cannot be read."""

    async def follow(self, stream: str, after: int) -> Any:
        raise OSError("no connection to the log")
        yield


async def test_a_log_that_fails_ends_the_response_and_not_the_websocket(
    model: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(app_of(FastAPI, model, log=Broken(), linger_s=0.1)) as url, chatting(url) as chat:
        await chat.send("chat", "r", "wait")
        (error,) = await chat.rest()
        assert (error["id"], error["code"]) == ("r", "response_lost")
        assert error["message"] == "The response was interrupted."
        await chat.send("ping")
        assert await chat.get() == {"type": "pong"}
    assert "no connection to the log" in caplog.text


# The WebSocket


async def test_a_message_that_is_no_command_is_refused(model: Scripted) -> None:
    async with served(app_of(FastAPI, model)) as url, chatting(url) as chat:
        await chat.socket.send("hello")
        await chat.send("stop")
        await chat.send("dance", "r")
        assert [(await chat.get()).get("id") for _ in range(3)] == [None, None, "r"]
        await chat.send("chat", "r", "three")
        assert len(await chat.rest()) == 4


@pytest.mark.parametrize(
    ("messages", "code", "reason"),
    [
        ([b"{}"], 1003, "messages must be text"),
        (["é" * 60], 1009, "a message has at most 100 bytes"),
        (["{}"] * 6, 1008, "at most 5 messages a minute"),
    ],
)
async def test_a_client_that_exceeds_a_limit_is_closed(
    model: Scripted, messages: list[Any], code: int, reason: str
) -> None:
    app = app_of(FastAPI, model, max_message_bytes=100, max_messages_per_minute=5)
    async with served(app) as url, chatting(url) as chat:
        for message in messages:
            await chat.socket.send(message)
        assert (await chat.until_closed())[1:] == (code, reason)


class Watched(MemoryStreamLog):
    """A log that says how often it was read, and how many readers it has."""

    begun = readers = 0

    async def follow(self, stream: str, after: int) -> Any:
        self.begun += 1
        self.readers += 1
        try:
            async with aclosing(super().follow(stream, after)) as pages:
                async for page in pages:
                    yield page
        finally:
            self.readers -= 1


async def test_a_client_that_does_not_read_is_closed_and_can_resume(model: Scripted) -> None:
    log = Watched(StreamLimits(max_bytes=2**30))
    hasty, patient = app_of(FastAPI, model, send_timeout_s=0.2, log=log), app_of(FastAPI, model, log=log)
    async with served(hasty) as url, served(patient) as other:
        async with chatting(url, max_queue=1, compression=None) as chat:
            await chat.send("chat", "r", "flood")
            await until(lambda: log.begun == 1 and log.readers == 0)
            events, code, reason = await chat.until_closed()
        assert (code, reason) == (1013, "the client has not read for too long")
        assert numbers(events) == list(range(1, len(events) + 1))
        async with chatting(other) as chat:
            await chat.send("resume", "r", after=len(events))
            assert (await chat.get())["number"] == len(events) + 1
            await chat.send("stop", "r")
            await chat.rest()


async def test_a_client_that_never_reads_again_does_not_keep_the_server(model: Scripted) -> None:
    blocked, sent = asyncio.Event(), []
    commands = [json.dumps({"type": "chat", "id": "r", "messages": [{"role": "user", "content": "wait"}]})]

    async def receive() -> Any:
        if not sent:
            return {"type": "websocket.connect"}
        if commands:
            return {"type": "websocket.receive", "text": commands.pop()}
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "websocket.send":
            await blocked.wait()

    app = app_of(FastAPI, model, send_timeout_s=0.05, linger_s=0.1)
    scope = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b"", "subprotocols": []}
    model.allow(1)
    async with asyncio.timeout(PATIENCE_S):
        await app(scope, receive, send)
    assert [each["type"] for each in sent] == ["websocket.accept", "websocket.send", "websocket.close"]
    assert sent[-1]["code"] == 1013


async def test_a_heartbeat_keeps_a_quiet_websocket_open(model: Scripted) -> None:
    async with served(app_of(FastAPI, model, heartbeat_s=0.02)) as url, chatting(url) as chat:
        assert [await chat.get() for _ in range(3)] == [{"type": "heartbeat"}] * 3


async def test_only_pages_of_allowed_origins_open_a_websocket(model: Scripted) -> None:
    async with served(app_of(FastAPI, model, origins=["https://chat.example.com"])) as url:
        for origin in (url, "https://chat.example.com", None):
            async with chatting(url, origin=origin) as chat:
                await chat.send("ping")
                assert await chat.get() == {"type": "pong"}
        for origin in ("https://evil.example", "null"):
            with pytest.raises(InvalidStatus) as refused:
                async with chatting(url, origin=origin):
                    pass
            assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_responses": 0}, "max_responses = 0: must be from 1 to 1,000"),
        ({"max_message_bytes": 2**30}, "max_message_bytes = 1073741824: must be from 1 to 16,777,216"),
        ({"send_timeout_s": 0}, "send_timeout_s = 0: must be above 0 and at most 86,400"),
        ({"origins": "https://a.b"}, "origins is the string 'https://a.b': pass a list of origins"),
        ({"origins": ["https://a.b/"]}, "origins has 'https://a.b/': write it as https://HOST or https://HOST:PORT"),
        ({"origins": ["https://*.a"]}, r"origins has 'https://\*.a': write it as https://HOST or https://HOST:PORT"),
        ({"linger_s": 1e9}, "linger_s = 1000000000.0: must be above 0 and at most 86,400"),
    ],
)
def test_an_option_out_of_bounds_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^websocket_router: {problem}$"):
        websocket_router(EchoModel(), **options)


# API keys


async def test_the_next_response_may_begin_when_the_client_has_the_last_event() -> None:
    keys = api_keys({"ada": ADA}, max_concurrent=1)
    app = app_of(FastAPI, EchoModel(), keys=keys, max_responses=1)
    async with served(app) as url, chatting(url, additional_headers={"authorization": f"Bearer {ADA}"}) as chat:
        for number in range(20):
            await chat.send("chat", f"r{number}", "hello")
            assert (await chat.rest())[-1]["reason"] == "stop"
            await chat.send("resume", f"r{number}", after=3)
            assert (await chat.get())["code"] == "response_ended"


def test_each_response_counts_against_the_limits_of_its_key() -> None:
    keys = api_keys({"ada": ADA, "bob": BOB}, max_concurrent=1)
    app = app_of(FastAPI, EchoModel(period_s=0.001), keys=keys)
    command = {"type": "chat", "messages": [{"role": "user", "content": "/forever"}]}

    def until_type(socket: Any, *types: str) -> Any:
        while (event := socket.receive_json())["type"] not in types:
            pass
        return event

    offered = ["app-toolkit.chat", f"bearer.{ADA}"]
    with (
        TestClient(app) as client,  # one event loop for all connections
        client.websocket_connect("/ws", subprotocols=offered) as ada,
        client.websocket_connect("/ws", subprotocols=offered) as again,
        client.websocket_connect("/ws", headers={"authorization": f"Bearer {BOB}"}) as bob,
    ):
        assert (ada.accepted_subprotocol, bob.accepted_subprotocol) == ("app-toolkit.chat", None)
        assert keys.running == {"ada": 0, "bob": 0}
        ada.send_json({**command, "id": "r"})
        assert ada.receive_json()["number"] == 1
        again.send_json({**command, "id": "s"})
        refused = again.receive_json()
        assert (refused["code"], refused["status"], refused["retry_after_s"]) == ("rate_limit_exceeded", 429, 1)
        for type in ("resume", "stop"):
            bob.send_json({"type": type, "id": "r"})
            assert bob.receive_json()["code"] == "response_unknown"
        with client.websocket_connect(
            "/ws", subprotocols=offered
        ) as returned:  # a lost connection, with no permit left
            returned.send_json({"type": "resume", "id": "r"})
            assert returned.receive_json()["number"] == 1
        again.send_json({"type": "stop", "id": "r"})
        assert until_type(ada, "finish")["reason"] == "stopped"
        bob.send_json({"type": "chat", "id": "r", "messages": [{"role": "user", "content": "hello"}]})
        assert until_type(bob, "finish")["number"] == 3
        assert keys.running == {"ada": 0, "bob": 0}
        with pytest.raises(WebSocketDisconnect) as denied, client.websocket_connect("/ws"):
            pass
    assert denied.value.status_code == 401  # type: ignore[attr-defined]


def test_the_app_of_the_page_chats() -> None:
    client = TestClient(page("docs/chat-websocket.md").run()["app"])
    offered = ["app-toolkit.chat", "bearer.replace-this-example-key"]
    with client.websocket_connect("/ws", subprotocols=offered) as socket:
        socket.send_json({"type": "chat", "id": "r", "messages": [{"role": "user", "content": "hello"}]})
        assert socket.receive_json() == {"id": "r", "number": 1, "type": "text", "text": "HELLO "}
        assert socket.receive_json() == {"id": "r", "number": 2, "type": "finish", "reason": "stop"}
