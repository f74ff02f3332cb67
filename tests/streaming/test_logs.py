"""The contract of stream logs: in memory, as a deployment, and in Redis."""

import asyncio
import importlib
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import redis
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.errors import ConfigError, StreamActive, StreamLogFull, StreamUnknown
from app_toolkit.streaming import MemoryStreamLog, StreamLog, StreamLogDeployment
from app_toolkit.streaming import log as memory_log
from app_toolkit.streaming import redis as redis_log
from app_toolkit.streaming.redis import RedisStreamLog
from app_toolkit.streaming.stream_log import (
    EVENT_BYTES,
    PAGE,
    PAGE_BYTES,
    Append,
    Outcome,
    Page,
    Renewal,
    StreamLimits,
    cost,
)
from tests import prepared
from tests.patience import PATIENCE_S, until
from tests.streaming.redis_server import RedisServer

pytestmark = pytest.mark.anyio

SSE = "text/event-stream"

LASTING = StreamLimits(lease_s=3 * PATIENCE_S)
"""No lease expires during a test."""

SHORT = StreamLimits(lease_s=0.2)
"""Every lease that is not renewed expires soon."""

AGAIN_S = 0.02

LARGE = """
import asyncio, psutil
from app_toolkit.streaming.stream_log import Append
from app_toolkit.streaming import MemoryStreamLog

MIB = 2**20

def mib():
    return psutil.Process().memory_info().rss / MIB

async def main():
    log = MemoryStreamLog()
    bytes(2 * MIB)  # after this, glibc takes smaller blocks from its heap
    for stream in "ab":
        await log.begin(stream, "owner", "text/event-stream", None)
    for number in range(1, 13):
        for stream in "ab":
            await log.append([Append(stream, "owner", number, (b"x" * MIB,))])
    before = mib()
    await log.remove("a")
    print(round(before - mib()))

asyncio.run(main())
"""
"""Prints how many MiB a process gives back when one of two streams of 12 MiB is removed."""

Logs = Callable[[StreamLimits], AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.end()


@pytest.fixture(params=["memory", "deployment", "redis"])
def logs(request: pytest.FixtureRequest) -> Logs:
    kind = request.param
    url = request.getfixturevalue("server").url if kind == "redis" else ""

    @asynccontextmanager
    async def opened(limits: StreamLimits) -> AsyncIterator[Any]:
        if kind == "memory":
            yield MemoryStreamLog(limits)
            return
        log: Any
        if kind == "deployment":
            log = StreamLogDeployment(limits)
            await log.start()
        else:
            log = RedisStreamLog(url, prefix=f"{secrets.token_hex(4)}:", limits=limits)
        try:
            yield log
        finally:
            await log.aclose()

    return opened


async def read(log: StreamLog, stream: str, after: int = 0) -> tuple[list[bytes], Outcome | None]:
    """The events after a number, and the outcome."""
    events: list[bytes] = []
    outcome = None
    async with aclosing(log.follow(stream, after)) as pages:
        async for page in pages:
            assert outcome is None, "the outcome is in the last page"
            assert page.first == after + len(events) + 1
            assert not page.evicted
            assert len(page.events) <= PAGE
            events += page.events
            outcome = page.outcome
    return events, outcome


async def next_page(pages: AsyncGenerator[Page, None]) -> Page:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(pages)


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until a condition that the log must be asked for is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - a condition that nobody tells of
            await asyncio.sleep(AGAIN_S)


async def append(log: StreamLog, stream: str, owner: str, first: int, events: Sequence[bytes]) -> Renewal | None:
    (renewal,) = await log.append([Append(stream, owner, first, tuple(events))])
    return renewal


async def renewed(log: StreamLog) -> Renewal:
    return found(await append(log, "s", "owner", 1, []))


def found(renewal: Renewal | None) -> Renewal:
    assert renewal is not None
    return renewal


async def unread_s(log: StreamLog) -> float:
    return (await renewed(log)).unread_s


async def is_read(log: StreamLog) -> bool:
    return await unread_s(log) == 0


async def is_unread(log: StreamLog) -> bool:
    return await unread_s(log) > 0


async def until_lost(log: Any, stream: str) -> None:
    async def is_lost() -> bool:
        if isinstance(log, MemoryStreamLog):
            log.look()
        return await log.outcome(stream, 10**9) == "lost"

    await eventually(is_lost)


async def until_removed(log: Any, stream: str) -> None:
    async def is_removed() -> bool:
        if isinstance(log, MemoryStreamLog):
            log.look()
        try:
            await log.media_type(stream)
        except StreamUnknown:
            return True
        return False

    await eventually(is_removed)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# Readers


async def test_a_reader_gets_stored_and_following_events_and_then_the_outcome(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [b"a", b"\0\xff\r\n"])
        async with aclosing(log.follow("s", 0)) as pages:
            assert await next_page(pages) == Page(1, (b"a", b"\0\xff\r\n"))
            following = asyncio.ensure_future(next_page(pages))
            await append(log, "s", "owner", 3, [b""])
            assert await following == Page(3, (b"",))
            await log.end("s", "owner", "finished")
            assert await next_page(pages) == Page(4, (), "finished")
            with pytest.raises(StopAsyncIteration):
                await next_page(pages)


async def test_a_reader_that_waits_gets_the_outcome(logs: Logs) -> None:
    async with logs(LASTING) as log, asyncio.TaskGroup() as tasks:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [b"a"])
        empty, ahead = tasks.create_task(read(log, "s", 1)), tasks.create_task(read(log, "s", 5))
        await eventually(partial(is_read, log))
        await log.end("s", "owner", "failed")
        assert await empty == ([], "failed")
        assert await ahead == ([], "failed")


