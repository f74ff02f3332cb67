"""The scenarios. Each disturbs a running system and returns the measurements with their bounds."""

import asyncio
import hashlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import astuple, dataclass
from functools import partial
from itertools import cycle, islice
from random import Random
from statistics import median
from typing import Any

from app_toolkit.config.models import HTTPOptions
from benchmarks.chaos import client as outcome
from benchmarks.chaos.callers import callers_share_a_slot
from benchmarks.chaos.canary import a_canary_release_is_struck
from benchmarks.chaos.client import (
    Client,
    Done,
    closed_loop,
    closes_after,
    connected,
    hang_up,
    latency_ms,
    new_id,
    not_ok,
    ok,
    open_loop,
    read_slowly,
)
from benchmarks.chaos.conversations import conversations_are_struck
from benchmarks.chaos.hostile import floods, impatient_clients, large_slow_uploads, no_descriptors, slow_uploads
from benchmarks.chaos.ledger import Ledger, executed_twice, unended
from benchmarks.chaos.operations import the_controller_dies_during_operations
from benchmarks.chaos.probe import Probe, queued
from benchmarks.chaos.recovery import the_controller_dies, the_controller_is_struck
from benchmarks.chaos.report import Row
from benchmarks.chaos.resumable import abandoned, at_the_same_time, in_an_application, in_redis, larger_than_the_log
from benchmarks.chaos.shared import (
    RESTORED_S,
    SOME,
    Death,
    capacity_of,
    count_of,
    counted,
    killed,
    lost,
    ratio,
    unhurt,
)
from benchmarks.chaos.streams import followers_of_a_hub, idle_streams
from benchmarks.chaos.system import NOBODY, System, seconds_until
from benchmarks.chaos.updates import scale_down, updates, wrong_updates

MB = 1_000_000
CHUNK = 65_536
"""Bytes per chunk of the victim's endless streams."""
SEED = 1

SERVES_S = 1.5
"""Seconds for which a replica serves before it is killed again, however long its start took."""

STEADY_MB_S = 0.5
"""Faster memory growth than this in the second half of a run counts as a leak."""


@dataclass(frozen=True, slots=True)
class Scenario:
    bar: str
    title: str
    says: str
    """A description for the page."""
    run: Callable[[System, bool], Coroutine[Any, Any, list[Row]]]
    """The second argument is True for the short form."""
    options: tuple[str, ...] = ()
    """Options of `app-toolkit run`."""


# Processes are killed


async def replicas_die(system: System, short: bool) -> list[Row]:
    kills, every_s = (2, 4.0) if short else (6, 10.0)
    rng = Random(SEED)
    deaths: list[Death] = []
    restored_s: list[float] = []

    async def kill() -> None:
        for _ in range(kills):
            began = time.monotonic()
            victim = rng.choice(sorted((await asyncio.to_thread(system.replicas, "app")).values()))
            deaths.append(await killed(victim))
            restored_s.append(await seconds_until(partial(_are, system, 3, without=victim), 30))
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))

    async with system.client() as client:
        capacity = await capacity_of(client, short)
        seconds = kills * every_s
        gets, posts, _ = await asyncio.gather(
            open_loop(client.get, 0.3 * capacity, seconds), open_loop(client.post, 10, seconds), kill()
        )
    written = system.ledger.of(done.id for done in posts)
    lost_posts = not_ok(posts)
    return [
        lost("GET", gets),
        Row("GET: maximum latency", latency_ms(gets, 100), 5_000, "ms"),
        Row(
            "POST: outcomes other than success, 502 or 503",
            sum(done.outcome not in ("502", "503") for done in lost_posts),
            0,
            saw=counted(posts),
        ),
        Row("POST: failed although not in flight when a replica was killed", len(unhurt(posts, deaths)), 0),
        Row("POST: executed more than once", executed_twice(written.values()), 0),
        Row("POST: successful, but not in the ledger", sum(done.id not in written for done in ok(posts)), 0),
        Row("maximum time until three replicas ran again", max(restored_s), RESTORED_S, "s"),
    ]


async def the_only_replica_dies_again_and_again(system: System, short: bool) -> list[Row]:
    kills, every_s = (3, 5.0) if short else (12, 5.0)
    killed_at: list[float] = []
    restored_s: list[float] = []

    async def kill() -> None:
        for _ in range(kills):
            began = time.monotonic()
            (victim,) = (await asyncio.to_thread(system.replicas, "other")).values()
            killed_at.append((await killed(victim)).began)
            restored_s.append(await seconds_until(partial(_runs, system, "other", without=victim), 60))
            await asyncio.sleep(max(SERVES_S, began + every_s - time.monotonic()))

    async with system.client(patience_s=60) as client:
        killing = asyncio.create_task(kill())
        asked: list[Done] = []
        while not killing.done():
            asked += await open_loop(partial(client.get, path="/other/sleep/0"), 5, 1)
        await killing
    first, *later = restored_s
    return [
        lost("GET", asked),
        Row("kills of the only replica", len(killed_at), kills, at_least=True),
        Row("maximum time until a replica ran again", max(restored_s), RESTORED_S, "s", clocked=True),
        Row(
            "later times until a replica ran again, relative to the first",
            ratio(max(later) * 1e3, first * 1e3),
            4,
            "×",
            clocked=True,
        ),
        Row("GET: maximum latency relative to a start", ratio(latency_ms(asked, 100), max(restored_s) * 1e3), 2, "×"),
    ]


