"""Measure what affinity and a second live revision cost, in one interleaved run behind one proxy.

python -m benchmarks.traffic                     # 20 rounds of one second each
python -m benchmarks.traffic --rounds 40

Each of the 32 clients of wrk sends GET requests with the ID of its user in a header. All applications have the same
code and two replicas. With live revisions, each of two revisions has one replica.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx
import psutil

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.control.operations import AddCandidate, Deploy
from app_toolkit.control.queries import GetStatus
from app_toolkit.declare.planning import plan
from app_toolkit.engines.ray.starting import start_instance
from app_toolkit.userapp.loading import load
from benchmarks.ab import Spread, ratios
from benchmarks.load import parse_wrk
from benchmarks.servers import APPS

PLAIN, AFFINITY, REVISIONS, BOTH = "plain", "affinity", "revisions", "both"
TITLES = {
    PLAIN: "without both",
    AFFINITY: "affinity by header",
    REVISIONS: "two live revisions",
    BOTH: "two live revisions, and affinity by header",
}
KEY = "header:x-user"
CLIENTS = 32
START_S = 120.0

SCRIPT = """
local users = 0
function setup(thread)
  thread:set("user", users)
  users = users + 1
end
function init(args)
  wrk.headers["X-User"] = "user-" .. user
end
"""
"""Each thread has one connection, and so each connection has one user."""


@contextmanager
def serving() -> Iterator[tuple[str, psutil.Process]]:
    """Serve the applications with a Ray of their own. Yield the URL, and the process of the proxy."""
    sys.path.insert(0, str(APPS))
    app: Any = load("toolkit:app", str(APPS))
    client = start_instance(num_cpus=4)
    try:
        for name in TITLES:
            revision = client.execute(Deploy(_spec(app, name), HTTPOptions(port=0), owner=client.owner))
            client.wait_until_serving({name: revision}, START_S)
        for name in (REVISIONS, BOTH):
            number = client.execute(AddCandidate(_spec(app, name), share=0.5, owner=client.owner))
            client.wait_until_serving({name: number}, START_S)
        url = client.execute(GetStatus()).url or ""
        yield url, _proxy(url)
    finally:
        client.shutdown()


def _spec(app: Any, name: str) -> ApplicationSpec:
    options: dict[str, Any] = {"num_replicas": 1 if name in (REVISIONS, BOTH) else 2}
    if name in (AFFINITY, BOTH):
        options["affinity"] = KEY
    prefix = f"/{name}"
    return plan(
        app, target="toolkit:app", app_dir=str(APPS), name=name, route_prefix=prefix, overrides={"app": options}
    )


def _proxy(url: str) -> psutil.Process:
    port = httpx.URL(url).port
    sockets = psutil.net_connections("tcp")
    return psutil.Process(
        next(
            each.pid
            for each in sockets
            if each.pid and each.status == psutil.CONN_LISTEN and getattr(each.laddr, "port", None) == port
        )
    )


def slice_of(url: str, name: str, proxy: psutil.Process) -> Mapping[str, float]:
    """Return the requests per second, and the microseconds of CPU of the proxy for each. Raises `ValueError`."""
    before = sum(proxy.cpu_times()[:2])
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT)
        script.flush()
        command = ["wrk", f"-t{CLIENTS}", f"-c{CLIENTS}", "-d1s", "--latency", "-s", script.name, f"{url}/{name}/"]
        found = parse_wrk(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout)
    if found.failed:
        raise ValueError(f"{found.failed} of {found.requests} requests failed")
    return {"rps": found.rps, "proxy_us": (sum(proxy.cpu_times()[:2]) - before) / found.requests * 1e6}


def table(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the medians, and the ratios to the application without any of it, as Markdown."""
    lines = ["| | requests/s | ratio (quartiles) | CPU of the proxy, µs per request |", "| --- | --: | --: | --: |"]
    for name, title in TITLES.items():
        found = figures[name]
        ratio: Spread | str = "" if name == PLAIN else ratios(found["rps"], figures[PLAIN]["rps"])
        lines.append(f"| {title} | {median(found['rps']):,.0f} | {ratio} | {median(found['proxy_us']):.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.traffic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds (20)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order within a round (1)")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    figures: dict[str, dict[str, list[float]]] = {name: {"rps": [], "proxy_us": []} for name in TITLES}
    with serving() as (url, proxy):
        for number in range(-1, options.rounds):  # the first round warms up
            for name in rng.sample(list(TITLES), len(TITLES)):
                for figure, value in slice_of(url, name, proxy).items():
                    if number >= 0:
                        figures[name][figure].append(value)
    print(table(figures))


if __name__ == "__main__":
    main()