@pytest.mark.parametrize("after", [0, 1, PAGE, 2 * PAGE + 6, 2 * PAGE + 7, 2 * PAGE + 9])
async def test_a_reader_may_begin_after_any_number(logs: Logs, after: int) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        events = numbered(1, 2 * PAGE + 7)
        await append(log, "s", "owner", 1, events)
        await log.end("s", "owner", "finished")
        assert await read(log, "s", after) == (events[after:], "finished")


async def test_every_one_of_many_readers_gets_each_event_once_and_in_order(logs: Logs) -> None:
    async with logs(LASTING) as log, asyncio.TaskGroup() as tasks:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, numbered(1, 10))
        readers = [tasks.create_task(read(log, "s", after)) for after in (*range(10), *range(10))]
        for number in range(11, 111):
            await append(log, "s", "owner", number, [b"%d" % number])
        await log.end("s", "owner", "finished")
        for after, reader in zip((*range(10), *range(10)), readers, strict=True):
            assert await reader == (numbered(after + 1, 110), "finished")


async def test_the_owner_learns_whether_its_stream_has_readers(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        first = await unread_s(log)

        async def is_unread_for_longer() -> bool:
            return await unread_s(log) > first + 0.1

        await eventually(is_unread_for_longer)
        await append(log, "s", "owner", 1, [b"a"])
        async with aclosing(log.follow("s", 0)) as pages:
            await next_page(pages)
            assert (await renewed(log)).unread_s == 0
            async with aclosing(log.follow("s", 0)) as others:
                await next_page(others)
            assert found(await append(log, "s", "owner", 2, [b"b"])).unread_s == 0
        await eventually(partial(is_unread, log))


async def test_a_cancelled_reader_does_not_count(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        reader = asyncio.create_task(read(log, "s"))
        await eventually(partial(is_read, log))
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        await eventually(partial(is_unread, log))


async def test_a_reader_with_a_cancelled_response_does_not_count(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_log, "LEAVE_S", PATIENCE_S)
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)

        async def respond(scope: anyio.CancelScope) -> None:
            with scope:  # as Starlette does, this scope cancels every `await`, also those of a `finally`
                await read(log, "s")

        scope = anyio.CancelScope()
        responding = asyncio.create_task(respond(scope))
        await eventually(partial(is_read, log))
        scope.cancel()
        await responding
        await eventually(partial(is_unread, log))  # the times of Redis are whole milliseconds: the first may be 0
        assert await unread_s(log) < redis_log.READER_S, "the reader left, it was not forgotten"


# Appends


async def test_a_repeated_append_changes_nothing(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        for _ in range(3):
            assert found(await append(log, "s", "owner", 1, [b"a", b"b"])).last == 2
        await append(log, "s", "owner", 2, [b"b", b"c"])
        await log.end("s", "owner", "finished")
        assert await append(log, "s", "owner", 4, [b"d"]) is None
        assert await read(log, "s") == ([b"a", b"b", b"c"], "finished")


async def test_an_append_that_skips_events_is_rejected(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        assert found(await append(log, "s", "owner", 2, [b"b"])).last == 0
        await log.end("s", "owner", "finished")
        assert await read(log, "s") == ([], "finished")


async def test_one_call_appends_to_many_streams_and_renews_others(logs: Logs) -> None:
    async with logs(LASTING) as log:
        streams = [f"s{number}" for number in range(1_200)]
        for stream in streams[::100]:
            await log.begin(stream, "owner", SSE, None)
        await log.stop("s100")
        appends = [
            Append(
                stream, "another" if stream == "s200" else "owner", 1, () if stream == "s300" else (stream.encode(),)
            )
            for stream in streams
        ]
        renewals = await log.append(appends)
        assert len(renewals) == len(streams)
        known = {stream: renewal for stream, renewal in zip(streams, renewals, strict=True) if renewal is not None}
        assert {stream: (renewal.last, renewal.stop) for stream, renewal in known.items()} == {
            stream: (0 if stream == "s300" else 1, stream == "s100") for stream in streams[::100] if stream != "s200"
        }
        await log.end("s1100", "owner", "finished")
        assert await read(log, "s1100") == ([b"s1100"], "finished")


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.lists(st.binary(max_size=200), max_size=9)),
        st.tuples(st.just("enter"), st.integers(0, 40)),
        st.tuples(st.just("read"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
    ),
    max_size=25,
)


@given(actions=ACTIONS)
@settings(max_examples=60, deadline=None)
async def test_all_logs_accept_and_keep_the_same_events_and_give_the_same_pages(
    server: RedisServer, actions: Any
) -> None:
    limits = StreamLimits(max_bytes=1_000, lease_s=LASTING.lease_s)
    in_redis = RedisStreamLog(server.url, prefix=f"{secrets.token_hex(4)}:", limits=limits)
    logs: list[StreamLog] = [MemoryStreamLog(limits), in_redis]
    try:
        histories = [await history(log, actions) for log in logs]
        assert histories[0] == histories[1]
    finally:
        await in_redis.aclose()


async def history(log: StreamLog, actions: Any) -> list[object]:
    """Do one thing after the other. Return what the log says."""
    seen: list[object] = []
    readers: list[AsyncGenerator[Page, None]] = []
    positions: list[int] = []
    last = 0
    await log.begin("s", "owner", SSE, None)
    for action, number, *events in actions:
        if action == "append":
            first = max(1, last + 1 - number)
            renewal = found(await append(log, "s", "owner", first, [b"%d" % first, *events[0]]))
            last = renewal.last
            seen.append((renewal.last, renewal.room, renewal.full))
        elif action == "enter":
            readers.append(log.follow("s", number))
            positions.append(number)
        elif number < len(readers) and action == "read" and positions[number] < last:
            page = await next_page(readers[number])
            positions[number] = page.first + len(page.events) - 1
            seen.append(page)
        elif number < len(readers) and action == "leave":
            await readers.pop(number).aclose()
            del positions[number]
    await log.end("s", "owner", "finished")
    for reader in readers:
        seen.append([page async for page in reader])
    return seen


def large(number: int) -> bytes:
    return b"%05d" % number + b"x" * (1_000 - EVENT_BYTES - 5)


TEN = StreamLimits(max_bytes=10_000, lease_s=300)
"""Room for ten large events of a stream, five of them ahead of its readers."""


async def test_a_stream_accepts_as_much_as_its_readers_and_its_limit_allow(logs: Logs) -> None:
    events = [large(number) for number in range(100)]
    async with logs(TEN) as log:
        await log.begin("s", "owner", SSE, None)
        unread = found(await append(log, "s", "owner", 1, events))
        assert (unread.last, unread.room, unread.full) == (10, 0, False)
        async with aclosing(log.follow("s", 0)) as pages:
            assert len((await next_page(pages)).events) == 10
            assert found(await append(log, "s", "owner", 11, events[10:])).last == 10
            waiting = asyncio.ensure_future(next_page(pages))

            async def has_room() -> bool:
                return found(await append(log, "s", "owner", 11, [])).room == 10_000

            await eventually(has_room)
            assert found(await append(log, "s", "owner", 11, events[10:])).last == 15
            assert await waiting == Page(11, tuple(events[10:15]))
        assert found(await append(log, "s", "owner", 16, events[15:])).last == 15
        async with aclosing(log.follow("s", 4)) as pages:
            assert await next_page(pages) == Page(6, tuple(events[5:15]), evicted=True)


async def test_a_local_reader_counts_until_the_owner_reports_its_end(
    logs: Logs,
) -> None:
    events = tuple(large(number) for number in range(20))

    async with logs(TEN) as log:
        await log.begin("s", "owner", SSE, None)

        async def report(first: int, read: int | None, *events: bytes) -> Renewal:
            (renewal,) = await log.append([Append("s", "owner", first, events, read)])
            return found(renewal)

        assert (await report(1, 0)).unread_s == 0
        assert (await report(1, 0, *events)).last == 5
        assert (await report(6, 3)).room == 3_000
        assert (await report(6, 5, *events[5:])).last == 8
        assert (await report(9, 5, *events[8:])).last == 10
        await report(11, None)

        async def is_left() -> bool:
            return (await report(11, None)).unread_s > 0

        await eventually(is_left)
        await report(11, 10)
        await log.end("s", "owner", "finished")
        assert (await read(log, "s"))[1] == "finished"


async def test_a_page_has_page_bytes_at_most_or_a_single_event(logs: Logs) -> None:
    small, huge = b"s" * (PAGE_BYTES // 4), b"h" * (2 * PAGE_BYTES)
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [*[small] * 5, huge, small])
        async with aclosing(log.follow("s", 0)) as pages:
            assert [len((await next_page(pages)).events) for _ in range(4)] == [4, 1, 1, 1]


async def test_an_event_that_is_larger_than_max_bytes_is_refused(logs: Logs) -> None:
    async with logs(TEN) as log:
        await log.begin("s", "owner", SSE, None)
        refused = found(await append(log, "s", "owner", 1, [b"x" * (10_001 - EVENT_BYTES)]))
        assert (refused.last, refused.full) == (0, True)
        assert found(await append(log, "s", "owner", 1, [b"x" * (10_000 - EVENT_BYTES)])).last == 1


async def test_events_that_readers_have_read_are_evicted(logs: Logs) -> None:
    async with logs(StreamLimits(max_bytes=2 * cost(b"a"), lease_s=300)) as log:
        await log.begin("s", "owner", SSE, None)
        async with aclosing(log.follow("s", 0)) as pages:
            for number, event in enumerate((b"a", b"b", b"c"), 1):

                async def accepts(number: int = number, event: bytes = event) -> bool:
                    return found(await append(log, "s", "owner", number, [event])).last == number

                following = asyncio.ensure_future(next_page(pages))
                await eventually(accepts)
                assert await following == Page(number, (event,))
        async with aclosing(log.follow("s", 0)) as pages:
            assert await next_page(pages) == Page(2, (b"b", b"c"), evicted=True)
        async with aclosing(log.follow("s", 1)) as pages:
            assert await next_page(pages) == Page(2, (b"b", b"c"))


# Ends


async def test_a_stop_reaches_the_owner_and_is_the_outcome(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        assert await log.stop("s")
        assert await log.stop("s")
        assert (await renewed(log)).stop
        assert found(await append(log, "s", "owner", 1, [b"a"])).stop
        await log.end("s", "owner", "finished")
        assert not await log.stop("s")
        assert await read(log, "s") == ([b"a"], "stopped")


async def test_the_first_end_counts_and_only_that_of_the_owner(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        await log.stop("s")
        await log.end("s", "other", "finished")
        assert await log.outcome("s", 0) is None
        await log.end("s", "owner", "failed")
        await log.end("s", "owner", "finished")
        await log.end("unknown", "owner", "finished")
        assert await log.outcome("s", 0) == "failed"


async def test_the_outcome_is_that_of_a_reader_that_has_seen_all_events(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", "application/jsonl", None)
        await append(log, "s", "owner", 1, [b"a", b"b"])
        assert await log.outcome("s", 2) is None
        await log.end("s", "owner", "finished")
        assert await log.last("s") == 2
        assert [await log.outcome("s", after) for after in (0, 1, 2, 3)] == [None, None, "finished", "finished"]
        assert await log.media_type("s") == "application/jsonl"


async def test_a_lost_stream_continues_with_the_first_that_adopts_it(logs: Logs) -> None:
    async with logs(SHORT) as log:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [b"a"])
        await until_lost(log, "s")
        assert await read(log, "s") == ([b"a"], "lost")
        assert await append(log, "s", "owner", 2, [b"x"]) is None
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [b"a"])
        assert not await log.adopt("s", "early", 1)
        for heir in ("second", "third"):
            await log.end("s", "owner" if heir == "second" else "second", "lost")
            assert not await log.adopt("s", heir, 0)
            assert await log.adopt("s", heir, 1)
            assert not await log.adopt("s", "late", 1)
        assert await append(log, "s", "owner", 2, [b"x"]) is None
        await log.end("s", "second", "finished")
        assert found(await append(log, "s", "third", 2, [b"b"])).last == 2
        async with aclosing(log.follow("s", 1)) as pages:
            assert await next_page(pages) == Page(2, (b"b",))
            await log.end("s", "third", "finished")
            assert await next_page(pages) == Page(3, (), "finished")


async def test_a_reader_that_waits_learns_that_the_stream_is_lost(logs: Logs) -> None:
    async with logs(SHORT) as log, asyncio.TaskGroup() as tasks:
        await log.begin("s", "owner", SSE, None)
        reader = tasks.create_task(read(log, "s"))
        await until_lost(log, "s")
        assert await reader == ([], "lost")


async def test_an_ended_stream_is_removed_and_its_key_is_free(logs: Logs) -> None:
    async with logs(StreamLimits(keep_s=0.1)) as log:
        await log.begin("s", "owner", SSE, "k")
        await append(log, "s", "owner", 1, [b"a"])
        await log.end("s", "owner", "finished")
        await until_removed(log, "s")
        assert await log.find("k") is None


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("stop", ()),
        ("last", ()),
        ("adopt", ("owner", 0)),
        ("media_type", ()),
        ("outcome", (0,)),
    ],
)
async def test_a_stream_that_the_log_does_not_have_is_unknown(
    logs: Logs, method: str, arguments: Sequence[object]
) -> None:
    async with logs(LASTING) as log:
        with pytest.raises(StreamUnknown, match="there is no stream 's'"):
            await getattr(log, method)("s", *arguments)


async def test_a_stream_can_be_removed_before_its_end(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, "k")
        await append(log, "s", "owner", 1, [b"a"])
        async with aclosing(log.follow("s", 0)) as pages:
            assert await next_page(pages) == Page(1, (b"a",))
            following = asyncio.ensure_future(next_page(pages))
            await asyncio.sleep(0)
            assert await log.remove("s")
            with pytest.raises(StreamUnknown):
                await following
        assert not await log.remove("s")
        assert await log.find("k") is None
        assert await append(log, "s", "owner", 2, [b"b"]) is None
        await log.begin("s", "other", SSE, "k")
        await append(log, "s", "other", 1, [b"c"])
        await log.end("s", "other", "finished")
        assert await read(log, "s") == ([b"c"], "finished")
        assert await log.remove("s")


async def test_no_lease_expires_in_memory_while_its_process_is_paused() -> None:
    now = 0.0
    log = MemoryStreamLog(SHORT, now=lambda: now)
    await log.begin("s", "owner", SSE, None)
    now = 100 * SHORT.lease_s
    await log.begin("t", "owner", SSE, None)
    assert not (await renewed(log)).stop


async def test_the_memory_of_old_streams_is_given_back_although_no_stream_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_log, "CLEANUP_INTERVAL_S", AGAIN_S)
    process, events = psutil.Process(), 2**10
    log = MemoryStreamLog(StreamLimits(max_bytes=2**27, keep_s=0.05))
    await log.begin("s", "owner", SSE, None)
    memory_log.trim()  # otherwise the events take the memory that earlier tests have left
    before = process.memory_info().rss
    pins = []
    for number in range(1, events + 1):
        await append(log, "s", "owner", number, [b"x" * 65_536])
        pins.append(bytes(1_024))  # without a trim, these keep the memory between them
    assert process.memory_info().rss - before > 50 * 2**20
    await log.end("s", "owner", "finished")
    await until_removed_by_itself(log)
    await until(lambda: process.memory_info().rss - before < 30 * 2**20)


