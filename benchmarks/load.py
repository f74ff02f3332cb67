"""Load generator: wrk if it is installed, otherwise a small asyncio client."""

import asyncio
import math
import random
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
    """The results of a load."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int
    """Responses without a 2xx status, and lost connections."""

    @property
    def rps(self) -> float:
        return self.requests / self.seconds


def load(url: str, clients: int, seconds: int, body: str | None = None) -> Load:
    """Let each client send one request after another: GET, or POST if there is a JSON body."""
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


def mixed_load(url: str, rare: str, share: float, clients: int, seconds: int) -> Load:
    """Let each client send one GET request after another: a share of them for the path `rare`, the others for `url`."""
    slow = url.rstrip("/") + rare
    if WRK is None:
        numbers, requests = random.Random(1), (request_of(url, None), request_of(slow, None))
        return asyncio.run(
            asyncio_load(url, clients, seconds, requests=(requests[numbers.random() < share] for _ in repeat(None)))
        )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(f'function request() return wrk.format("GET", math.random() < {share} and "{rare}" or "/") end\n')
        script.flush()
        command = [WRK, "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "10s", "--latency", "-s", script.name, url]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30)
    return parse_wrk(done.stdout)


def generator() -> str:
    """Return the name and version of the load generator."""
    if WRK is None:
        return "an asyncio client"
    output = subprocess.run([WRK, "-v"], capture_output=True, text=True).stdout
    return " ".join(output.split()[:2])


def parse_wrk(output: str) -> Load:
    """Parse the output of `wrk --latency`. Raises `ValueError` for any other text."""
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m),", output)
    percentiles = dict(re.findall(r"^ +(50|99)% +([\d.]+(?:us|ms|s|m)) *$", output, re.MULTILINE))
    if total is None or len(percentiles) != 2:
        raise ValueError(f"this is not the output of wrk --latency: {output!r}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", output)
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
    """Return the percentile by the nearest-rank method: the smallest value that at least `percent` % do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def request_of(url: str, body: str | None) -> bytes:
    """Return the bytes of a GET request, or of a POST request if there is a JSON body."""
    parts, sent = urlsplit(url), (body or "").encode()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
    return head.encode() + b"\r\n" + sent


class Client(asyncio.Protocol):
    """A connection that sends its next request as soon as it has received a response."""

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
        self.failed += 1  # the abort at the end of the load calls this after `failed` was read


async def asyncio_load(
    url: str, clients: int, seconds: float, body: str | None = None, requests: Iterator[bytes] | None = None
) -> Load:
    """Do the same as `load`, without wrk. `requests`: what the clients send, instead of the same request."""
    parts, requests = urlsplit(url), requests or repeat(request_of(url, body))
    latencies: list[float] = []
    connected = []
    started = time.perf_counter()
    for _ in range(clients):
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(requests, latencies), parts.hostname or "127.0.0.1", parts.port or 80
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