def _runs(system: System, ingress: str, without: int) -> bool:
    pids = system.replicas(ingress).values()
    return len(pids) == 1 and without not in pids


def _are(system: System, count: int, without: int) -> bool:
    pids = system.replicas("app").values()
    return len(pids) == count and without not in pids


async def the_proxy_dies(system: System, short: bool) -> list[Row]:
    before = await asyncio.to_thread(system.replicas, "app")
    (proxy,) = (await asyncio.to_thread(system.proxies)).values()
    async with system.client(patience_s=20) as client, AsyncExitStack() as stack:
        orphans = [new_id() for _ in range(20)]
        for id in orphans:
            connection = await connected(system.address)
            stack.callback(connection.close)
            await _send(connection, client.head("GET", "/sleep/60", id))
        await seconds_until(lambda: len(system.ledger.of(orphans)) == len(orphans), 5)
        os.kill(proxy, signal.SIGKILL)
        began = time.monotonic()
        served, cancelled = await asyncio.gather(
            _served_again(system, 15), seconds_until(lambda: unended(system.ledger.of(orphans).values()) == 0, 15)
        )
        await seconds_until(system.is_whole, 30)
        after = await asyncio.to_thread(system.replicas, "app")
        later = await open_loop(client.get, 50, 2 if short else 10)
    return [
        Row("time until a new connection was served", served - began, 5, "s"),
        Row("replica processes that started or ended", len(set(before.values()) ^ set(after.values())), 0),
        Row("orphaned handlers", len(system.ledger.of(orphans)), len(orphans), at_least=True),
        Row("time until every orphaned handler was cancelled", cancelled, 5, "s"),
        lost("GET afterwards", later),
    ]


async def _served_again(system: System, at_most: float) -> float:
    """Return when a new connection was first served; infinity if none was within `at_most` seconds."""
    until = time.monotonic() + at_most
    while time.monotonic() < until:
        async with system.client(patience_s=1) as client:  # a new client opens a new connection
            done = await client.get()
        if done.outcome == outcome.OK:
            return done.answered
        await asyncio.sleep(0.02)
    return math.inf


async def one_of_two_proxies_dies(system: System, short: bool) -> list[Row]:
    before = await asyncio.to_thread(system.replicas, "app")
    proxies = await asyncio.to_thread(system.proxies)
    killed = 0.0

    async def kill() -> None:
        nonlocal killed
        await asyncio.sleep(1)
        os.kill(sorted(proxies.values())[0], signal.SIGKILL)
        killed = time.monotonic()

    async def anew(due: float) -> Done:
        async with system.client() as client:
            return await client.get(due)

    found, _ = await asyncio.gather(open_loop(anew, 50, 5 if short else 20), kill())
    restored = await seconds_until(lambda: len(system.proxies()) == 2, 15)
    late = [done for done in found if done.sent > killed + 1]
    after = await asyncio.to_thread(system.replicas, "app")
    return [
        Row("proxies at the start", len(proxies), 2, at_least=True),
        Row(
            "new connections refused more than 1 s after the kill",
            count_of(late, outcome.REFUSED),
            0,
            saw=counted(found),
        ),
        lost("GET more than 1 s after the kill", late),
        Row("time from the end of the traffic until two proxies ran", restored, RESTORED_S, "s"),
        Row("replica processes that started or ended", len(set(before.values()) ^ set(after.values())), 0),
    ]


# Clients misbehave