def test_the_memory_of_large_events_is_given_back_at_once_although_others_lie_between_them() -> None:
    done = prepared.run(LARGE)
    assert int(done.stdout) >= 10


async def until_removed_by_itself(log: MemoryStreamLog) -> None:
    async def is_removed() -> bool:
        try:
            await log.media_type("s")
        except StreamUnknown:
            return True
        return False

    await eventually(is_removed)


async def test_a_stream_that_the_log_does_not_have_cannot_be_followed(logs: Logs) -> None:
    async with logs(LASTING) as log:
        with pytest.raises(StreamUnknown, match="there is no stream 's'"):
            await read(log, "s")


# Keys and numbers of streams


async def test_one_stream_with_a_key_is_active_at_a_time(logs: Logs) -> None:
    async with logs(LASTING) as log:
        assert await log.find("k") is None
        await log.begin("s", "owner", SSE, "k")
        await log.begin("other", "owner", SSE, "l")
        with pytest.raises(StreamActive, match="the stream of 'k' has not ended"):
            await log.begin("t", "owner", SSE, "k")
        await log.end("s", "owner", "lost")
        await log.begin("t", "owner", SSE, "k")
        assert await log.adopt("s", "heir", 0)
        assert [await log.find(key) for key in "kl"] == ["t", "other"]
        assert await log.outcome("s", 0) is None


