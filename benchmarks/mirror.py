"""Measure how mirrors that fail in different ways change the latency of clients.

python -m benchmarks.mirror
python -m benchmarks.mirror --rounds 20 --rate 100 --work-ms 0

A proxy, a replica of the main revision and one of the mirror run in processes of their own, without Ray. Clients send
requests at a fixed rate. In slices of one second, all requests are mirrored, or none is, in a random order.
"""

import argparse
import asyncio
import multiprocessing
import random
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from fastapi import FastAPI, HTTPException, Request

from app_toolkit.config.models import HTTPOptions, Policy
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.contract.routes import RoutedApplication
from app_toolkit.contract.snapshots import PublishedReplica, ReplicaSetSnapshot, RouteSnapshot, encode
from app_toolkit.contract.targets import Target
from app_toolkit.edge.hosted_proxy import HostedProxy
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.router import Router
from app_toolkit.host.replica_server import Server
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.types import Address, NodeId, ReplicaId
from benchmarks.load import percentile
from benchmarks.report import table

SECRET = b"the-secret-of-this-run"
MOST = 100
CLIENTS = 16
MAIN, MIRROR = "app/app", "app@2/app"
MODES = ("responds", "sleeps", "raises", "is dead", "is scaled to zero")
SLEEP_S = 10.0

spawned = multiprocessing.get_context("spawn")


def app(work_s: float) -> FastAPI:
    """Return an app that waits, as for a database. If its request is mirrored, it does what the path says."""
    served = FastAPI()

    @served.get("/{mode}")
    async def answer(mode: str, request: Request) -> dict[str, str]:
        if "x-app-toolkit-mirrored" in request.headers:
            if mode == "sleeps":
                await asyncio.sleep(SLEEP_S)
            elif mode == "raises":
                raise HTTPException(500)
        await asyncio.sleep(work_s)
        return {"hello": "world"}

    return served


def serve_replica(path: str, work_s: float) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        replica = Replica(app(work_s), name="replica", max_ongoing_requests=MOST, secret=SECRET)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Server(replica, SECRET, lambda: None).serve([listener]))


def serve_proxy(pipe: Any, address: Any) -> None:
    """Send the address, apply the snapshots that arrive, and send the counts of the mirror after each of them."""
    version = 0

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        nonlocal version
        if version:
            pipe.send(edge.statistics().mirrors.get(MIRROR, MirrorCounts()))
        values = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        version += 1
        return {key: Snapshot(Version(1, version), value) for key, value in values.items()}

    edge = HostedProxy(lambda: ProxyState(SECRET, Router), HTTPOptions(port=0), watch)
    address.send(edge.start())
    time.sleep(3_600)


def snapshots(folder: Path, mode: str, *, mirrored: bool) -> dict[str, Any]:
    """Return what is published: both revisions, and a replica of the mirror unless it has none."""

    def replica_set(*names: str) -> Any:
        replicas = tuple(
            PublishedReplica(
                ReplicaId(name), Address(f"unix:{folder}/{name}"), None, NodeId(""), MOST, MOST, False, None
            )
            for name in names
        )
        return encode(
            ReplicaSetSnapshot(Policy(), None, idempotent=(), reported=False, scaled_to_zero=False, replicas=replicas)
        )

    mirror = {"is dead": ["nobody"], "is scaled to zero": []}.get(mode, ["mirror"])
    main = RoutedApplication("/", Target("app", ReplicaSetKey.parse(MAIN)))
    other = RoutedApplication("/", Target("app@2", ReplicaSetKey.parse(MIRROR), 0.0, "kept", float(mirrored)))
    return {
        f"replicas/{MAIN}": replica_set("main"),
        f"replicas/{MIRROR}": replica_set(*mirror),
        "routes": encode(RouteSnapshot((main, other))),
    }


@contextmanager
def processes(folder: Path, work_s: float) -> Iterator[tuple[Any, Any]]:
    """Start both replicas and the proxy. Yield the pipe of the proxy, and that on which its address arrives."""
    pipe, other = spawned.Pipe()
    address, told = spawned.Pipe()
    started = [
        spawned.Process(target=serve_replica, args=(str(folder / name), work_s), daemon=True)
        for name in ("main", "mirror")
    ]
    started.append(spawned.Process(target=serve_proxy, args=(other, told), daemon=True))
    for process in started:
        process.start()
    try:
        while not all((folder / name).exists() for name in ("main", "mirror")):
            time.sleep(0.05)
        yield pipe, address
    finally:
        for process in started:
            process.kill()
            process.join()


async def load(port: int, path: str, rate: float, seconds: float) -> list[float]:
    """Send requests at a fixed rate, and return the seconds that each response took since its time to be sent."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
    start, latencies = time.perf_counter() + 0.01, list[float]()
    request = f"GET {path} HTTP/1.1\r\nhost: app\r\n\r\n".encode()

    async def client(number: int) -> None:
        reader, writer = connections[number]
        for due in range(number, int(rate * seconds), CLIENTS):
            at = start + due / rate
            await asyncio.sleep(at - time.perf_counter())
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            latencies.append(time.perf_counter() - at)
        writer.close()

    await asyncio.gather(*map(client, range(CLIENTS)))
    return latencies


def slice_of(port: int, path: str, rate: float) -> list[float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load(port, path, rate, 1.0))


def measure(rounds: int, rate: float, work_s: float, rng: random.Random) -> list[list[str]]:
    rows = []
    for mode in MODES:
        path = "/" + mode.replace(" ", "_")
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        with tempfile.TemporaryDirectory() as name, processes(Path(name), work_s) as (pipe, address):

            def publish(*, mirrored: bool, name: str = name, mode: str = mode, pipe: Any = pipe) -> MirrorCounts:
                """Publish, and return the counts once that is applied."""
                pipe.send(snapshots(Path(name), mode, mirrored=mirrored))
                counts: MirrorCounts = pipe.recv()
                return counts

            publish(mirrored=False)
            port = int(address.recv().rpartition(":")[2])
            slice_of(port, path, rate)  # warm
            for mirrored in (each for _ in range(rounds) for each in rng.sample((False, True), 2)):
                publish(mirrored=mirrored)
                found[mirrored].append(slice_of(port, path, rate))
            counts = publish(mirrored=False)
        off, on = (percentile([each for part in found[mirrored] for each in part], 99) for mirrored in (False, True))
        pairs = [percentile(y, 99) / percentile(x, 99) for x, y in zip(found[False], found[True], strict=True)]
        middle = [median([each for part in found[mirrored] for each in part]) for mirrored in (False, True)]
        rows.append(
            [
                mode,
                *(f"{1_000 * each:.2f}" for each in (*middle, off, on)),
                f"{on / off:.2f}",
                f"{median(pairs):.2f}",
                *map(str, (counts.completed, counts.failed, counts.dropped)),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.mirror", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="pairs of slices for each mirror (15)")
    parser.add_argument("--rate", type=float, default=200, help="requests per second (200)")
    parser.add_argument("--work-ms", type=float, default=5, help="milliseconds that the app waits (5)")
    options = parser.parse_args()
    rows = measure(options.rounds, options.rate, options.work_ms / 1_000, random.Random(1))
    head = [
        "the mirror",
        "p50 without, ms",
        "p50 with",
        "p99 without",
        "p99 with",
        "ratio of p99",
        "median ratio of slices",
    ]
    print(table([*head, "completed", "failed", "dropped"], rows))


if __name__ == "__main__":
    main()
