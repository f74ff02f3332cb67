"""The measurements. Each takes a running contender and returns figures."""

import base64
import http.client
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import psutil

from benchmarks.contenders import ITEM
from benchmarks.load import Load, load, percentile
from benchmarks.servers import Server

Figures = dict[str, float]

TEN_MB = bytes(10_000_000)


class Failed(Exception):
    """The contender returned wrong responses, so its figures are invalid."""


@dataclass(frozen=True, slots=True)
class Measure:
    title: str
    figures: tuple[str, ...]
    """The figures on the page. Contenders are compared by the first one."""
    run: Callable[[Server, int], Figures]
    """The second argument is the duration in seconds."""
    lower_is_better: bool = False


def _load(path: str, clients: int, body: str | None = None) -> Callable[[Server, int], Figures]:
    def run(server: Server, seconds: int) -> Figures:
        before = server.cpu() + _client_cpu()
        found = load(server.url + path, clients, seconds, body)
        after = server.cpu() + _client_cpu()
        if found.failed or not found.requests:
            raise Failed(f"{found.failed} of {found.requests} requests failed")
        return _figures(found) | {f"{role}_us": (after[role] - before[role]) / found.requests * 1e6 for role in after}

    return run


def _client_cpu() -> Counter[str]:
    """Return the CPU seconds of this process and of wrk. Of child processes, only ended ones count."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return Counter({"client": sum(each.ru_utime + each.ru_stime for each in used)})


def take(measure: Measure, server: Server, seconds: int) -> Figures:
    """Return the figures and `others_percent`, the CPU that other processes used meanwhile, in percent of a core."""
    before, started_at = _others_cpu(server), time.perf_counter()
    figures = measure.run(server, seconds)
    used, elapsed = _others_cpu(server) - before, time.perf_counter() - started_at
    return figures | {"others_percent": used / elapsed * 100}


def _others_cpu(server: Server) -> float:
    machine = psutil.cpu_times()
    # Idle, I/O wait and stolen time do not count. Interrupts count for the process that they interrupt.
    busy = sum(getattr(machine, each, 0.0) for each in ("user", "nice", "system", "irq", "softirq"))
    return busy - server.cpu().total() - _client_cpu().total()


def _figures(found: Load) -> Figures:
    return {"rps": found.rps, "p50_ms": found.p50_ms, "p99_ms": found.p99_ms}


def websocket(server: Server, seconds: int) -> Figures:
    """Measure the latency of a WebSocket echo of 16 bytes with one client."""
    latencies: list[float] = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\n\r\n"
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += _some(connection)
        if not answer.startswith(b"HTTP/1.1 101"):
            raise Failed(f"the response to the WebSocket handshake was {answer[:40]!r}")
        # A text frame of 16 bytes, masked with zeros, and its echo, which is not masked.
        frame, echo = b"\x81\x90" + bytes(4) + b"x" * 16, b"\x81\x10" + b"x" * 16
        until = time.perf_counter() + seconds
        while (sent_at := time.perf_counter()) < until:
            connection.sendall(frame)
            got = b""
            while len(got) < len(echo):
                got += _some(connection)
            if got != echo:
                raise Failed(f"the echo was {got!r}")
            latencies.append(time.perf_counter() - sent_at)
    return {"p50_ms": median(latencies) * 1_000, "p99_ms": percentile(latencies, 99) * 1_000}


def _some(connection: socket.socket) -> bytes:
    got = connection.recv(4_096)
    if not got:
        raise Failed("the connection was closed")
    return got


def download(server: Server, seconds: int) -> Figures:
    into = bytearray(len(TEN_MB))

    def once(connection: http.client.HTTPConnection) -> bool:
        connection.request("GET", "/download")
        answer, size = connection.getresponse(), 0
        while got := answer.readinto(memoryview(into)[size:]):
            size += got
        answer.read()
        return size == len(TEN_MB)

    return _transfer(server, seconds, once)


def upload(server: Server, seconds: int) -> Figures:
    def once(connection: http.client.HTTPConnection) -> bool:
        connection.request("POST", "/upload", TEN_MB)
        return connection.getresponse().read() == b'{"size":%d}' % len(TEN_MB)

    return _transfer(server, seconds, once)


def _transfer(server: Server, seconds: int, once: Callable[[http.client.HTTPConnection], bool]) -> Figures:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        count, started_at = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started_at) < seconds or not count:
            if not once(connection):
                raise Failed("the transfer was not 10 MB")
            count += 1
    finally:
        connection.close()
    return {"mb_s": count * len(TEN_MB) / 1e6 / elapsed}


def idle(server: Server, seconds: int) -> Figures:
    """Return the CPU usage without requests, in percent of one core."""
    before, started_at = server.cpu().total(), time.perf_counter()
    time.sleep(seconds)
    return {"percent": (server.cpu().total() - before) / (time.perf_counter() - started_at) * 100}


MEASURES: Mapping[str, Measure] = {
    "get_1": Measure("GET of a small JSON document, 1 client", ("p50_ms", "p99_ms", "rps"), _load("/", 1), True),
    "get_32": Measure("GET of a small JSON document, 32 clients", ("rps", "p50_ms", "p99_ms"), _load("/", 32)),
    "post_1": Measure(
        "POST of a JSON document that pydantic validates, 1 client",
        ("p50_ms", "p99_ms", "rps"),
        _load("/item", 1, ITEM),
        True,
    ),
    "post_32": Measure(
        "POST of a JSON document that pydantic validates, 32 clients",
        ("rps", "p50_ms", "p99_ms"),
        _load("/item", 32, ITEM),
    ),
    "stream_8": Measure("Stream of 100 events, 8 clients", ("rps", "p50_ms", "p99_ms"), _load("/stream", 8)),
    "websocket": Measure("WebSocket echo, 1 client", ("p50_ms", "p99_ms"), websocket, True),
    "download": Measure("Download of 10 MB, 1 client", ("mb_s",), download),
    "upload": Measure("Upload of 10 MB, 1 client", ("mb_s",), upload),
}


def warm_up(server: Server) -> None:
    """Send requests so that one-time work, such as compiling and connecting, is done before the measurement."""
    if "get_1" in server.contender.measures:
        load(server.url, 32, 1)
    else:
        load(f"{server.url}/item", 32, 1, ITEM)
