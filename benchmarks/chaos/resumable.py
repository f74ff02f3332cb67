"""Resumable streams while whatever carries them is killed or replaced."""

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from random import Random

import httptools
import psutil

from benchmarks.chaos.client import latency_ms, new_id, open_loop
from benchmarks.chaos.ledger import unended
from benchmarks.chaos.probe import Probe
from benchmarks.chaos.report import Row
from benchmarks.chaos.resumable_victim import ABANDONED_S, LINGER_S, MIB, SMALL
from benchmarks.chaos.shared import lost
from benchmarks.chaos.system import System, Watch, seconds_until
from benchmarks.redis_server import RedisServer

STREAMER = Path(__file__).parent / "resumable_victim.py"
APP, LOG = "streams", "stream-log"
LIMITED = "limited"
"""An application with one replica and a small stream log of its own."""
PERIOD_S = 0.2
LEAVES = 0.02
"""The share of events after which a client disconnects and comes back."""
AGAIN_S = 0.1
"""Seconds until a client that was refused comes back."""
LONELY = 20
LATE_S = 5.0
"""Seconds beyond `linger_s` that the end of a generator may take."""
GROWTH_MB = 30.0
AT_ONCE = 16
SEED = 1

LOG_MB = SMALL.max_total_bytes / 1e6 + 60
"""Memory of the log: its limit, and up to two copies of an event of 1 MiB for each of thirty readers."""
REPLICA_MB = 20.0
"""Memory of the replica for each stream: the log accepts an event of 1 MiB only when it has room, and FastAPI, the
connection and the call to the log each have a copy of one or two events.
"""
KEPT_MB, RELEASED_S = 40.0, 30.0
"""Memory that the replica may still use so many seconds after large streams."""
SLOTS = 100
"""Request slots of the replica."""


class Reader:
    """Follows one stream to its end, over as many connections as it takes."""

    def __init__(self, address: tuple[str, int], path: str, last: int, rng: Random, leaves: float = LEAVES) -> None:
        self._address = address
        self._path = path
        self._last = last
        self._rng = rng
        self._leaves = leaves
        self._id = ""
        self._rest = b""
        self._over = False
        self.numbers: list[int] = []
        self.errors: list[str] = []
        self.connections = 0

    async def follow(self) -> None:
        while len(self.numbers) < self._last and not self.errors:
            self.connections += 1
            try:
                await self._connect()
            except OSError:  # the proxy was killed
                await asyncio.sleep(AGAIN_S)

    async def _connect(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            lines = (f"GET {self._path} HTTP/1.1", "host: victim", f"last-event-id: {self._id}")
            writer.write("\r\n".join((*lines, "\r\n")).encode())
            self._rest, self._over = b"", False
            self._parser = httptools.HttpResponseParser(self)
            while not self._over and (data := await reader.read(65_536)):
                self._parser.feed_data(data)
        finally:
            writer.close()
        status = self._parser.get_status_code()
        if status in (0, 502, 503):  # the proxy was killed, or there is no replica at this moment
            await asyncio.sleep(AGAIN_S)
        elif status != 200:
            self.errors.append(f"status {status}")

    def on_body(self, data: bytes) -> None:
        if self._parser.get_status_code() != 200 or self._over:
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            fields = dict(line.split(": ", 1) for line in event.decode().split("\n") if ": " in line)
            if fields.get("event") == "error":
                self.errors.append(json.loads(fields["data"])["error"])
            elif "id" in fields:
                self._id = fields["id"]
                self.numbers.append(int(fields["data"].strip('"').partition(" ")[0]))
                if self._rng.random() < self._leaves:
                    self._over = True
                    return

    def on_message_complete(self) -> None:
        self._over = True


async def in_an_application(system: System, short: bool) -> list[Row]:
    async with system.deployed(LOG, "log", file=STREAMER) as log:
        return await _scenario(system, "one", "two", short, log=log)


async def in_redis(system: System, short: bool) -> list[Row]:
    redis = RedisServer(system.ledger.path.parent)
    await asyncio.to_thread(redis.start)
    try:
        return await _scenario(system, "redis_one", "redis_two", short, redis=redis)
    finally:
        redis.kill()


async def larger_than_the_log(system: System, short: bool) -> list[Row]:
    """All streams together are several times as large as the log, and each is larger than what it keeps of one."""
    count, last = (6, 12) if short else (30, 48)
    async with system.deployed(LIMITED, LIMITED, file=STREAMER) as app:
        pids = await asyncio.to_thread(app.processes)
        (replica,) = await asyncio.to_thread(app.replicas, "app")
        (log,) = await asyncio.to_thread(app.replicas, LOG)
        async with Probe(pids, every_s=0.5) as probe:
            large = await _read_all(app, count, last, MIB)
            small = await _read_all(app, 1, 4_000, 8 * 1024)
        await seconds_until(lambda: _kept_mb(pids[replica], replica, probe) <= KEPT_MB, RELEASED_S)
        kept = _kept_mb(pids[replica], replica, probe)
    return [
        Row(f"of {count} streams of {last} MiB, those that were read to their ends", large, count, at_least=True),
        Row("of 1 stream of 4,000 events of 8 KiB, those that were read to their ends", small, 1, at_least=True),
        Row("memory of the log: growth", probe.growth((log,)), LOG_MB, "MB", saw="64 MiB of events"),
        Row("memory of the replica: growth per stream", probe.growth((replica,)) / count, REPLICA_MB, "MB"),
        Row(
            f"memory of the replica: growth at most {RELEASED_S:g} s after the streams",
            kept,
            KEPT_MB,
            "MB",
        ),
    ]


def _kept_mb(pid: int, name: str, probe: Probe) -> float:
    """Return by how many MB the memory of a process has grown since the first sample."""
    return (psutil.Process(pid).memory_info().rss - probe.samples[0].rss[name]) / 1e6


async def _read_all(app: System, count: int, last: int, size: int) -> int:
    """Read so many streams at the same time. Return how many were read to their ends."""
    path = f"{app.prefix}/texts?last={last}&size={size}"
    readers = [Reader(app.address, path, last, Random(SEED), leaves=0.0) for _ in range(count)]
    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow())
    return sum(reader.numbers == list(range(1, last + 1)) for reader in readers)


