"""Token streams: app_toolkit with one replica beside the same app on one uvicorn process, and on Ray Serve.

python -m benchmarks.streaming                          # a plain stream, and a resumable one for each stream log
python -m benchmarks.streaming --peers --write-docs     # Ray Serve, too, and write docs/measurements.md
python -m benchmarks.streaming --only bare plain memory --measures saturated --rounds 3
python -m benchmarks.streaming --read --write-docs      # measure nothing, write the page again

All servers run from the first slice to the last, and are measured in turns, in a new order in each round. Ray Serve
needs its environment: `python -m benchmarks.peers ray_serve`. The log in Redis needs `redis-server` on PATH.
"""

import argparse
import asyncio
import json
import math
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import redis_server as redis
from benchmarks.__main__ import ROOT, _failure, _note, _versions, machine
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.load import load, percentile, request_of
from benchmarks.measures import Failed, Figures
from benchmarks.report import Bound, Need, bounds_table, figure, judge, number, table, with_document
from benchmarks.servers import APPS, CannotStart, Server, python_of, started

DOCS = ROOT / "docs" / "measurements.md"
RESULTS = ROOT / "benchmarks" / "results-streaming.json"

EVENTS = 200
"""Events of each stream at saturation."""
SATURATING = 8
"""Clients at saturation."""

EVENT = b"data: "
END = b"\n0\r\n\r\n"
"""The last chunk of a response."""
WARM_UP_S = 2
BUSY = 0.1
"""Cores that a server uses at most if it has nothing to do."""
PATIENCE_S = 30.0
"""Seconds beyond the length of the streams until all of them must have ended."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of stream: the path of a contender."""

    title: str
    contender: str
    path: str = "/tokens"


KINDS: Mapping[str, Kind] = {
    "bare": Kind("FastAPI on uvicorn, one process", "bare"),
    "plain": Kind("app_toolkit, one replica", "toolkit"),
    "memory": Kind("app_toolkit, resumable, log in memory", "toolkit", "/memory"),
    "deployment": Kind("app_toolkit, resumable, log in another process", "toolkit", "/deployment"),
    "redis": Kind("app_toolkit, resumable, log in Redis", "toolkit", "/redis"),
    "ray-serve": Kind("Ray Serve, defaults", "ray-serve"),
    "ray-serve-best-1": Kind("Ray Serve at its best, one replica", "ray-serve-best-1"),
}

TOOLKIT = Contender(
    name="toolkit",
    title="app_toolkit",
    command="{python} -m app_toolkit.cli run {apps}/streaming_toolkit.py --engine ray --host 127.0.0.1 --port {port}",
    roles={"proxy": "_Proxy", "replica": "_Replica"},
    says="Serving ",
    environ={"PYTHONPATH": f"{APPS}:{ROOT}"},  # the toolkit of this checkout
)


# The load


class Reader(asyncio.Protocol):
    """Reads one stream, and notes when its events arrive."""

    def __init__(self, request: bytes, gaps: list[float]) -> None:
        self.events = 0
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._gaps = gaps
        self._arrived: float | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._rest + data
        if count := data.count(EVENT):
            if self._arrived is not None:
                self._gaps.append(now - self._arrived)
            self._gaps += [0.0] * (count - 1)
            self._arrived = now
            self.events += count
        self._rest = data[1 - len(EVENT) :]  # an event or the end may be split
        if data.endswith(END):
            self.leave()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def leave(self) -> None:
        self._transport.abort()


async def follow(url: str, streams: int, rate: int, seconds: int, *, whole: bool = True) -> Figures:
    """Read so many streams at once, of so many events a second each.

    `whole`: to their ends, and raise `Failed` if events are missing. Otherwise leave after that time: there may be more
    events than the server can send.
    """
    count = rate * seconds
    request = request_of(f"{url}?count={count}&period_s={1 / rate}", None)
    gaps: list[float] = []
    port = int(url.split(":")[2].split("/")[0])
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    readers = [
        (await loop.create_connection(partial(Reader, request, gaps), "127.0.0.1", port))[1] for _ in range(streams)
    ]
    await asyncio.wait([reader.ended for reader in readers], timeout=seconds + (PATIENCE_S if whole else 0))
    elapsed = time.perf_counter() - began
    found = sum(reader.events for reader in readers)
    for reader in readers:
        reader.leave()
    if (whole and found != streams * count) or not gaps:
        raise Failed(f"{found:,} of {streams * count:,} events arrived")
    return {"p99_ms": percentile(gaps, 99) * 1_000, "events_s": found / elapsed}


