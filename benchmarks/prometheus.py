"""Let a real Prometheus scrape a running app for ten minutes, while a replica is killed every minute.

python -m benchmarks.prometheus --write-docs     # ten minutes
python -m benchmarks.prometheus --minutes 2 --out results.json
python -m benchmarks.prometheus --read --write-docs     # write the section of the page from the recorded results

It needs the program `prometheus`. Clients count the status and the outcome of each response. In the end, the totals of
`/metrics` must be equal to their counts, and no sample in Prometheus may be below the one before it.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app_toolkit.observability.counts import CALLS, REQUESTS
from app_toolkit.observability.snapshots import PUSH_S
from app_toolkit.operate.grafana import VARIABLES, dashboard
from benchmarks.__main__ import machine
from benchmarks.apps.measured import TICKS
from benchmarks.contenders import Contender
from benchmarks.report import replace_section, table
from benchmarks.servers import APPS, free_port, started

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "measurements.md"
RESULTS = ROOT / "benchmarks" / "results-prometheus.json"
HEADING = "Prometheus, while replicas are killed"

SCRAPE_S = 2.0
CLIENTS = 6
PAUSE_S = 0.05
"""Seconds that a client waits between two requests."""
KILL_EVERY_S = 60.0
SETTLE_S = 3 * PUSH_S
"""Seconds after the last request until the totals are read."""
PATIENCE_S = 60.0
SLACK_S = 0.5
"""Seconds that a push may take, so that a killed process loses what it counted within PUSH_S and this."""

PATHS = ("GET /order", "POST /order", "GET /missing/{name}", "GET /double/{number}", "GET /ticks")


@dataclass
class Seen:
    """What the clients have seen."""

    responses: Counter[str] = field(default_factory=Counter)
    """Their number by status and outcome."""
    lost: int = 0
    """Connections that ended without a response. Nobody kills the proxy, so there are none."""
    orders: int = 0
    calls: int = 0
    served: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """When each process has served, by deployment and process ID."""

    def add(self, deployment: str, pid: int) -> None:
        self.served.setdefault(deployment, {}).setdefault(pid, []).append(time.monotonic())

    def latest(self, deployment: str) -> int:
        """Return the ID of the process that has served last."""
        return max(self.served[deployment], key=lambda pid: self.served[deployment][pid][-1])

    def within(self, deployment: str, pid: int, seconds: float) -> int:
        """Return how often the process has served within the last seconds."""
        since = time.monotonic() - seconds
        return sum(at >= since for at in self.served[deployment][pid])


@dataclass(frozen=True, slots=True)
class Kill:
    deployment: str
    unpushed: int
    """How often the process has served within the last PUSH_S + SLACK_S seconds."""


async def ask(client: httpx.AsyncClient, url: str, what: str, seen: Seen) -> None:
    """Send one request, and count the response."""
    method, _, path = what.partition(" ")
    path = path.replace("{name}", "tea").replace("{number}", "4")
    try:
        async with client.stream(method, url + path) as response:
            try:
                body = await response.aread()
            except httpx.RemoteProtocolError:
                seen.responses[f"{response.status_code} cut"] += 1
                return
    except httpx.TransportError:
        seen.lost += 1
        return
    outcome = "ok"
    if response.status_code >= 500:
        with suppress(ValueError):
            outcome = json.loads(body)["error"]
    elif path == "/order":
        seen.orders += 1
        seen.add("web", int(body))
    elif path.startswith("/double"):
        seen.calls += 1
        for deployment, pid in zip(("web", "doubler"), json.loads(body), strict=True):
            seen.add(deployment, pid)
    elif path == "/ticks" and body.count(b"data:") != TICKS:
        outcome = "cut"
    seen.responses[f"{response.status_code} {outcome}"] += 1


async def load(url: str, minutes: float, kills: list[Kill]) -> Seen:
    """Send requests, and kill a replica every minute."""
    seen, until = Seen(), time.monotonic() + 60 * minutes

    async def work(number: int, client: httpx.AsyncClient) -> None:
        rng = Random(number)
        while time.monotonic() < until:
            await ask(client, url, rng.choice(PATHS), seen)
            await asyncio.sleep(PAUSE_S)

    async def kill_replicas() -> None:
        for number in range(round(60 * minutes / KILL_EVERY_S)):
            await asyncio.sleep(KILL_EVERY_S / 2 if number == 0 else KILL_EVERY_S)
            deployment = ("web", "web", "doubler")[number % 3]
            pid = seen.latest(deployment)
            os.kill(pid, signal.SIGKILL)
            kills.append(Kill(deployment, seen.within(deployment, pid, PUSH_S + SLACK_S)))
            print(f"{datetime.now(UTC):%H:%M:%S} killed a replica of {deployment}: {seen.responses}", flush=True)

    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client, asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(work(number, client))
        group.create_task(kill_replicas())
    return seen


@contextmanager
def prometheus(admin: str, folder: Path) -> Iterator[str]:
    """Run Prometheus, which scrapes this address. Yield the URL of its API."""
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": f"{SCRAPE_S:g}s"},
                "scrape_configs": [{"job_name": "app_toolkit", "static_configs": [{"targets": [admin]}]}],
            }
        )
    )
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()


class Database:
    """The API of Prometheus."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now. Raises `httpx.HTTPStatusError` if it is wrong."""
        response = self._client.post("/query", data={"query": expression})
        response.raise_for_status()
        found: list[dict[str, Any]] = response.json()["data"]["result"]
        return found

    def value(self, expression: str) -> float:
        """Return the value of an expression that has one series."""
        (series,) = self.query(expression)
        return float(series["value"][1])

    def counters(self) -> list[str]:
        """Return the names of all series of counters and of histograms."""
        metadata = self._client.get("/targets/metadata").raise_for_status().json()["data"]
        suffixes = {"counter": ("",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
        return sorted(each["metric"] + suffix for each in metadata for suffix in suffixes.get(each["type"], ()))


def check(database: Database, seconds: float) -> dict[str, Any]:
    """Return what Prometheus has stored in the last seconds."""
    span = f"{seconds:.0f}s"
    names = database.counters()
    samples = decreases = negative = series_count = 0
    for name in names:
        for series in database.query(f"{name}[{span}]"):
            values = [float(value) for _, value in series["values"]]
            samples += len(values)
            series_count += 1
            decreases += sum(after < before for before, after in pairwise(values))
        for series in database.query(f"min_over_time(rate({name}[30s])[{span}:5s])"):
            negative += float(series["value"][1]) < 0
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    with_data = 0
    for expression in expressions:
        for name in VARIABLES:
            expression = expression.replace(f"${name}", ".*")
        with_data += bool(database.query(expression.replace("$__rate_interval", f"{seconds:.0f}s")))
    return {
        "counters": len(names),
        "series": series_count,
        "samples": samples,
        "decreases": decreases,
        "negative_rates": negative,
        "scrapes": database.value(f"count_over_time(up[{span}])"),
        "failed_scrapes": database.value(f"count_over_time(up[{span}]) - sum_over_time(up[{span}])"),
        "longest_scrape_s": database.value(f"max_over_time(scrape_duration_seconds[{span}])"),
        "expressions": len(expressions),
        "expressions_with_data": with_data,
    }


def totals(admin: str) -> tuple[Counter[str], float, float]:
    """Return the requests of `web` by status and outcome, the orders, and the calls, as of `/metrics`."""
    text = httpx.get(f"http://{admin}/metrics", trust_env=False).text
    requests: Counter[str] = Counter()
    orders = calls = 0.0
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name == REQUESTS and labels["deployment"] == "web":
                requests[f"{labels['status']} {labels['outcome']}"] += int(value)
            elif name == "shop_orders_total":
                orders += value
            elif name == CALLS and labels["outcome"] == "ok":
                calls += value
    return requests, orders, calls


def measure(minutes: float) -> dict[str, Any]:
    port = free_port()
    contender = Contender(
        name="measured",
        title="app_toolkit",
        command=f"{{python}} -m app_toolkit.cli run {APPS / 'measured.py'} --engine ray "
        f"--port {{port}} --admin-port {port}",
        roles={},
        says="Dashboard at",
        gets="/order",
        environ={"APP_TOOLKIT_ADMIN": "true", "PYTHONPATH": str(ROOT)},
    )
    kills: list[Kill] = []
    admin = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, started(contender) as server, prometheus(admin, Path(folder)) as url:
        time.sleep(SETTLE_S)
        before = totals(admin)  # the request that has found it ready
        began = time.monotonic()
        seen = asyncio.run(load(server.url, minutes, kills))
        time.sleep(SETTLE_S)
        after = totals(admin)
        found = check(Database(url), time.monotonic() - began)
    return {
        "run": {"date": f"{datetime.now(UTC):%Y-%m-%d}", "minutes": minutes, "scrape_s": SCRAPE_S},
        "machine": machine(),
        "kills": Counter(kill.deployment for kill in kills),
        "seen": seen.responses,
        "counted": after[0] - before[0],
        "lost": seen.lost,
        "orders": {"seen": seen.orders, "counted": after[1] - before[1]},
        "calls": {"seen": seen.calls, "counted": after[2] - before[2]},
        "unpushed": sum(kill.unpushed for kill in kills if kill.deployment == "web"),
        "prometheus": found,
    }


def section(results: dict[str, Any]) -> str:
    seen, counted, found = results["seen"], results["counted"], results["prometheus"]
    responses = table(
        ("status and outcome", "clients", "`/metrics`"),
        [(name, f"{seen.get(name, 0):,}", f"{counted.get(name, 0):,}") for name in sorted({*seen, *counted})],
    )
    of_replicas = results["orders"]["seen"] + results["calls"]["seen"]
    missing = of_replicas - results["orders"]["counted"] - results["calls"]["counted"]
    bound = f"{results['unpushed']:,}"
    kills = sum(results["kills"].values())
    run, samples, series = results["run"], f"{found['samples']:,}", f"{found['series']:,}"
    every_s, minutes, lost_s = f"{run['scrape_s']:g}", f"{run['minutes']:g}", PUSH_S + SLACK_S
    return f"""\
`python -m benchmarks.prometheus --write-docs` measures this and writes this section, last on {run["date"]}.

Prometheus scrapes an instance with two replicas of `web` and two of `doubler` every {every_s} s for
{minutes} minutes. Meanwhile {CLIENTS} clients send requests, and one replica is killed each minute, {kills} in all.
Prometheus has stored {samples} samples of {series} series of counters and histograms:

| | |
| --- | --: |
| samples that are below the one before | {found["decreases"]:,} |
| series with a negative rate | {found["negative_rates"]:,} |
| scrapes, and failed ones | {found["scrapes"]:,.0f}, {found["failed_scrapes"]:,.0f} |
| longest scrape, ms | {1e3 * found["longest_scrape_s"]:,.0f} |
| expressions of the dashboard, and those with data | {found["expressions"]}, {found["expressions_with_data"]} |

Expressions without data are those of affinity, mirrors and splits, which this app does not use. Proxies count
requests, so their totals are exact:

{responses}

A killed replica loses what it counted since its last push. Replicas count the orders, a counter of the app, and the
calls that they make. The clients have seen {of_replicas:,} of both, and {missing:,.0f} of these are missing.
The bound is {bound}: so many they have seen of the killed processes within {lost_s:g} s before each kill.
A replica may also count a request that is retried.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.prometheus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="duration in minutes (10)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    parser.add_argument("--read", action="store_true", help="read the recorded results, without measuring")
    parser.add_argument("--write-docs", action="store_true", help="write the section of docs/measurements.md")
    options = parser.parse_args()
    if not options.read:
        if shutil.which("prometheus") is None:
            raise SystemExit("install Prometheus, for example the Debian package prometheus")
        options.out.write_text(json.dumps(measure(options.minutes), indent=1) + "\n")
    results = json.loads(options.out.read_text())
    if options.write_docs:
        DOCS.write_text(replace_section(DOCS.read_text(), HEADING, section(results)))
    print(section(results))
    found = results["prometheus"]
    failed = found["decreases"] + found["negative_rates"] + found["failed_scrapes"] + results["lost"]
    sys.exit(1 if failed or results["seen"] != results["counted"] else 0)


if __name__ == "__main__":
    main()