async def abandoned(system: System, short: bool) -> list[Row]:
    """Clients begin streams, and leave after the first event."""
    count = SMALL.max_unread_streams + (20 if short else 950)
    refused = 0
    async with system.deployed(LIMITED, LIMITED, file=STREAMER) as app, app.client() as client:
        over = asyncio.Event()
        asking = asyncio.create_task(open_loop(client.get, 20, 300, over))
        ids = [new_id() for _ in range(count)]
        begun = iter(ids)

        async def leave_some() -> None:
            nonlocal refused
            for id in begun:
                refused += not await _begin_and_leave(app, id)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(leave_some())
        ended = await seconds_until(lambda: unended(app.ledger.of(ids).values()) == 0, ABANDONED_S + 60)
        over.set()
        found = await asking
        after = await _read_all(app, 1, 10, 1)
    return [
        Row("streams that were abandoned", count - refused, SLOTS + 1, at_least=True, saw=f"{SLOTS} request slots"),
        lost("GET beside them", found),
        Row("GET: maximum latency", latency_ms(found, 100), 1_000, "ms", clocked=True),
        Row(
            f"until the last generator had ended, with linger_s = {ABANDONED_S:g}",
            ended,
            ABANDONED_S + LATE_S,
            "s",
            clocked=True,
        ),
        Row("streams afterwards that were read to their ends", after, 1, at_least=True),
    ]


async def _begin_and_leave(app: System, id: str) -> bool:
    """Return whether the stream began; False: the server refused it."""
    reader, writer = await asyncio.open_connection(*app.address)
    try:
        path = f"{app.prefix}/texts?last=100000&period_s=1"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: victim\r\nx-ledger-id: {id}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            assert head.startswith(b"HTTP/1.1 503"), head
            return False
        await reader.readuntil(b"data: ")
        return True
    finally:
        writer.close()


async def at_the_same_time(system: System, short: bool) -> list[Row]:
    """Many streams of tokens, from one replica to a log in another process."""
    count, last, period_s = (100, 20, 0.1) if short else (500, 200, 0.05)
    async with system.deployed(LIMITED, LIMITED, file=STREAMER) as app:
        before = await asyncio.to_thread(app.processes)
        path = f"{app.prefix}/texts?last={last}&period_s={period_s}"
        readers = [Reader(app.address, path, last, Random(SEED), leaves=0.0) for _ in range(count)]
        async with Watch(app) as watch, asyncio.timeout(600), asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.follow())
        after = await asyncio.to_thread(app.processes)
    failed = sum(
        (replica["unhealthy"] or "").startswith("did not answer")
        for look in watch.looks
        for deployment in look.status["deployments"]
        for replica in deployment["replicas"]
    )
    return [
        Row(
            "streams that were read to their ends",
            sum(reader.numbers == list(range(1, last + 1)) for reader in readers),
            count,
            at_least=True,
        ),
        Row("processes that were replaced", len(set(before.values()) ^ set(after.values())), 0),
        Row("changes of the status with a failed health check", failed, 0, clocked=True),
    ]