async def clients_hang_up(system: System, short: bool) -> list[Row]:
    rng = Random(SEED)
    started: dict[str, list[str]] = {}
    async with system.client() as client:
        before = await _medians(client)
        heads = {
            "GET, async": ("GET", "/sleep/20", ()),
            "GET, queued": ("GET", "/other/sleep/20", ()),
            "GET, def": ("GET", "/nap/0.5", ()),
            "POST": ("POST", "/tx?pause=1", ()),
            "upload": ("POST", "/upload", ("content-length: 10000000",)),
            "stream": ("GET", "/stream", ()),
            "events": ("GET", "/sse", ()),
        }

        async def one(kind: str) -> None:
            method, path, fields = heads[kind]
            id = new_id()
            started.setdefault(kind, []).append(id)
            body = b"x" * 100_000 if kind == "upload" else b""
            await _hang_up_soon(system, client.head(method, path, id, *fields) + body, rng)

        for _ in range(1 if short else 5):
            async with asyncio.TaskGroup() as group:
                for kind in islice(cycle(heads), 300):
                    group.create_task(one(kind))
            ids = [id for each in started.values() for id in each]
            quiet, ended = await asyncio.gather(
                seconds_until(system.is_quiet, 10),
                seconds_until(lambda ids=ids: unended(system.ledger.of(ids).values()) == 0, 10),  # type: ignore[misc]
            )
        written = system.ledger.of(ids)
        left = await asyncio.to_thread(system.going_on)
        after = await _medians(client)
    posts = system.ledger.of(started["POST"]).values()
    return [
        Row("clients that disconnected", len(ids), 300, at_least=True, saw=f"{len(written)} handlers started"),
        Row("time until no request was waiting or in flight", quiet, 3, "s", saw=f"at the end: {left}", clocked=True),
        Row("time until every started handler ended", ended, 3, "s", clocked=True),
        Row("handlers whose end is not in the ledger", unended(written.values()), 0),
        Row("POST handlers that were cancelled", sum(entry.cancels for entry in posts), 0),
        Row("next 200 GET: median latency relative to the baseline", ratio(after, before), 2, "×", clocked=True),
    ]


async def _hang_up_soon(system: System, request: bytes, rng: Random) -> None:
    """Send a request, and disconnect after a random time of up to half a second."""
    patience_s, reset = rng.uniform(0, 0.5), rng.random() < 0.5
    connection = await connected(system.address)
    try:
        await _send(connection, request)
        await asyncio.sleep(patience_s)
    finally:
        hang_up(connection, reset)


async def _medians(client: Client) -> float:
    return median([(await client.get()).latency_s for _ in range(200)]) * 1e3


async def clients_hang_up_behind_calls(system: System, short: bool) -> list[Row]:
    paths = ("/call/sleep/20", "/call/nap", "/call/write", "/call/in-a-thread")
    return await _hang_up_behind(system, short, paths, ("in_proxies", "in_handles", "in_wait_queues", "ongoing"))


async def clients_hang_up_behind_batches(system: System, short: bool) -> list[Row]:
    paths = ("/batch/sleep", "/batch/nap", "/batch/write", "/batch/at-both-ends")
    return await _hang_up_behind(
        system, short, paths, ("in_proxies", "in_handles", "in_wait_queues", "ongoing", "buffered")
    )