async def test_the_key_of_a_lost_stream_is_free(logs: Logs) -> None:
    async with logs(SHORT) as log:
        await log.begin("s", "owner", SSE, "k")
        await until_lost(log, "s")
        await log.begin("t", "owner", SSE, "k")
        assert await log.find("k") == "t"


async def test_an_id_is_used_once(logs: Logs) -> None:
    async with logs(LASTING) as log:
        await log.begin("s", "owner", SSE, None)
        with pytest.raises(StreamActive, match="there is a stream 's' already"):
            await log.begin("s", "other", SSE, None)


async def test_ended_streams_without_readers_make_room_for_a_new_one(logs: Logs) -> None:
    async with logs(StreamLimits(max_streams=3, lease_s=LASTING.lease_s)) as log:
        for id in "abc":
            await log.begin(id, "owner", SSE, None)
            await append(log, id, "owner", 1, [b"1"])
        with pytest.raises(StreamLogFull, match="has 3 streams that are active or have readers"):
            await log.begin("d", "owner", SSE, None)
        async with aclosing(log.follow("b", 0)) as pages:
            await next_page(pages)
            for id in "bca":
                await log.end(id, "owner", "finished")
            await log.begin("d", "owner", SSE, None)
            with pytest.raises(StreamUnknown):
                await log.media_type("c")
            await log.begin("e", "owner", SSE, None)
            with pytest.raises(StreamLogFull):
                await log.begin("f", "owner", SSE, None)
        await log.begin("f", "owner", SSE, None)