def paced(streams: int, rate: int, *, whole: bool = True) -> Callable[[Server, str, int], Figures]:
    def run(server: Server, path: str, seconds: int) -> Figures:
        try:
            return asyncio.run(follow(server.url + path, streams, rate, seconds, whole=whole))
        finally:
            if not whole:
                settle(server)

    return run


def settle(server: Server) -> None:
    """Wait until a server that was left with too much to do has done it."""
    until = time.monotonic() + PATIENCE_S
    used, before = math.inf, server.cpu().total()
    while used > BUSY and time.monotonic() < until:
        time.sleep(1)
        used, before = server.cpu().total() - before, server.cpu().total()


def first_event(server: Server, path: str, seconds: int) -> Figures:
    """One client reads one stream of one event after the other over one connection."""
    request = request_of(f"{server.url}{path}?count=1", None)
    found: list[float] = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while (asked_at := time.perf_counter()) < until:
            connection.sendall(request)
            got, arrived = b"", None
            while not got.endswith(END):
                piece = connection.recv(65_536)
                if not piece:
                    raise Failed(f"the connection was closed after {got[:100]!r}")
                got += piece
                if arrived is None and EVENT in got:
                    arrived = time.perf_counter()
            if arrived is None:
                raise Failed(f"the answer has no event: {got[:100]!r}")
            found.append(arrived - asked_at)
    return {"p50_ms": median(found) * 1_000, "p99_ms": percentile(found, 99) * 1_000}


def saturated(server: Server, path: str, seconds: int) -> Figures:
    """Clients that read streams as fast as they can."""
    found = load(f"{server.url}{path}?count={EVENTS}", SATURATING, seconds)
    if found.failed or not found.requests:
        raise Failed(f"{found.failed} of {found.requests} streams failed")
    return {"events_s": found.rps * EVENTS, "p50_ms": found.p50_ms}


UNITS = {"p50_ms": "p50, ms", "p99_ms": "p99, ms", "events_s": "events/s"}


@dataclass(frozen=True, slots=True)
class Slice:
    """What is measured of a kind of stream in one turn."""

    title: str
    run: Callable[[Server, str, int], Figures]
    """Takes the server, the path, and for how many seconds."""
    figures: tuple[str, ...]


MEASURES: Mapping[str, Slice] = {
    "first": Slice("Time to the first event, 1 client", first_event, ("p50_ms", "p99_ms")),
    "gaps": Slice("Gap between the events of 50 streams of 50 events/s", paced(50, 50), ("p99_ms", "events_s")),
    "saturated": Slice(
        f"Saturation: streams of {EVENTS} events, {SATURATING} clients", saturated, ("events_s", "p50_ms")
    ),
    "thousand": Slice("1,000 streams of 20 events/s", paced(1_000, 20, whole=False), ("events_s", "p99_ms")),
}


# The rounds


@contextmanager
def started_redis() -> Iterator[str | None]:
    """The URL of a Redis server; None if it is not installed."""
    if redis.PROGRAM is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        server = redis.RedisServer(Path(folder))
        server.start()
        try:
            yield server.url
        finally:
            server.kill()


def measure(names: Sequence[str], measures: Sequence[str], rounds: int, seconds: int, seed: int) -> dict[str, Any]:
    """Everything, interleaved. Kinds whose contender cannot be started are named in the results."""
    figures: dict[str, Any] = {name: {} for name in names}
    failed: list[dict[str, Any]] = []
    rng = random.Random(seed)
    with ExitStack() as stack:
        url = stack.enter_context(started_redis())
        absent = {} if url else {"redis": "redis-server is not installed"}
        servers: dict[str, Server] = {}
        for name in names:
            contender = _contender(KINDS[name].contender, url)
            if contender.name in servers or name in absent:
                continue
            if python_of(contender) is None:
                absent[name] = "its environment was not made"
                continue
            print(f"Starting {contender.title}", file=sys.stderr, flush=True)
            try:
                servers[contender.name] = stack.enter_context(started(contender))
            except CannotStart as error:
                print(error, file=sys.stderr, flush=True)
                absent |= {each: "it did not start" for each in names if KINDS[each].contender == contender.name}
        there = [name for name in names if name not in absent]
        for name in there:
            with suppress(Failed):  # a slow one ends no stream in this time
                saturated(servers[KINDS[name].contender], KINDS[name].path, WARM_UP_S)
        for number_ in range(rounds):
            for what in measures:
                for name in rng.sample(there, len(there)):
                    print(f"Round {number_ + 1} of {rounds}: {what}, {name}", file=sys.stderr, flush=True)
                    server, path = servers[KINDS[name].contender], KINDS[name].path
                    try:
                        _note(figures[name], what, number_, MEASURES[what].run(server, path, seconds))
                    except (Failed, ValueError, OSError, subprocess.SubprocessError) as error:
                        failed.append(_failure(server.contender, f"{what} of {name}", number_, error))
    contenders = [_contender(KINDS[name].contender, None) for name in there]
    return {
        "run": {"date": f"{datetime.now(UTC):%Y-%m-%d}", "rounds": rounds, "seconds": seconds, "seed": seed},
        "machine": machine(),
        "versions": _versions(contenders) | ({"Redis": redis.version()} if "redis" in there else {}),
        "absent": absent,
        "failed": failed,
        "figures": {name: figures[name] for name in there},
    }