async def _hang_up_behind(system: System, short: bool, paths: Sequence[str], places: Sequence[str]) -> list[Row]:
    """Let clients of these paths disconnect; expect that requests are observed in each of these places."""
    rng = Random(SEED)
    ids: list[str] = []
    seen = NOBODY
    quiet = ended = 0.0
    # The ingress "other" runs and queues 20 requests; it runs fewer requests than the model.
    kinds = [*["/other/call/sleep/20"] * 20, *islice(cycle(paths), 380)]

    async def look() -> None:
        nonlocal seen
        while not gone.is_set():
            seen |= await asyncio.to_thread(system.going_on)

    async def one(path: str) -> None:
        id = new_id()
        ids.extend((id, f"{id}/model"))
        await _hang_up_soon(system, client.head("GET", path, id), rng)

    async with system.client() as client:
        before = await _called(client)
        for _ in range(1 if short else 5):
            gone = asyncio.Event()
            looking = asyncio.create_task(look())
            async with asyncio.TaskGroup() as group:
                for path in rng.sample(kinds, len(kinds)):
                    group.create_task(one(path))
            gone.set()
            emptied, over, _ = await asyncio.gather(
                seconds_until(system.is_quiet, 10),
                seconds_until(lambda: unended(system.ledger.of(ids).values()) == 0, 10),
                looking,
            )
            quiet, ended = max(quiet, emptied), max(ended, over)
        left = await asyncio.to_thread(system.going_on)
        written = system.ledger.of(ids)
        after = await _called(client)
    calls = sum(id.endswith("/model") for id in written)
    return [
        Row("clients that disconnected", len(ids) // 2, len(kinds), at_least=True),
        Row("handlers that started", len(written) - calls, 1, at_least=True),
        Row("calls that started", calls, 1, at_least=True),
        Row(
            "places in which requests or calls were observed",
            sum(getattr(seen, place) > 0 for place in places),
            len(places),
            at_least=True,
            saw=f"at most {seen}",
            clocked=True,  # on a busy machine, few snapshots are taken
        ),
        Row("maximum time until no request or call was waiting or in flight", quiet, 2, "s", clocked=True),
        Row("maximum time until every started handler and call ended", ended, 2, "s", clocked=True),
        Row(
            "places in which requests or calls remained",
            sum(each > 0 for each in astuple(left)),
            0,
            saw=str(left),
        ),
        Row("handlers and calls whose end is not in the ledger", unended(written.values()), 0),
        lost("next 200 calls", after),
        Row(
            "next 200 calls: median latency relative to the baseline",
            ratio(latency_ms(after, 50), latency_ms(before, 50)),
            2,
            "×",
            clocked=True,
        ),
    ]


async def _called(client: Client) -> list[Done]:
    return [await client.get(path="/call/sleep/0") for _ in range(200)]


async def slow_readers(system: System, short: bool) -> list[Row]:
    readers, seconds = 20, 4 if short else 60
    kinds = {
        "/stream": (),
        "/sse": (),
        "/ws": (
            "upgrade: websocket",
            "connection: Upgrade",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
    }
    async with system.client() as client, AsyncExitStack() as stack:
        rate = 0.3 * await capacity_of(client, short)
        before = await open_loop(client.get, rate, 2 if short else 10)
        probe = await stack.enter_async_context(Probe(await asyncio.to_thread(system.processes), seconds / 60))
        ids, readings, ports, over = [], [], [], asyncio.Event()
        for path, fields in kinds.items():
            for _ in range(readers):
                connection = await connected(system.address, window=16_384)
                stack.callback(connection.close)
                ids.append(new_id())
                await _send(connection, client.head("GET", path, ids[-1], *fields))
                ports.append(connection.getsockname()[1])
                readings.append(read_slowly(connection, 1_024, over))
        reading = asyncio.gather(*readings)
        # At first, every stream fills the buffers between handler and client at full speed.
        halted = await seconds_until(_Halted(system.ledger, ids), 10)
        during = await open_loop(client.get, rate, seconds)
        over.set()
        read = await reading
        # The kernel bounds its socket buffers per connection; they are not memory of the processes.
        held = queued(system.address[1])
        written = system.ledger.of(ids)
    ended = await seconds_until(lambda: unended(system.ledger.of(ids).values()) == 0, 5)
    ahead = [
        entry.chunks * CHUNK - consumed - held[port]
        for id, port, consumed in zip(ids, ports, read, strict=True)
        if consumed is not None and (entry := written.get(id))
    ]
    return [
        Row("readers that were served until the end", len(ahead), 3 * readers, at_least=True),
        Row("time until the streams produced no more than the clients read", halted, 10, "s"),
        Row("memory of all processes and /dev/shm: growth", probe.growth(), 64, "MB", saw=_by_process(probe)),
        # A few seconds are too short to detect a leak.
        *([] if short else [_steady(probe)]),
        Row(
            "maximum data of a stream that was neither read nor in a kernel socket buffer",
            max(ahead, default=math.inf) / MB,
            4,
            "MB",
        ),
        lost("other traffic, GET", during),
        Row(
            "other traffic: p99 latency relative to the baseline",
            ratio(latency_ms(during, 99), latency_ms(before, 99)),
            2,
            "×",
            clocked=True,
        ),
        Row("time until every stream ended after the clients disconnected", ended, 5, "s"),
    ]


class _Halted:
    """Whether the streams have nearly stopped producing: a client that reads 1 KB/s consumes a chunk per minute."""

    def __init__(self, ledger: Ledger, ids: Sequence[str]) -> None:
        self._ledger, self._ids = ledger, ids
        self._seen = (time.monotonic(), -1)

    def __call__(self) -> bool:
        now, chunks = time.monotonic(), sum(entry.chunks for entry in self._ledger.of(self._ids).values())
        since, before = self._seen
        if now - since < 0.5:
            return False
        self._seen = now, chunks
        return 0 < chunks <= before + len(self._ids) // 4


async def big_upload(system: System, short: bool) -> list[Row]:
    size, after, rate = (64 * MB, 2, 20 * MB) if short else (1_000 * MB, 10, 20 * MB)
    pids = await asyncio.to_thread(system.processes)
    proxies = await asyncio.to_thread(system.proxies)
    rows = []
    async with system.client() as client:
        for title, query in (("read at 20 MB/s", f"rate={rate}"), (f"not read for {after} s", f"after={after}")):
            async with Probe(pids, every_s=0.2) as probe:
                upload = _Upload(size)
                right = await upload.run(system.address, client, f"/upload?{query}", look_after=after * 0.8)
            rows += [
                Row(f"{title}: correct SHA-256", right, 1, at_least=True),
                Row(f"{title}: memory growth of the proxy", probe.growth(proxies), 64, "MB"),
                Row(
                    f"{title}: maximum memory growth of a replica",
                    max(probe.growth((id,)) for id in pids if id not in proxies),
                    128,
                    "MB",
                ),
            ]
    return [*rows, Row("data accepted from the client before the handler read", upload.taken_early / MB, 8, "MB")]


class _Upload:
    """An upload of random bytes that differ in every piece. The client does not keep the pieces."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._sent = 0
        self.taken_early = 0

    async def run(self, address: tuple[str, int], client: Client, path: str, look_after: float) -> bool:
        """Return whether the response has the correct digest. Record after `look_after` seconds what was accepted."""
        loop, rng, sha = asyncio.get_running_loop(), Random(SEED), hashlib.sha256()
        # A small send buffer: bytes in the client's kernel have not been accepted by the server.
        connection = await connected(address, window=65_536)
        look = loop.call_later(look_after, self._look)
        try:
            await _send(connection, client.head("POST", path, new_id(), f"content-length: {self._size}"))
            noise = rng.randbytes(MB)
            while self._sent < self._size:
                piece = self._sent.to_bytes(8) + noise[8 : self._size - self._sent]
                sha.update(piece)
                for start in range(0, len(piece), 65_536):
                    part = piece[start : start + 65_536]
                    await loop.sock_sendall(connection, part)
                    self._sent += len(part)
            async with asyncio.timeout(60):
                answer = b""
                while b"}" not in answer:
                    got = await loop.sock_recv(connection, 65_536)
                    if not got:
                        return False
                    answer += got
            return sha.hexdigest().encode() in answer
        except (ConnectionError, TimeoutError):
            return False
        finally:
            look.cancel()
            connection.close()

    def _look(self) -> None:
        self.taken_early = self._sent


async def slow_connections(system: System, short: bool) -> list[Row]:
    share = 5 if short else 1
    head_s, body_s = HTTPOptions().head_timeout_s, HTTPOptions().body_grace_s
    upgrade = "upgrade: websocket\r\nconnection: Upgrade\r\ncontent-length: 100000\r\n\r\n"
    crowd: dict[str, tuple[int, bytes, bytes, float]] = {
        # Number of connections, data sent at once, data sent byte by byte, timeout of the server in seconds.
        "incomplete request heads": (500 // share, b"GET / HTTP/1.1\r\nHost: ", b"a" * 30, head_s),
        "slow request bodies": (
            100 // share,
            b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
            b"a" * 30,
            body_s,
        ),
        "idle": (100 // share, b"", b"", head_s),
        "POST with an Upgrade header": (50 // share, f"POST /upload HTTP/1.1\r\nHost: a\r\n{upgrade}".encode(), b"", 0),
    }
    pids = await asyncio.to_thread(system.proxies)
    async with system.client() as client:
        await capacity_of(client, short=True)  # open the file descriptors that stay open before counting
        before = _fds(pids)
        tasks: dict[str, list[asyncio.Task[float | None]]] = {}
        async with asyncio.TaskGroup() as group:
            traffic = group.create_task(open_loop(client.get, 50, max(head_s, body_s) + 2))
            for kind, (count, start, drip, timeout_s) in crowd.items():
                for _ in range(count):
                    connection = await connected(system.address)
                    await _send(connection, start.replace(b" /upload", f" {system.prefix}/upload".encode()))
                    closing = closes_after(connection, timeout_s + 10, drip, begun=time.monotonic())
                    tasks.setdefault(kind, []).append(group.create_task(closing))
        back = await seconds_until(lambda: _fds(pids) <= before + SOME, 5)
    rows = []
    for kind, (count, _, _, timeout_s) in crowd.items():
        seconds = [task.result() for task in tasks[kind]]
        slowest = None if None in seconds else max(each for each in seconds if each is not None)
        rows.append(Row(f"{kind}, {count} connections: time until all were closed", slowest, timeout_s + 2, "s"))
    return [
        *rows,
        lost("other traffic, GET", traffic.result()),
        Row(f"time until the proxy had at most {SOME} more file descriptors than before", back, 5, "s"),
    ]


def _fds(pids: dict[str, int]) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids.values())


async def oversized_heads(system: System, short: bool) -> list[Row]:
    start = f"GET {system.prefix}/".encode()
    end = b" HTTP/1.1\r\nHost: a\r\n"
    heads: dict[str, Iterable[bytes]] = {
        "45 MB of headers": (start + end, *(b"x-%d: %b\r\n" % (n, b"a" * 1_000) for n in range(45_000))),
        "a header value of 25 MB": (start + end + b"x: ", *(b"a" * MB for _ in range(25))),
        "a URL of 25 MB": (start, *(b"a" * MB for _ in range(25))),
        "101 headers": (start + end, *(b"x-%d: 1\r\n" % n for n in range(101)), b"\r\n"),
    }
    rows = []
    async with Probe(await asyncio.to_thread(system.proxies), every_s=0.05) as probe:
        for _ in range(1 if short else 10):
            for kind, pieces in heads.items():
                status, seconds = await asyncio.to_thread(_send_head, system.address, pieces)
                rows += [
                    Row(f"{kind}: rejected", status in (400, 414, 431), 1, at_least=True, saw=str(status)),
                    Row(f"{kind}: time until the response", seconds, 1, "s"),
                ]
    worst: dict[str, Row] = {}
    for row in rows:
        known = worst.get(row.says)
        if known is None or (known.holds and not row.holds):
            worst[row.says] = row
    async with system.client() as client:
        return [
            *worst.values(),
            Row("memory of the proxy: growth", probe.growth(await asyncio.to_thread(system.proxies)), 10, "MB"),
            lost("GET afterwards", await open_loop(client.get, 50, 1)),
        ]


def _send_head(address: tuple[str, int], pieces: Iterable[bytes]) -> tuple[int | None, float | None]:
    """Send as much as the server accepts. Return the status of the response and the seconds until it was received."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=10) as connection:
        answer = b""
        with suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(OSError):
            while b"\r\n" not in answer and (got := connection.recv(65_536)):
                answer += got
        if not answer.startswith(b"HTTP/1.1 "):
            return None, None
        return int(answer[9:12]), time.monotonic() - began


# Overload


async def overload(system: System, short: bool) -> list[Row]:
    service_s, bound = 0.05, 16
    path = f"/other/sleep/{service_s}"
    async with system.client() as client:
        get = partial(client.get, path=path)
        seconds = 2 if short else 15
        capacity = len(ok(await closed_loop(get, 8, seconds))) / seconds
        baseline = await open_loop(get, 0.3 * capacity, seconds)
        async with Probe(await asyncio.to_thread(system.processes), every_s=0.2) as probe:
            seconds = 3 if short else 30
            found = await open_loop(get, 10 * capacity, seconds)
        usual = latency_ms(baseline, 99)
        began, back = time.monotonic(), math.inf
        while back == math.inf and time.monotonic() - began < 15:
            since = time.monotonic() - began
            window = await open_loop(get, 0.3 * capacity, 1)
            if not not_ok(window) and ratio(latency_ms(window, 99), usual) <= 1.5:
                back = since
    accepted, rejected = ok(found), not_ok(found)
    polite = [done for done in rejected if done.outcome == "503" and done.retry_after]
    return [
        Row("C", capacity, 10, "requests/s", at_least=True, saw="4 concurrent requests of 50 ms", clocked=True),
        Row("goodput relative to C", len(accepted) / seconds / capacity, 0.9, "×", at_least=True, clocked=True),
        Row("rejections other than 503 with Retry-After", len(rejected) - len(polite), 0, saw=counted(found)),
        Row("rejected requests: p99 latency", latency_ms(rejected, 99), 250, "ms", clocked=True),
        Row(
            "accepted requests: p99 latency",
            latency_ms(accepted, 99),
            1.5 * (bound / capacity + service_s) * 1e3,
            "ms",
            clocked=True,
        ),
        Row("memory of all processes: growth", probe.growth(), 50, "MB"),
        Row(
            "time until p99 latency was near the baseline again",
            back,
            5,
            "s",
            saw="at most 1.5 times the baseline",
            clocked=True,
        ),
    ]


# Controls: faults that the measurement must detect


async def controls(system: System, short: bool) -> list[Row]:
    async with system.client() as client:
        pids = await asyncio.to_thread(system.processes)
        async with Probe(pids, every_s=0.1) as probe:
            await open_loop(partial(client.get, path="/leak/100000"), 10, 6 if short else 20)
        doubled = [await client.post(path="/twice") for _ in range(5)]
        sound = [await client.post() for _ in range(5)]
    lossy = await requests_to_a_lossy_server(3_000)
    return [
        Row("detected: a leak of 1 MB/s", not _steady(probe).holds, 1, at_least=True, saw=f"{probe.slope():.2f} MB/s"),
        Row(
            "detected, of 5 transactions that were executed twice",
            executed_twice(system.ledger.of(done.id for done in doubled).values()),
            5,
            at_least=True,
        ),
        Row(
            "wrongly detected, of 5 transactions that were executed once",
            executed_twice(system.ledger.of(done.id for done in sound).values()),
            0,
        ),
        Row("detected, of 3 lost responses in 3,000", len(not_ok(lossy)), 3, at_least=True),
        Row("wrongly detected, of the other responses", len(not_ok(lossy)) - 3, 0),
    ]


async def requests_to_a_lossy_server(count: int, every: int = 1_000) -> list[Done]:
    """Send `count` requests in an open loop to a server that closes the connection for one request in `every`."""
    numbers = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal numbers
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                numbers += 1
                if numbers % every == 0:
                    break
                id = head.partition(b"x-ledger-id: ")[2].partition(b"\r\n")[0]
                body = b'{"id":"%b"}' % id
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        group.create_task(serve(reader, writer))  # ends when the client disconnects

    async with (
        await asyncio.start_server(accepted, "127.0.0.1", 0) as server,
        asyncio.TaskGroup() as group,
        Client(server.sockets[0].getsockname()) as client,
    ):
        return await open_loop(client.get, 1_000, count / 1_000)


# Shared by several scenarios


async def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):  # the server may close early; its response is read afterwards
        await asyncio.get_running_loop().sock_sendall(connection, data)


def _by_process(probe: Probe) -> str:
    return ", ".join(f"{name.rpartition('/')[2]} {probe.growth((name,)):.0f}" for name in probe.samples[0].rss)


def _steady(probe: Probe) -> Row:
    return Row("memory of all processes in the second half: growth", probe.slope(), STEADY_MB_S, "MB/s")


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "B1",
        "replicas are killed",
        "SIGKILL repeatedly ends one of three replicas, while clients send GET requests at 0.3 C and ten POST "
        "requests per second.",
        replicas_die,
    ),
    Scenario(
        "B1 (again)",
        "the only replica is killed again and again",
        "SIGKILL ends the only replica of a deployment every five seconds, while clients send five GET requests per "
        "second, which wait for the next replica.",
        the_only_replica_dies_again_and_again,
    ),
    Scenario(
        "B2",
        "the only proxy is killed",
        "SIGKILL ends the only proxy, while twenty handlers run for its clients.",
        the_proxy_dies,
    ),
    Scenario(
        "B2 (two)",
        "one of two proxies is killed",
        "Two proxies share a port. SIGKILL ends one of them, while clients open fifty new connections per second.",
        one_of_two_proxies_dies,
        options=("--proxies-per-node", "2"),
    ),
    Scenario(
        "B3",
        "the controller is killed",
        "SIGKILL repeatedly ends the controller, while clients send GET requests at 0.3 C.",
        the_controller_dies,
    ),
    Scenario(
        "B4",
        "the controller is killed during updates",
        "The updates and the traffic are those of B7; there are two proxies. In the first successful update, the "
        "controller is killed while new replicas start; in the second one, it is killed together with a new replica "
        "after a new replica runs; in the third one, SIGSTOP stops it for 40 s while old replicas drain. In the "
        "failing updates, the controller is killed after the first failure, during the rollback, and while a "
        "constructor hangs.",
        the_controller_is_struck,
        options=("--proxies-per-node", "2"),
    ),
    Scenario(
        "B7",
        "successful and failing updates",
        "`deploy --wait` repeatedly updates an application of two deployments, one of which calls the other: first to "
        "three working versions in succession, then to one whose constructor raises, one whose health check fails "
        "after 3 s, and one whose constructor never returns. Meanwhile, clients send GET requests at a fifth of C and "
        "ten POST requests per second, open a new stream of 15 s every second, and exchange messages over eight "
        "WebSockets.",
        updates,
    ),
    Scenario(
        "B8",
        "scaling down",
        "A deployment is scaled from four replicas to one under the traffic of B7.",
        scale_down,
    ),
    Scenario(
        "B9",
        "clients disconnect",
        "300 concurrent clients send requests whose handlers sleep, wait in a queue, block a thread, read an upload "
        "or stream. Each client disconnects after a random time of up to half a second; half of them reset the "
        "connection.",
        clients_hang_up,
    ),
    Scenario(
        "B9 (calls)",
        "clients disconnect during calls",
        "400 concurrent clients send requests whose handlers call a model, which sleeps, blocks a thread or streams. "
        "Each client disconnects after a random time of up to half a second; some requests are then waiting in a "
        "proxy, in a handle or at a replica.",
        clients_hang_up_behind_calls,
    ),
    Scenario(
        "B9 (batches)",
        "clients disconnect during batched calls",
        "As in B9 (calls), but the model processes batches, and so does one of the handlers. Some clients disconnect "
        "while their requests wait for a batch to close.",
        clients_hang_up_behind_batches,
    ),
    Scenario(
        "B10",
        "slow readers",
        "Sixty clients read at 1 KB per second: twenty of them an endless stream, twenty endless server-sent events, "
        "and twenty an endless series of WebSocket messages.",
        slow_readers,
    ),
    Scenario(
        "streams",
        "more open streams than request slots",
        "Three replicas have 300 request slots. Clients open three times as many event streams, which stay silent "
        "after their first event, and other clients send GET requests at 0.3 C. Then all streaming clients "
        "disconnect; half of them reset the connection.",
        idle_streams,
    ),
    Scenario(
        "streams (calls)",
        "more streaming calls than request slots",
        "Twenty clients follow a topic: their requests call a method that yields the messages of a deployment with "
        "sixteen request slots. Meanwhile, others publish messages at the same deployment.",
        followers_of_a_hub,
    ),
    Scenario(
        "B18",
        "resumable streams",
        "200 resumable streams, whose events are in another application, are read while their clients leave and "
        "come back, the proxy is killed, an update drains their replicas, and the controller is killed. Then clients "
        "leave twenty generators alone, and read 10,000 short streams.",
        in_an_application,
    ),
    Scenario(
        "B18 (Redis)",
        "resumable streams in Redis",
        "The same with the events in Redis, which is killed and started again during the update.",
        in_redis,
    ),
    Scenario(
        "B18 (large)",
        "resumable streams that are larger than their log",
        "Clients read thirty streams of 48 MiB, in events of 1 MiB, at the same time, and one stream of 4,000 events "
        "of 8 KiB. Their log keeps 4 MiB of each stream, and 64 MiB of all streams.",
        larger_than_the_log,
    ),
    Scenario(
        "B18 (abandoned)",
        "resumable streams whose clients leave",
        "1,150 clients begin a stream each, and leave after its first event, while other clients send GET requests. "
        "The replica has 100 request slots, and its log accepts no stream while 200 have no reader.",
        abandoned,
    ),
    Scenario(
        "B18 (busy)",
        "many resumable streams at the same time",
        "500 clients read a stream of 20 events per second each, from one replica, whose log is in another process.",
        at_the_same_time,
    ),
    Scenario(
        "B11",
        "large uploads",
        "A client uploads one body to a handler that reads 20 MB per second, and one to a handler that starts to read "
        "after a delay.",
        big_upload,
    ),
    Scenario(
        "B12",
        "overload",
        "A handler takes 50 ms. At most four requests run and sixteen wait, so that these limits determine the "
        "capacity, not the machine. Clients send ten times as many requests as the capacity.",
        overload,
    ),
    Scenario(
        "fair",
        "proxies share one replica",
        "Eight proxies share a port and forward to one replica that serves one request at a time. Four clients per "
        "proxy send requests without a pause.",
        callers_share_a_slot,
        options=("--proxies-per-node", "8"),
    ),
    Scenario(
        "B13",
        "slow and idle connections",
        "Clients open connections that never complete a request head, send a body one byte at a time, send nothing, "
        "or send an upgrade request with a body.",
        slow_connections,
    ),
    Scenario(
        "B14",
        "oversized request heads",
        "Clients send request heads with 45 MB of headers, a header value of 25 MB, a URL of 25 MB, and 101 headers.",
        oversized_heads,
    ),
    Scenario(
        "B15",
        "slow uploads",
        "105 clients upload a small body at 650 bytes per second each to an application with one replica, which has "
        "100 request slots.",
        slow_uploads,
    ),
    Scenario(
        "B15 (large)",
        "slow uploads of larger bodies",
        "105 clients upload a body of 200 KB at 650 bytes per second each to an application with one replica, which "
        "has 100 request slots.",
        large_slow_uploads,
    ),
    Scenario(
        "B16",
        "floods of WebSocket frames",
        "A client sends empty fragments, pings or pongs over a WebSocket as fast as possible, and reconnects whenever "
        "the server closes the connection. The application has one replica.",
        floods,
    ),
    Scenario(
        "B16 (files)",
        "a replica without file descriptors",
        "The only replica of an application exhausts its file descriptors.",
        no_descriptors,
    ),
    Scenario(
        "B17",
        "clients with short timeouts",
        "A handler takes 50 ms, and at most four requests run. Clients send 3.75 times as many requests as the "
        "capacity, and disconnect after one second.",
        impatient_clients,
    ),
    Scenario(
        "B19",
        "processes are killed during a canary release",
        "A canary release has the steps 10, 50 and 100 %. In each step, SIGKILL ends a replica of either revision, one "
        "of two proxies, and the controller. Clients send GET requests at a fifth of C, at most 100 per second, and "
        "ten POST requests per second. They send a GET up to three times if its connection is lost.",
        a_canary_release_is_struck,
        options=("--proxies-per-node", "2"),
    ),
    Scenario(
        "B20",
        "the controller is killed during operations",
        "Clients scale, update, roll back, restart, freeze and unfreeze an application, start a revision with 10 % of "
        "the requests, change the shares, promote the revision, and perform a canary release to its end. During each "
        "operation, SIGKILL ends the controller: half of the times within 50 ms after the operation is sent, and "
        "otherwise at a random time until its usual end. Meanwhile, clients send fifty GET requests and ten POST "
        "requests per second.",
        the_controller_dies_during_operations,
    ),
    Scenario(
        "B21",
        "processes are killed during conversations",
        "Clients have 100 conversations of eight turns each with a model in replicas of its own: they ask, edit, ask "
        "for another response, attach files, and approve or deny calls of a tool. Every 1.5 seconds, SIGKILL ends a "
        "replica of the router, a replica of the model, the proxy, or the log of the streams. A client that lost a "
        "response resumes it, reads the stored conversation, or sends its message again, in this order. Other clients "
        "use up the budget of a second API key. Redis counts the budgets.",
        conversations_are_struck,
    ),
    Scenario(
        "control (updates)",
        "deliberately broken updates",
        "One update is deployed without waiting for it, and in another one the old replicas are killed instead of "
        "drained. Both are measured as in B7.",
        wrong_updates,
    ),
    Scenario(
        "control",
        "faults that the measurement must detect",
        "A handler leaks 1 MB per second, transactions are executed twice, and a server loses one response in a "
        "thousand. The results of the other scenarios are only valid if the measurement detects these faults.",
        controls,
    ),
)