async def test_streams_whose_readers_have_left_count_against_a_limit_of_their_own(logs: Logs) -> None:
    async with logs(StreamLimits(max_unread_streams=1, lease_s=LASTING.lease_s)) as log:
        for id in "ab":
            await log.begin(id, "owner", SSE, None)
            await append(log, id, "owner", 1, [b"1"])
        async with aclosing(log.follow("a", 0)) as pages:
            await next_page(pages)
            await log.begin("c", "owner", SSE, None)
        with pytest.raises(StreamLogFull, match="has 1 active streams whose readers have left"):
            await log.begin("d", "owner", SSE, None)
        async with aclosing(log.follow("a", 0)) as pages:
            await next_page(pages)
            await log.begin("d", "owner", SSE, None)
        with pytest.raises(StreamLogFull):
            await log.begin("e", "owner", SSE, None)
        await log.end("a", "owner", "stopped")
        await log.begin("e", "owner", SSE, None)


# Redis


async def test_events_and_streams_are_refused_while_redis_has_no_memory(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    log = RedisStreamLog(server.url, limits=LASTING)
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [b"1"])
        await client.config_set("maxmemory", 1)
        async with aclosing(log.follow("s", 0)) as pages:
            assert (await next_page(pages)).events == (b"1",)
            refused = found(await append(log, "s", "owner", 2, [b"2"]))
            assert (refused.last, refused.full, refused.unread_s) == (1, True, 0)
            assert found(await append(log, "s", "owner", 2, [])).last == 1
            with pytest.raises(StreamLogFull, match="Redis has no memory"):
                await log.begin("t", "owner", SSE, None)
            assert await log.stop("s")
            await client.config_set("maxmemory", 0)
            assert found(await append(log, "s", "owner", 2, [b"2"])).last == 2
            assert (await next_page(pages)).events == (b"2",)
            await client.config_set("maxmemory", 1)
            await log.end("s", "owner", "finished")
            assert await next_page(pages) == Page(3, (), "stopped")
    finally:
        await client.aclose()
        await log.aclose()
        server.end()