def _contender(name: str, url: str | None) -> Contender:
    if name == TOOLKIT.name:
        return replace(TOOLKIT, environ={**TOOLKIT.environ, **({"STREAM_LOG_REDIS": url} if url else {})})
    return next(each for each in CONTENDERS if each.name == name)


# The report


def _times(measure: str, of: str, to: str) -> Callable[[Need], float]:
    return lambda need: need(of, measure, "events_s") / need(to, measure, "events_s")


def _above_bare(measure: str, name: str) -> Callable[[Need], float]:
    return lambda need: need("plain", measure, name) - need("bare", measure, name)


BOUNDS = (
    Bound("Time to the first event: p50 above uvicorn's", _above_bare("first", "p50_ms"), 1, at_most=True, unit="ms"),
    Bound("Gap between events: p99 above uvicorn's", _above_bare("gaps", "p99_ms"), 2, at_most=True, unit="ms"),
    Bound("Events/s at saturation against uvicorn", _times("saturated", "plain", "bare"), 0.9),
    Bound("Resumable, log in memory, against the plain stream", _times("saturated", "memory", "plain"), 0.5),
    Bound(
        "Resumable, log in another process, against the plain stream", _times("saturated", "deployment", "plain"), 0.25
    ),
    Bound("Events/s at saturation against Ray Serve's defaults", _times("saturated", "plain", "ray-serve"), 3),
    Bound("Events/s at saturation against Ray Serve at its best", _times("saturated", "plain", "ray-serve-best-1"), 1),
)
"""What is aimed at. The log in Redis and the thousand streams have no bound."""


def report(results: Mapping[str, Any]) -> str:
    """A table for each measure, and the bounds."""
    found = [bounds_table(judge(results, BOUNDS))]
    for what, measure in MEASURES.items():
        rows = [
            (KINDS[name].title, *(number(figure(results, name, what, each)) for each in measure.figures))
            for name in KINDS
            if what in results["figures"].get(name, {})
        ]
        if rows:
            found.append(f"### {measure.title}")
            found.append(table(("", *(UNITS[each] for each in measure.figures)), rows))
    return "\n\n".join(found)


def document(results: Mapping[str, Any]) -> str:
    run, machine = results["run"], results["machine"]
    remark = f" {run['remark']}" if "remark" in run else ""
    absent = "".join(f"{KINDS[name].title} was not measured: {why}.\n\n" for name, why in results["absent"].items())
    failed = "".join(
        f"Failed: {each['measure']}, round {each['round'] + 1}: `{each['why']}`\n\n" for each in results["failed"]
    )
    return f"""# Streams, measured

`python -m benchmarks.streaming --peers --write-docs` wrote this section on {run["date"]}: medians of {run["rounds"]}
rounds of {run["seconds"]} s, with {machine["cores"]} cores ({machine["cpu"]}).{remark} The app has one route, which
yields tokens as server-sent events. [Resumable](resumable.md) variants of it differ by their stream log only.
app_toolkit has one replica, and Ray Serve has one.

{report(results)}

{absent}{failed}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.streaming", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="how long each measure takes (3)")
    parser.add_argument("--seed", type=int, default=1, help="of the order within a round (1)")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), help="these kinds of streams")
    parser.add_argument("--peers", action="store_true", help="Ray Serve, too")
    parser.add_argument("--measures", nargs="+", choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--read", action="store_true", help="take the figures of the last run")
    parser.add_argument("--remark", help="a sentence about this run, for the page")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md")
    options = parser.parse_args()
    if options.read:
        results = json.loads(options.out.read_text())
    else:
        usual = [name for name in KINDS if options.peers or not name.startswith("ray-serve")]
        results = measure(options.only or usual, options.measures, options.rounds, options.seconds, options.seed)
    if options.remark:
        results["run"]["remark"] = options.remark
    if options.remark or not options.read:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results))
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(results)))


if __name__ == "__main__":
    main()
