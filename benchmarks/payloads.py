"""Compare the transfer of large payloads over the socket and through Ray's object store, and check for leaks.

python -m benchmarks.payloads                # a table of milliseconds per call in each direction, for 0.1 to 64 MB
python -m benchmarks.payloads --leak 10000   # the memory in use after 10,000 calls that echo 1 MB through the store,
                                             # and after ten times as many small calls over the socket

From `OUT_OF_BAND_BYTES` in `app_toolkit/wire/calls.py` on, the object store is faster in both directions.
"""

import argparse
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import ray

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.operations import Deploy
from app_toolkit.declare.planning import plan
from app_toolkit.engines.ray.starting import start_instance
from app_toolkit.userapp.loading import load
from benchmarks.chaos.system import Actors, System
from benchmarks.report import table as markdown

APPS = Path(__file__).parent / "apps"
MB = 1_000_000
SMALL = 100
"""Size of a small payload in bytes."""
SIZES = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
"""Payload sizes in MB."""
WAYS = ("there", "back")
AT_ONCE_MB = 64
"""MB per measurement. It determines the number of calls: smaller payloads are sent more often."""
MOST_CALLS = 50
START_S = 60.0
EMPTY_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the measurements (1)")
    parser.add_argument(
        "--leak",
        type=int,
        default=0,
        metavar="CALLS",
        help="make this many calls, and show the memory in use afterwards",
    )
    options = parser.parse_args()
    with serving() as (client, pids):
        if options.leak:
            print(left_behind(client, pids, options.leak))
        else:
            print(table(measure(client, options.rounds, options.seed)))


def measure(client: httpx.Client, rounds: int, seed: int) -> dict[tuple[float, str, bool], list[float]]:
    """Return the median seconds per call of each round, by size in MB, direction, and whether it was out-of-band.

    Each round shuffles the measurements, but keeps socket and store of the same size and direction adjacent.
    """
    rng = random.Random(seed)
    found: dict[tuple[float, str, bool], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for size, way in rng.sample([(size, way) for size in SIZES for way in WAYS], len(SIZES) * len(WAYS)):
            for out_of_band in rng.sample([False, True], 2):
                count = min(MOST_CALLS, max(3, int(AT_ONCE_MB / size)))
                asked: dict[str, Any] = {"count": count + 1, "out_of_band": out_of_band}
                answer = client.get(f"/times/{way}/{int(size * MB)}", params=asked).raise_for_status()
                found[size, way, out_of_band].append(median(answer.json()[1:]))
    return found


def table(found: dict[tuple[float, str, bool], list[float]]) -> str:
    lines = [
        "| MB | there: socket | store | back: socket | store |",
        "| --: | --: | --: | --: | --: |",
    ]
    for size in SIZES:
        cells = [
            f"{median(found[size, way, out_of_band]) * 1e3:.2f} ms" for way in WAYS for out_of_band in (False, True)
        ]
        lines.append(f"| {size:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def left_behind(client: httpx.Client, pids: Mapping[str, int], count: int) -> str:
    """Return a table of the memory in use before and after the calls."""
    rounds = ((10 * count, SMALL, False), (count, MB, True))
    for number, size, out_of_band in rounds:
        many(client, number // 100, size, out_of_band)  # warm up, so that one-time allocations do not count
    heads, found = ["MB", "before"], [held(client, pids)]
    for number, size, out_of_band in rounds:
        begin = time.perf_counter()
        right = many(client, number, size, out_of_band)
        seconds = time.perf_counter() - begin
        deadline = time.monotonic() + EMPTY_S
        while in_the_store() > found[0]["the store"] and time.monotonic() < deadline:
            time.sleep(0.1)
        heads.append(f"after {number:,} calls with {size:,} bytes ({right:,} correct, {seconds:.0f} s)")
        found.append(held(client, pids))
    return markdown(heads, [[name, *(f"{each[name]:.1f}" for each in found)] for name in found[0]])


def many(client: httpx.Client, count: int, size: int, out_of_band: bool) -> int:
    """Make the calls. Return how many returned the payload unchanged."""
    asked: dict[str, Any] = {"out_of_band": out_of_band}
    right: int = client.get(f"/many/{count}/{size}", params=asked).raise_for_status().json()
    return right


def held(client: httpx.Client, pids: Mapping[str, int]) -> dict[str, float]:
    """Return the MB in the store, and the resident MB of each process without and with shared memory."""
    client.get("/memory").raise_for_status()  # triggers a garbage collection in caller and callee
    found = {"the store": in_the_store()}
    for name, pid in pids.items():
        memory = psutil.Process(pid).memory_info()
        name = name.partition("@")[0]
        found[name] = (memory.rss - memory.shared) / MB
        found[f"{name}, including shared memory"] = memory.rss / MB
    return found


def in_the_store() -> float:
    """Return the MB in use in Ray's object store."""
    there, free = ray.cluster_resources(), ray.available_resources()  # type: ignore[no-untyped-call]
    return float(there["object_store_memory"] - free["object_store_memory"]) / MB


@contextmanager
def serving() -> Iterator[tuple[httpx.Client, Mapping[str, int]]]:
    """Serve the app with its own Ray instance. Yield an HTTP client and the process IDs by name."""
    target = "payloads:app"
    app: Any = load(target, str(APPS))
    client = start_instance(num_cpus=2)
    try:
        spec = plan(app, target=target, app_dir=str(APPS))
        revision = client.execute(Deploy(spec, HTTPOptions(port=0), owner=client.owner))
        status = client.wait_until_serving({spec.name: revision}, START_S)
        with httpx.Client(base_url=status.url or "", trust_env=False, timeout=None) as http:
            yield http, System(client, Actors(""), "default", Path(os.devnull)).processes()
    finally:
        client.shutdown()


if __name__ == "__main__":
    main()
