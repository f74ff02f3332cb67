"""Load: many requests over a few connections, by wrk where it is installed, else by a small client of our own."""

import asyncio
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from urllib.parse import urlsplit

import httptools

WRK = shutil.which("wrk")
MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1_000.0, "m": 60_000.0}


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int
    """Answers other than 2xx, and connections that broke."""

    @property
    def rps(self) -> float:
        return self.requests / self.seconds


def load(url: str, clients: int, seconds: int, body: str | None = None) -> Load:
    """Ask again and again, each client one request at a time: GET, or POST where there is a JSON body."""
    if WRK is None:
        return asyncio.run(asyncio_load(url, clients, seconds, body))
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        command = [WRK, "-t1", f"-c{clients}", f"-d{seconds}s", "--latency"]
        if body is not None:
            script.write('wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n')
            script.write(f"wrk.body = [[{body}]]\n")
            script.flush()
            command += ["-s", script.name]
        done = subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=seconds + 30)
    return parse_wrk(done.stdout)


def generator() -> str:
    """What makes the load, for the record."""
    if WRK is None:
        return "an asyncio client"
    said = subprocess.run([WRK, "-v"], capture_output=True, text=True).stdout
    return " ".join(said.split()[:2])


def parse_wrk(said: str) -> Load:
    """Raises `ValueError` where it is not the output of `wrk --latency`."""
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m),", said)
    percentiles = dict(re.findall(r"^ +(50|99)% +([\d.]+(?:us|ms|s|m)) *$", said, re.MULTILINE))
    if total is None or len(percentiles) != 2:
        raise ValueError(f"this is not what wrk --latency prints: {said!r}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", said)
    return Load(
        requests=int(total[1]),
        seconds=float(total[2]) * MILLISECONDS[total[3]] / 1_000,
        p50_ms=_milliseconds(percentiles["50"]),
        p99_ms=_milliseconds(percentiles["99"]),
        failed=(int(refused[1]) if refused else 0) + (sum(map(int, broken.groups())) if broken else 0),
    )


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * MILLISECONDS[unit]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all are not above."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def request_of(url: str, body: str | None) -> bytes:
    """A GET, or the POST of a JSON body."""
    parts, sent = urlsplit(url), (body or "").encode()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
    return head.encode() + b"\r\n" + sent


class Client(asyncio.Protocol):
    """One connection that asks for the next as soon as it is answered."""

    def __init__(self, requests: Iterator[bytes], latencies: list[float]) -> None:
        self.requests, self.latencies, self.failed = requests, latencies, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.asked_at = time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self.complete = False
        self.parser.feed_data(data)
        if self.complete:
            self._ask()

    def on_message_complete(self) -> None:
        self.latencies.append(time.perf_counter() - self.asked_at)
        self.failed += not 200 <= self.parser.get_status_code() < 300
        self.complete = True

    def connection_lost(self, error: Exception | None) -> None:
        self.failed += 1  # nobody but us ends a connection, and we count first


async def asyncio_load(url: str, clients: int, seconds: float, body: str | None = None) -> Load:
    """What `load` does where there is no wrk."""
    parts, request = urlsplit(url), request_of(url, body)
    latencies: list[float] = []
    connected = []
    started = time.perf_counter()
    for _ in range(clients):
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(repeat(request), latencies), parts.hostname or "127.0.0.1", parts.port or 80
        )
        connected.append(client)
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - started
    for client in connected:
        client.transport.abort()
    return Load(
        requests=len(latencies),
        seconds=elapsed,
        p50_ms=median(latencies) * 1_000 if latencies else math.nan,
        p99_ms=percentile(latencies, 99) * 1_000 if latencies else math.nan,
        failed=sum(client.failed for client in connected),
    )
