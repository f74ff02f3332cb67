"""Slots and stream places that open responses hold at a replica."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit import open_stream
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.replica.admission.streams import is_stream
from app_toolkit.types import Header, Message, Receive, Scope, Send

SSE: Header = (b"content-type", b"text/event-stream; charset=utf-8")
JSONL: Header = (b"content-type", b"application/jsonl")


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream ; charset=utf-8", True),
        (b"text/event-streams", False),
        (b"text/html", False),
    ],
)
def test_an_event_stream_is_known_by_its_content_type(content_type: bytes, expected: bool) -> None:
    fields = [(b"x-note", b"text/event-stream"), (b"content-type", content_type)]
    assert is_stream({"type": "http", "method": "GET"}, fields) is expected
    assert not is_stream({"type": "http", "method": "HEAD"}, fields)


def test_a_marked_endpoint_answers_with_a_stream_of_any_type() -> None:
    @open_stream
    async def lines() -> None: ...

    assert is_stream({"type": "http", "method": "GET", "endpoint": lines}, [JSONL])
    assert is_stream({"type": "http", "method": "POST", "endpoint": lines}, [])
    assert not is_stream({"type": "http", "method": "HEAD", "endpoint": lines}, [JSONL])


Command = Literal["stream", "response", "sized", "chunk", "end", "fail", "cancel"]
State = Literal["new", "admitted", "open", "kept", "plain", "over"]


@dataclass
class Exchange:
    """One request whose app does as the test says, and what should have become of it."""

    replica: Replica
    commands: "asyncio.Queue[Command]" = field(default_factory=asyncio.Queue)
    sent: list[Message] = field(default_factory=list)
    state: State = "new"
    task: "asyncio.Task[None] | None" = None

    async def app(self, send: Send) -> None:
        while True:
            match await self.commands.get():
                case "stream":
                    await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
                case "response":
                    await send({"type": "http.response.start", "status": 200, "headers": [JSONL]})
                case "sized":
                    length = (b"content-length", b"4")
                    await send({"type": "http.response.start", "status": 200, "headers": [SSE, length]})
                case "chunk":
                    await send({"type": "http.response.body", "body": b"data", "more_body": True})
                case "end":
                    await send({"type": "http.response.body", "body": b""})
                case _:
                    raise ValueError("out of stock")

    def begin(self) -> None:
        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError("the client stays")

        async def send(message: Message) -> None:
            self.sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "app": self.app}
        self.task = asyncio.create_task(self.replica.serve(scope, receive, send))

    def expect(self, command: Command, ongoing: int, streams: int) -> None:
        """What the command makes of it, while so many others are ongoing and so many streams are open."""
        room = self.replica.max_open_streams - streams
        match self.state, command:
            case "new", _:
                self.state = "admitted" if ongoing < self.replica.wait_queue.slots else "over"
            case "admitted", "stream":
                self.state = "open" if room > 0 else "kept"
            case "admitted", ("response" | "sized"):
                self.state = "plain"
            case _, ("end" | "fail" | "cancel"):
                self.state = "over"

    def does(self, command: Command) -> bool:
        """Whether the command makes sense now; others are left out, since servers refuse what they send."""
        if self.state in ("new", "admitted"):
            return self.state == "new" or command in ("stream", "response", "sized", "fail", "cancel")
        return self.state != "over" and command in ("chunk", "end", "fail", "cancel")


async def settled() -> None:
    """Every task has done what it can do now."""
    for _ in range(10):
        await asyncio.sleep(0)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await scope["app"](send)


@settings(max_examples=60)
@given(
    slots=st.integers(1, 3),
    streams=st.integers(0, 2),
    commands=st.lists(
        st.tuples(
            st.integers(0, 4), st.sampled_from(["stream", "response", "sized", "chunk", "end", "fail", "cancel"])
        ),
        max_size=40,
    ),
)
def test_each_request_is_counted_in_one_place_in_any_history(
    slots: int, streams: int, commands: list[tuple[int, Command]]
) -> None:
    asyncio.run(_happens(slots, streams, commands))


async def _happens(slots: int, streams: int, commands: list[tuple[int, Command]]) -> None:
    replica = Replica(app, name="r", max_ongoing_requests=slots, max_open_streams=streams)
    exchanges = [Exchange(replica) for _ in range(5)]

    def count(*states: State) -> int:
        return sum(exchange.state in states for exchange in exchanges)

    for number, command in commands:
        exchange = exchanges[number]
        if not exchange.does(command):
            continue
        is_new = exchange.state == "new"
        exchange.expect(command, count("admitted", "kept", "plain"), count("open"))
        if is_new:
            exchange.begin()
        elif command == "cancel":
            assert exchange.task is not None
            exchange.task.cancel()
        else:
            exchange.commands.put_nowait(command)
        await settled()
        statistics = replica.statistics()
        assert (statistics.ongoing, statistics.streams) == (count("admitted", "kept", "plain"), count("open"))
        heads = [message for message in exchange.sent if message["type"] == "http.response.start"]
        if exchange.state in ("open", "kept"):
            assert heads[0]["headers"] == [SSE, (b"x-app-toolkit-stream", exchange.state.encode())]
        elif exchange.state == "plain":
            assert not [name for head in heads for name, _ in head["headers"] if name == b"x-app-toolkit-stream"]
    tasks = [exchange.task for exchange in exchanges if exchange.task is not None]
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert ended == "busy" or isinstance(ended, ValueError | RuntimeError | asyncio.CancelledError)
    assert replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False)


@pytest.mark.anyio
async def test_a_replica_names_the_limits_that_it_has_reached_and_a_lower_limit_ends_no_stream() -> None:
    replica = Replica(app, name="r", max_ongoing_requests=1, max_open_streams=2)
    exchanges = [Exchange(replica) for _ in range(3)]
    for exchange in exchanges[:2]:
        exchange.begin()
        exchange.commands.put_nowait("stream")
        await settled()
    assert replica.statistics().reached == ("2 of 2 max_open_streams",)
    exchanges[2].begin()
    await settled()
    assert replica.statistics().reached == ("1 of 1 max_ongoing_requests", "2 of 2 max_open_streams")
    replica.limit(ReloadableOptions(max_ongoing_requests=2, max_open_streams=1))
    statistics = replica.statistics()
    assert (statistics.ongoing, statistics.streams, statistics.reached) == (1, 2, ("2 of 1 max_open_streams",))
    for exchange in exchanges:
        assert exchange.task is not None
        exchange.task.cancel()
    await asyncio.gather(*(exchange.task for exchange in exchanges if exchange.task), return_exceptions=True)
    assert repr(replica) == "<Replica r [0 ongoing, 0 streams, 0 websockets]>"


@pytest.mark.anyio
async def test_a_drain_waits_for_open_streams() -> None:
    replica = Replica(app, name="r", max_ongoing_requests=1)
    exchange = Exchange(replica)
    exchange.begin()
    exchange.commands.put_nowait("stream")
    await settled()
    assert not await replica.drain(0.01)
    draining = asyncio.create_task(replica.drain())
    exchange.commands.put_nowait("end")
    await settled()
    assert not draining.done(), "its coroutine has not ended"
    exchange.commands.put_nowait("fail")
    assert await draining
    assert exchange.task is not None
    with pytest.raises(ValueError, match="out of stock"):
        await exchange.task