@pytest.mark.slow
async def test_readers_and_the_writer_survive_a_restart_of_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    log = RedisStreamLog(server.url, limits=LASTING)
    written, last = 0, 100_000

    async def write() -> None:
        nonlocal written
        while written < last:
            await append(log, "s", "owner", written + 1, [b"%d" % (written + 1)])
            written += 1
            await asyncio.sleep(0)
        await log.end("s", "owner", "finished")

    try:
        await log.begin("s", "owner", SSE, "k")
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read(log, "s")) for _ in range(8)]
            writer = tasks.create_task(write())
            await until(lambda: written >= 50)
            await asyncio.to_thread(server.end, kill=True)
            last = written + 200
            await asyncio.to_thread(server.start)
            await writer
            for reader in readers:
                assert await reader == (numbered(1, last), "finished")
    finally:
        await log.aclose()
        server.end()


async def test_calls_that_wait_for_a_connection_survive_a_restart_of_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage_s = 1.0
    monkeypatch.setattr(redis_log, "SOCKET_TIMEOUT_S", outage_s / 3)
    server = RedisServer(tmp_path)
    server.start()
    log = RedisStreamLog(server.url, limits=LASTING, max_connections=8)
    streams = [f"s{number}" for number in range(30)]
    try:
        for stream in streams:
            await log.begin(stream, "owner", SSE, None)
        server.end(kill=True)
        appends = [asyncio.create_task(append(log, stream, "owner", 1, [b"a"])) for stream in streams]
        await asyncio.sleep(outage_s)
        await asyncio.to_thread(server.start)
        assert [found(renewal).last for renewal in await asyncio.gather(*appends)] == [1] * len(streams)
    finally:
        await log.aclose()
        server.end()


