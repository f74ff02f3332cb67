"""Resumable responses of a `Toolkit` over HTTP."""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Never, cast

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from sse_starlette import EventSourceResponse as SSEStarletteResponse

from app_toolkit import ConfigError, DeploymentConfig, Toolkit
from app_toolkit.errors import NoReplica, StreamLogFull
from app_toolkit.streaming import (
    LostStream,
    MemoryStreamLog,
    StreamLimits,
    StreamLogDeployment,
    resumable,
    stream_router,
)
from app_toolkit.streaming.stream_log import Append, Outcome, cost
from tests.chat.served import asking
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

HEAD = "x-stream-id"

LARGE = StreamLimits(max_bytes=256 * 1_024)
"""The limits of a log that is much smaller than its streams."""

TOKEN = b'\n{"text":"token 1"}'
"""An event, as the log has it."""


class Token(BaseModel):
    text: str


class Account(BaseModel):
    name: str


class OwnAccount(Account):
    password: str


class Model:
    """A generator that waits for a permit before each token."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.running = 0
        self.open_sessions = 0

    def allow(self, tokens: int) -> None:
        for _ in range(tokens):
            self.permits.release()

    async def write(self, tokens: int) -> AsyncIterator[Token]:
        self.running += 1
        try:
            for number in range(1, tokens + 1):
                await self.permits.acquire()
                yield Token(text=f"token {number}")
        finally:
            self.running -= 1

    async def session(self) -> AsyncIterator["Model"]:
        self.open_sessions += 1
        yield self
        self.open_sessions -= 1


class Client:
    """Asks one server."""

    def __init__(self, http: httpx.AsyncClient, model: Model, log: MemoryStreamLog) -> None:
        self.http = http
        self.model = model
        self.log = log

    @asynccontextmanager
    async def read(self, path: str, **options: Any) -> AsyncIterator["Reader"]:
        async with self.http.stream(options.pop("method", "GET"), path, **options) as response:
            yield Reader(response)


class Reader:
    """Reads the events of one response."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    @property
    def id(self) -> str:
        return str(self.response.headers[HEAD])

    async def event(self) -> dict[str, str]:
        """The fields of the next event; nothing at the end."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line and fields:
                return fields
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
        return fields

    async def tokens(self, count: int) -> list[str]:
        return [json.loads((await self.event())["data"])["text"] for _ in range(count)]

    async def rest(self) -> list[dict[str, str]]:
        events = []
        while event := await self.event():
            events.append(event)
        return events


def texts(first: int, last: int) -> list[str]:
    return [f"token {number}" for number in range(first, last + 1)]


def app_of(kind: Callable[..., FastAPI], model: Model, log: MemoryStreamLog) -> FastAPI:
    app, large = kind(), MemoryStreamLog(LARGE)
    app.include_router(stream_router(log=log), prefix="/streams")
    Session = Annotated[Model, Depends(model.session)]

    @app.get("/write/{tokens}", response_class=EventSourceResponse)
    @resumable(log=log)
    async def write(tokens: int, session: Session) -> AsyncIterable[Token]:
        async for token in session.write(tokens):
            assert session.open_sessions
            yield token

    @app.post("/chats/{chat}", response_class=EventSourceResponse)
    @resumable(log=log, key="chat")
    async def chat(chat: str, prompt: Token, session: Session) -> AsyncIterable[ServerSentEvent]:
        async for token in session.write(3):
            yield ServerSentEvent(data={"text": f"{prompt.text} {token.text}"}, event="token")

    @app.get("/impatient", response_class=EventSourceResponse)
    @resumable(log=log, linger_s=0.01)
    async def impatient(session: Session) -> AsyncIterable[Token]:
        async for token in session.write(3):
            yield token

    @app.get("/fails/{after}", response_class=EventSourceResponse)
    @resumable(log=log)
    async def fails(after: int) -> AsyncIterable[str]:
        for number in range(after):
            yield str(number)
        raise HTTPException(429, "too much", {"retry-after": "3"})

    @app.get("/fast", response_class=EventSourceResponse)
    @resumable()
    async def fast() -> AsyncIterable[int]:
        for number in range(20_000):
            yield number

    @app.get("/large/{events}", response_class=EventSourceResponse)
    @resumable(log=large)
    async def write_large(events: int) -> AsyncIterable[str]:
        for number in range(events):
            yield f"{number} {'x' * 8_192}"

    @app.get("/accounts", response_class=EventSourceResponse)
    @resumable(log=log)
    async def accounts(wrong: bool = False) -> AsyncIterable[Account]:
        yield cast(Account, {"title": "ada"}) if wrong else OwnAccount(name="ada", password="secret")

    @app.get("/account-lines", response_model_exclude={"name"})
    @resumable(log=log)
    async def account_lines() -> AsyncIterable[Account]:
        yield OwnAccount(name="ada", password="secret")

    @app.get("/lines")
    @resumable(log=log)
    async def lines() -> AsyncIterable[Token]:
        yield Token(text="é")
        yield Token(text="b")

    @app.get("/threads")
    @resumable(log=log)
    def threads() -> Iterator[int]:
        yield 1
        yield 2

    @app.get("/response")
    @resumable(log=log)
    async def response(error: bool = False) -> Any:
        if error:
            return JSONResponse({"detail": "no"}, 402)

        async def parts() -> AsyncIterator[str]:
            yield "data: a\n\n: only a comment\n\nevent: x\nda"
            yield "ta: b\n\n"

        return StreamingResponse(parts(), 201, {"x-own": "1"}, media_type="text/event-stream")

    @app.get("/starlette")
    @resumable(log=log)
    async def starlette() -> Any:
        async def parts() -> AsyncIterator[dict[str, str] | str]:
            yield {"data": "a", "event": "x"}
            yield "b"

        return SSEStarletteResponse(parts())

    async def continued(lost: LostStream) -> AsyncIterator[Token]:
        seen = [json.loads(event)["text"] for event in lost.events]
        yield Token(text=f"after {seen[-1]}")

    @app.get("/lasting", response_class=EventSourceResponse)
    @resumable(log=log, resume=continued)
    async def lasting(session: Session) -> AsyncIterable[Token]:
        async for token in session.write(3):
            yield token

    return app


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    model, log = Model(), MemoryStreamLog(StreamLimits(max_bytes=11 * cost(TOKEN) - 1))
    async with asking(app_of(Toolkit, model, log)) as http:
        yield Client(http, model, log)
        model.allow(1_000)


async def test_events_have_numbers_and_the_first_one_a_retry_time(client: Client) -> None:
    client.model.allow(2)
    async with client.read("/write/2") as reader:
        first, second = await reader.rest()
        assert first == {"data": '{"text":"token 1"}', "id": f"{reader.id}:1", "retry": "3000"}
        assert second == {"data": '{"text":"token 2"}', "id": f"{reader.id}:2"}
        assert reader.response.headers["cache-control"] == "no-cache"
        assert reader.response.headers["x-accel-buffering"] == "no"


async def test_a_client_that_reconnects_gets_missed_and_following_events(client: Client) -> None:
    client.model.allow(2)
    async with client.read("/write/6") as reader:
        assert await reader.tokens(2) == texts(1, 2)
    client.model.allow(2)
    async with client.read("/write/6", headers={"last-event-id": f"{reader.id}:2"}) as again:
        assert await again.tokens(2) == texts(3, 4)
        client.model.allow(2)
        assert await again.tokens(2) == texts(5, 6)
        assert not await again.rest()
    async with client.read(f"/write/6?stream={reader.id}&after=5") as last:
        assert await last.tokens(1) == texts(6, 6)
        assert not await last.rest()


async def test_the_generator_runs_to_its_end_with_its_dependencies_when_its_client_has_gone(client: Client) -> None:
    client.model.allow(1)
    async with client.read("/write/4") as reader:
        assert await reader.tokens(1) == texts(1, 1)
    client.model.allow(2)
    async with client.read(f"/streams/{reader.id}") as again:
        assert await again.tokens(3) == texts(1, 3)
        assert (client.model.running, client.model.open_sessions) == (1, 1)
    client.model.allow(1)
    await until(lambda: client.model.running == client.model.open_sessions == 0)
    async with client.read(f"/streams/{reader.id}?after=3") as later:
        assert await later.tokens(1) == texts(4, 4)


async def test_a_client_that_leaves_a_fast_stream_is_no_error(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        async with client.read("/fast") as reader:
            assert (await reader.event())["data"] == "0"
        async with client.read(f"/fast?stream={reader.id}&after=19998") as again:
            assert [event["data"] for event in await again.rest()] == ["19998", "19999"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_stop_ends_the_generator_once(client: Client) -> None:
    client.model.allow(1)
    async with client.read("/write/3") as reader:
        assert await reader.tokens(1) == texts(1, 1)
        assert (await client.http.post(f"/streams/{reader.id}/stop")).json() == {"stopped": True}
        assert not await reader.rest()
    await until(lambda: not client.model.running)
    assert (await client.http.post(f"/streams/{reader.id}/stop")).json() == {"stopped": False}


async def test_a_generator_without_readers_is_stopped(client: Client) -> None:
    client.model.allow(1)
    async with client.read("/impatient") as reader:
        assert await reader.tokens(1) == texts(1, 1)
    await until(lambda: not client.model.running)
    assert (await client.http.get(f"/streams/{reader.id}?after=1")).status_code == 204


async def test_a_complete_or_unknown_stream_is_answered_with_204(client: Client) -> None:
    client.model.allow(1)
    async with client.read("/write/1") as reader:
        assert len(await reader.rest()) == 1
    for headers in ({"last-event-id": f"{reader.id}:1"}, {"last-event-id": "unknown:1"}):
        answer = await client.http.get("/write/1", headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")
    assert (await client.http.get("/streams/unknown")).status_code == 404
    assert (await client.http.post("/streams/unknown/stop")).status_code == 404


async def test_a_silent_stream_has_heartbeats(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["app_toolkit.streaming.resumable"], "HEARTBEAT_S", 0.02)
    client.model.allow(1)
    async with client.read("/write/2") as reader:
        assert await reader.tokens(1) == texts(1, 1)
    for _ in range(2):
        async with client.http.stream("GET", f"/streams/{reader.id}?after=1") as response:
            lines = response.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
    client.model.allow(1)
    async with client.read(f"/streams/{reader.id}?after=1") as last:
        assert await last.tokens(1) == texts(2, 2)
        assert not await last.rest()


@pytest.mark.parametrize("after", ["-1", "x", " 2", "\u0662", "9" * 16])
async def test_an_invalid_number_is_refused(client: Client, after: str) -> None:
    for path in ("/write/1", "/streams/s"):
        answer = await client.http.get(path, params={"stream": "s", "after": after})
        assert answer.status_code == 400
        assert repr(after) in answer.json()["detail"]


@pytest.mark.parametrize("outcome", [None, "finished", "lost"])
async def test_a_number_beyond_the_last_event_is_refused(client: Client, outcome: Outcome | None) -> None:
    await client.log.begin("s", "owner", "text/event-stream", None)
    await client.log.append([Append("s", "owner", 1, (TOKEN,))])
    if outcome is not None:
        await client.log.end("s", "owner", outcome)
    for path in ("/lasting?stream=s&after=2", "/streams/s?after=2"):
        answer = await client.http.get(path)
        assert answer.status_code == 400
        assert answer.json()["detail"] == "the last event of the stream has the number 1: none can follow number 2"


async def test_a_reader_of_a_lost_stream_that_another_process_continues_looks_again_after_a_pause(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(sys.modules["app_toolkit.streaming.resumable"], "ADOPT_S", PATIENCE_S)

    async def adopt(stream: str, owner: str, last: int) -> bool:
        calls.append(stream)
        return False

    await client.log.begin("s", "a process that has died", "text/event-stream", None)
    await client.log.append([Append("s", "a process that has died", 1, (TOKEN,))])
    await client.log.end("s", "a process that has died", "lost")
    monkeypatch.setattr(client.log, "adopt", adopt)
    async with client.read("/lasting?stream=s&after=0") as reader:
        assert await reader.tokens(1) == texts(1, 1)
        await until(lambda: bool(calls))
        await client.http.get("/threads")
        assert calls == ["s"]


async def test_a_client_that_reads_gets_every_event_of_a_stream_that_is_larger_than_its_log(client: Client) -> None:
    async with client.read("/large/200") as reader:
        events = await reader.rest()
    assert [int(event["data"].split(" ", 1)[0].strip('"')) for event in events] == list(range(200))


async def test_an_exception_before_the_first_event_has_its_status_and_a_later_one_an_event(client: Client) -> None:
    answer = await client.http.get("/fails/0")
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (429, {"detail": "too much"}, "3")
    async with client.read("/fails/1") as reader:
        assert (await reader.event())["data"] == '"0"'
        (error,) = await reader.rest()
    assert error["event"] == "error"
    assert json.loads(error["data"])["error"] == "stream_failed"


async def test_a_key_has_one_active_stream(client: Client) -> None:
    client.model.allow(1)
    async with client.read("/chats/one", method="POST", json={"text": "hello"}) as reader:
        event = await reader.event()
        assert (event["event"], event["data"]) == ("token", '{"text":"hello token 1"}')
        second = await client.http.post("/chats/one", json={"text": "again"})
        assert (second.status_code, second.json()) == (409, {"detail": "the stream of 'one' has not ended"})
        client.model.allow(2)
        assert len(await reader.rest()) == 2
    async with client.read("/streams/one") as again:
        assert len(await again.rest()) == 3
    client.model.allow(3)
    assert (await client.http.post("/chats/one", json={"text": "again"})).headers[HEAD] != reader.id
    assert (await client.http.post("/chats/two", json={"wrong": 1})).status_code == 422


async def test_evicted_events_end_a_stream_with_an_error_event(client: Client) -> None:
    client.model.allow(12)
    async with client.read("/write/12") as reader:
        await reader.rest()
    async with client.read(f"/streams/{reader.id}?after=1") as late:
        (error,) = await late.rest()
    assert json.loads(error["data"])["error"] == "history_evicted"
    async with client.read(f"/streams/{reader.id}?after=2") as in_time:
        assert await in_time.tokens(10) == texts(3, 12)


async def test_json_lines_are_resumed_by_their_number(client: Client) -> None:
    answer = await client.http.get("/lines")
    assert (answer.text, answer.headers["content-type"]) == ('{"text":"é"}\n{"text":"b"}\n', "application/jsonl")
    rest = await client.http.get(f"/lines?stream={answer.headers[HEAD]}&after=1")
    assert rest.text == '{"text":"b"}\n'
    assert (await client.http.get("/threads")).text == "1\n2\n"


async def test_only_the_fields_of_the_declared_type_are_sent(client: Client) -> None:
    async with client.read("/accounts") as reader:
        assert [event["data"] for event in await reader.rest()] == ['{"name":"ada"}']
    assert (await client.http.get("/account-lines")).text == "{}\n"


@pytest.mark.parametrize(("path", "status"), [("/response", 201), ("/starlette", 200)])
async def test_a_route_that_returns_a_response_is_resumable(client: Client, path: str, status: int) -> None:
    async with client.read(path) as reader:
        events = [(event.get("event", ""), event["data"], event["id"]) for event in await reader.rest()]
        assert reader.response.status_code == status
    kinds = {"/response": ("", "x"), "/starlette": ("x", "")}[path]
    assert events == [(kinds[0], "a", f"{reader.id}:1"), (kinds[1], "b", f"{reader.id}:2")]
    async with client.read(path, headers={"last-event-id": f"{reader.id}:1"}) as again:
        assert [event["data"] for event in await again.rest()] == ["b"]


async def test_a_response_that_is_no_stream_is_passed_on(client: Client) -> None:
    answer = await client.http.get("/response?error=1")
    assert (answer.status_code, answer.json()) == (402, {"detail": "no"})
    assert HEAD not in answer.headers


async def test_a_lost_stream_ends_with_an_error_or_is_continued_by_its_route(client: Client) -> None:
    for path, rest in (("/write/3", None), ("/lasting", "after token 1")):
        await client.log.begin(path, "a process that has died", "text/event-stream", None)
        await client.log.append([Append(path, "a process that has died", 1, (TOKEN,))])
        await client.log.end(path, "a process that has died", "lost")
        async with client.read(f"{path}?stream={path}&after=0") as reader:
            assert await reader.tokens(1) == texts(1, 1)
            (last,) = await reader.rest()
        if rest is None:
            assert json.loads(last["data"])["error"] == "stream_lost"
        else:
            assert (json.loads(last["data"])["text"], last["id"]) == (rest, f"{path}:2")


async def test_a_log_that_fails_ends_its_streams_with_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> Never:
        raise NoReplica("no replica of 'stream-log' runs")

    client.model.allow(1)
    async with client.read("/write/3") as reader:
        assert await reader.tokens(1) == texts(1, 1)
        monkeypatch.setattr(client.log, "append", fail)
        client.model.allow(1)
        (error,) = await reader.rest()
    assert json.loads(error["data"])["error"] == "stream_lost"
    await until(lambda: not client.model.running)


async def test_a_log_that_cannot_be_read_ends_a_response_with_an_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> AsyncIterator[Never]:
        raise ConnectionError("the log is not reachable")
        yield

    client.model.allow(1)
    async with client.read("/write/1") as reader:
        await reader.rest()
    monkeypatch.setattr(client.log, "follow", fail)
    async with client.read(f"/streams/{reader.id}") as again:
        (error,) = await again.rest()
    assert json.loads(error["data"])["error"] == "stream_lost"


async def accepts(log: MemoryStreamLog) -> bool:
    """Whether a stream can begin."""
    id = secrets.token_hex(4)
    try:
        await log.begin(id, "owner", "text/event-stream", None)
    except StreamLogFull:
        return False
    await log.remove(id)
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize("path", ["/events", "/lines"])
async def test_streams_whose_clients_have_left_hold_no_slots_and_count_against_a_limit_of_their_own(path: str) -> None:
    log, finish, running = MemoryStreamLog(StreamLimits(max_unread_streams=6)), asyncio.Event(), 0
    options = DeploymentConfig(name="app", max_ongoing_requests=2, max_open_streams=2, max_queued_requests=0)
    app = Toolkit(deployment=options)

    async def write() -> AsyncIterator[int]:
        nonlocal running
        running += 1
        yield 1
        await finish.wait()
        running -= 1

    @app.get("/events", response_class=EventSourceResponse)
    @resumable(log=log)
    async def events() -> AsyncIterable[int]:
        async for number in write():
            yield number

    @app.get("/lines")
    @resumable(log=log)
    async def lines() -> AsyncIterable[int]:
        async for number in write():
            yield number

    @app.get("/ok")
    async def ok() -> str:
        return "ok"

    async with (
        asking(app) as http,
    ):

        async def status(path: str) -> int:
            async with http.stream("GET", path) as response:
                return response.status_code

        for count in range(1, 7):
            async with http.stream("GET", path) as response:
                assert response.status_code == 200, count
                await anext(response.aiter_lines())
            while await status("/ok") != 200:
                pass
        assert running == 6
        async with asyncio.timeout(PATIENCE_S):
            while await accepts(log):
                pass
        refused = await http.get(path)
        assert refused.status_code == 503
        assert "has 6 active streams whose readers have left" in refused.json()["detail"]
        finish.set()
        await until(lambda: not running)


DEADLINE_S = 0.3


def bounded_app(model: Model) -> Toolkit:
    """An app whose requests have a deadline, and whose log is called through a handle."""
    app = Toolkit(deployment=DeploymentConfig(name="app", request_timeout_s=DEADLINE_S))

    @app.get("/write/{tokens}", response_class=EventSourceResponse)
    @resumable(log=StreamLogDeployment.bind())
    async def write(tokens: int) -> AsyncIterable[Token]:
        async for token in model.write(tokens):
            yield token

    @app.get("/lines/{tokens}")
    @resumable()
    async def lines(tokens: int) -> AsyncIterable[Token]:
        async for token in model.write(tokens):
            yield token

    return app


async def outlast(began: float) -> None:
    """Wait until the deadline of a request has passed for long."""
    await until(lambda: time.monotonic() > began + 3 * DEADLINE_S)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("path", ["/write/3", "/lines/3"])
async def test_the_deadline_of_a_request_does_not_end_its_stream(path: str, leaves: bool) -> None:
    model = Model()
    async with (
        asyncio.timeout(PATIENCE_S),
        asking(bounded_app(model)) as http,
    ):
        status = 504
        while status == 504:  # the machine was too slow for the deadline
            model.permits = asyncio.Semaphore(1)
            began = time.monotonic()
            async with http.stream("GET", path) as response:
                if (status := response.status_code) == 504:
                    continue
                lines = response.aiter_lines()
                assert "token 1" in await anext(lines)
                if not leaves:
                    await outlast(began)
                    model.allow(2)
                    assert "token 3" in "".join([line async for line in lines])
        if leaves:
            await outlast(began)
            model.allow(2)
            rest = await http.get(path, params={"stream": response.headers[HEAD], "after": 1})
            while rest.status_code == 504:
                rest = await http.get(path, params={"stream": response.headers[HEAD], "after": 1})
            assert "token 3" in rest.text


async def test_the_first_event_must_come_before_the_deadline_of_its_request() -> None:
    model = Model()
    async with (
        asking(bounded_app(model)) as http,
    ):
        assert (await http.get("/write/3")).status_code == 504
    assert not model.running


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"linger_s": 0}, "linger_s = 0"),
        ({"max_duration_s": 100_000}, "max_duration_s = 100000"),
        ({"first_event_s": -1}, "first_event_s = -1"),
        ({"retry_ms": -1}, "retry_ms = -1"),
        ({"key": "chat"}, "has no parameter 'chat'"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], why: str) -> None:
    async def route() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigError, match=why):
        resumable(**options)(route)


def test_the_openapi_document_has_the_parameters_and_items_of_the_route() -> None:
    paths = app_of(FastAPI, Model(), MemoryStreamLog()).openapi()["paths"]
    assert [each["name"] for each in paths["/write/{tokens}"]["get"]["parameters"]] == ["tokens"]
    assert "Token" in json.dumps(paths["/write/{tokens}"]["get"]["responses"]["200"])
    assert "Token" in json.dumps(paths["/chats/{chat}"]["post"]["requestBody"])