async def _scenario(
    system: System, first: str, second: str, short: bool, *, log: System | None = None, redis: RedisServer | None = None
) -> list[Row]:
    async with system.deployed(APP, first, file=STREAMER) as app:
        rows = await _disturbed(app, second, redis, short)
        rows += await _left_alone(app)
        return rows + await _many(app, log, redis, short)


async def _disturbed(app: System, second: str, redis: RedisServer | None, short: bool) -> list[Row]:
    """Everything that carries the streams dies, or is replaced, while they are read."""
    count, last = (20, 50) if short else (200, 150)
    rng = Random(SEED)
    path = f"{app.prefix}/numbers?last={last}&period_s={PERIOD_S}"
    readers = [Reader(app.address, path, last, rng) for _ in range(count)]
    following = [asyncio.create_task(reader.follow()) for reader in readers]
    await seconds_until(lambda: min(len(reader.numbers) for reader in readers) >= 5, 60)
    (proxy, *_) = (await asyncio.to_thread(app.proxies)).values()
    os.kill(proxy, signal.SIGKILL)
    updating = asyncio.create_task(app.deploy(APP, second, "--wait", file=STREAMER))
    if redis is not None:
        redis.kill()
        await asyncio.to_thread(redis.start)
    updated = await updating
    os.kill(await asyncio.to_thread(app.controller), signal.SIGKILL)
    _, late = await asyncio.wait(following, timeout=last * PERIOD_S + 120)
    for task in late:
        task.cancel()
    whole = list(range(1, last + 1))
    errors = Counter(error for reader in readers for error in reader.errors)
    connections = sum(reader.connections for reader in readers)
    wrong = sum(reader.numbers != whole[: len(reader.numbers)] for reader in readers)
    return [
        Row(
            "streams that were read to their ends",
            sum(reader.numbers == whole for reader in readers),
            count,
            at_least=True,
        ),
        Row("clients that got an event twice, or not in order", wrong, 0),
        Row("streams that ended with an error", errors.total(), 0, saw=", ".join(errors)),
        Row(
            "clients that came back",
            sum(reader.connections > 1 for reader in readers),
            count / 2,
            at_least=True,
            saw=f"{connections:,} connections",
        ),
        Row("updates that failed", int(updated.code != 0), 0),
    ]


async def _left_alone(app: System) -> list[Row]:
    """Clients begin streams that would last for long, and leave."""
    ids = [new_id() for _ in range(LONELY)]
    head = "GET {} HTTP/1.1\r\nhost: victim\r\nx-ledger-id: {}\r\n\r\n"
    for id in ids:
        reader, writer = await asyncio.open_connection(*app.address)
        writer.write(head.format(f"{app.prefix}/lonely?last=100000&period_s={PERIOD_S}", id).encode())
        await reader.readuntil(b"data: 1\n")
        writer.close()
    ended = await seconds_until(lambda: unended(app.ledger.of(ids).values()) == 0, LINGER_S + 60)
    return [
        Row("generators that their clients left", len(app.ledger.of(ids)), LONELY, at_least=True),
        Row(
            f"until the last of them had ended, with linger_s = {LINGER_S:g}",
            ended,
            LINGER_S + LATE_S,
            "s",
            clocked=True,
        ),
    ]


async def _many(app: System, log: System | None, redis: RedisServer | None, short: bool) -> list[Row]:
    """Short streams, one after the other: what each of them leaves behind would add up."""
    count = 1_000 if short else 10_000
    await _read_short(app, count // 5 + 500)  # the log is full of ended streams
    pids = await asyncio.to_thread(app.processes)
    if log is not None:
        pids |= await asyncio.to_thread(log.replicas, LOG)
    if redis is not None:
        pids["redis"] = redis.pid
    async with Probe(pids) as probe:
        failed = await _read_short(app, count)
    return [
        Row(f"of {count:,} short streams, those that failed", failed, 0),
        Row(
            "memory of proxy, replicas and log: growth meanwhile",
            probe.growth(pids),
            GROWTH_MB,
            "MB",
            saw=", ".join(f"{_short(name)} {probe.growth((name,)):.1f}" for name in pids),
        ),
    ]


def _short(id: str) -> str:
    """The id of a process without its node."""
    name, _, number = id.partition("@")
    return f"{name.rpartition('/')[2]}-{number.rpartition('-')[2]}" if number else name


async def _read_short(app: System, count: int) -> int:
    """Read so many streams of ten events. Return how many were not read to their ends."""
    rng, failed, left = Random(SEED), 0, iter(range(count))

    async def read_some() -> None:
        nonlocal failed
        for _ in left:
            reader = Reader(app.address, f"{app.prefix}/numbers?last=10", 10, rng, leaves=0.0)
            await reader.follow()
            failed += reader.numbers != list(range(1, 11))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(read_some())
    return failed