async def test_more_readers_than_connections_wait_and_the_owner_is_not_delayed(server: RedisServer) -> None:
    log = RedisStreamLog(server.url, prefix="many:", limits=LASTING, max_connections=8)
    try:
        await log.begin("s", "owner", SSE, None)
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read(log, "s")) for _ in range(30)]
            for number in range(1, 31):
                await append(log, "s", "owner", number, [b"%d" % number])
            await log.end("s", "owner", "finished")
        assert {len(reader.result()[0]) for reader in readers} == {30}
    finally:
        await log.aclose()


@pytest.mark.slow
async def test_every_key_has_a_time_to_live_and_nothing_is_left_behind(server: RedisServer) -> None:
    limits = StreamLimits(keep_s=0.2, lease_s=0.2)
    log = RedisStreamLog(server.url, prefix="left:", limits=limits)
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        for id, key in (("s", "k"), ("t", None), ("u", "l")):
            await log.begin(id, "owner", SSE, key)
            await append(log, id, "owner", 1, [b"a"])
            async with aclosing(log.follow(id, 0)) as pages:
                await next_page(pages)
        await log.end("s", "owner", "finished")
        keys = [key async for key in client.scan_iter(match="left:*")]
        assert keys
        lives = [await client.pttl(key) for key in keys]
        # -2: it has expired between the two calls.
        assert all(0 < left <= redis_log.READER_S * 1_000 or left == -2 for left in lives), dict(
            zip(keys, lives, strict=True)
        )

        async def is_empty() -> bool:
            return not [key async for key in client.scan_iter(match="left:*")]

        await eventually(is_empty)
    finally:
        await client.aclose()
        await log.aclose()


async def test_a_reader_whose_client_takes_nothing_gives_signs_of_life(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_log, "BEAT_S", AGAIN_S)
    monkeypatch.setattr(redis_log, "LEAVE_S", PATIENCE_S)
    log = RedisStreamLog(server.url, prefix="slow:", limits=LASTING)
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        await log.begin("s", "owner", SSE, None)
        await append(log, "s", "owner", 1, [b"a"])
        async with aclosing(log.follow("s", 0)) as pages:
            await next_page(pages)
            ((reader, first),) = await client.zrange("slow:readers:s", 0, -1, withscores=True)

            async def is_later() -> bool:
                return bool(await client.zscore("slow:readers:s", reader) > first)

            await eventually(is_later)
        assert await client.zcard("slow:readers:s") == 0
    finally:
        await client.aclose()
        await log.aclose()


async def test_a_call_that_is_cancelled_at_any_moment_is_cancelled(server: RedisServer) -> None:
    log = RedisStreamLog(server.url, prefix="cancelled:", limits=LASTING)
    try:
        await log.begin("s", "owner", SSE, None)
        await renewed(log)
        for turns in range(60):
            call = asyncio.create_task(renewed(log))
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            if call.cancel():
                await asyncio.wait([call])
                assert call.cancelled()
    finally:
        await log.aclose()


async def test_a_client_of_the_caller_stays_open(server: RedisServer) -> None:
    client = redis.asyncio.Redis.from_url(server.url, max_connections=10)
    try:
        log = RedisStreamLog(client, prefix="given:", limits=LASTING)
        await log.begin("s", "owner", SSE, None)
        await log.aclose()
        assert await client.exists("given:meta:s")
    finally:
        await client.aclose()


async def test_a_server_that_is_not_there_is_an_error_of_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_log, "RETRIES", 1)
    log = RedisStreamLog(f"unix://{tmp_path}/nothing")
    with pytest.raises(redis.ConnectionError):
        await log.find("k")
    with pytest.raises(redis.ConnectionError):
        await read(log, "s")
    await log.aclose()


def test_the_retries_of_a_call_last_about_ten_seconds() -> None:
    waits = [
        min(redis_log.LAST_RETRY_S, redis_log.FIRST_RETRY_S * 2**number) for number in range(1, redis_log.RETRIES + 1)
    ]
    assert 9 < sum(waits) < 12


def test_a_wrong_argument_is_a_configuration_error() -> None:
    for url in ("nothing", "redis://:s3cret/word@cache:6379"):
        with pytest.raises(ConfigError, match="the URL of the server is invalid: it must begin with redis://") as error:
            RedisStreamLog(url)
        assert "s3cret" not in str(error.value)
    with pytest.raises(ConfigError, match="7 connections: must be at least 8"):
        RedisStreamLog("redis://localhost", max_connections=7)
    with pytest.raises(ConfigError, match="decode_responses"):
        RedisStreamLog("redis://localhost?decode_responses=true")


def test_without_the_package_redis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "app_toolkit.streaming.redis")
    with pytest.raises(ConfigError, match=r"pip install 'app-toolkit\[redis\]'"):
        importlib.import_module("app_toolkit.streaming.redis")
