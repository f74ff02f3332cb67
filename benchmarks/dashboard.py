"""Measure the dashboard with 500 deployments of 10 replicas each: the documents, the server, and the browser.

python -m benchmarks.dashboard --write-docs

The instance is simulated: the real controller on simulated processes, and metrics as of a load. It needs Chromium and
`pip install playwright`.
"""

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from app_toolkit.control.queries import GetStatus
from app_toolkit.operate.aggregate import Numbers
from app_toolkit.operate.dashboard.live import UPDATE_S, Live
from benchmarks.__main__ import machine
from benchmarks.report import replace_section, table
from benchmarks.simulated import SimulatedClient, Traffic, application, served, simulated

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parents[1] / "docs" / "measurements.md"
CLASSES = 4
"""Deployments of an application beside its ingress."""
HEADING = "The dashboard with 500 deployments"
PAGES = {
    "overview": "",
    "a deployment": "deployments/app0/m0",
    "revisions": "traffic",
    "events": "events",
}


@dataclass(frozen=True, slots=True)
class Served:
    """The cost of the documents."""

    first: int
    """Bytes of the document with the whole state."""
    update: float
    """Bytes of the other ones, median."""
    largest: int
    """Bytes of the largest one of them."""
    cpu_s: float
    """CPU time of the event loop for each update, median."""
    longest_s: float
    """The longest of them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The cost of the updates of one page in the browser."""

    page: str
    script_s: float
    """CPU time of the code of the page for an update."""
    cpu_s: float
    """CPU time of the main thread for an update: script, style, layout and paint."""
    longest_s: float
    """The longest task after the first state was drawn; 0: none took 50 ms."""
    heap: int
    """Bytes of JavaScript objects."""
    nodes: int
    """The number of DOM nodes."""


async def measure_documents(client: SimulatedClient, updates: int) -> Served:
    """Follow the instance as the admin server does, and take its documents."""
    traffic = Traffic(client)
    simulating = 0.0

    def latest() -> Numbers:
        nonlocal simulating
        began = time.thread_time()
        found = traffic.latest()
        simulating += time.thread_time() - began
        return found

    live = Live(client, latest)
    running = asyncio.create_task(live.run())
    with live.page() as documents:
        first = await anext(documents)
        sizes, times = [], []
        for _ in range(updates):
            simulating, began = 0.0, time.thread_time()
            sizes.append(len((await anext(documents)).encode()))
            times.append(time.thread_time() - began - simulating)
        await documents.aclose()  # type: ignore[attr-defined]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert json.loads(first)["whole"]
    return Served(len(first.encode()), median(sizes), max(sizes), median(times), max(times))


def measure_page(browser: "Browser", url: str, name: str, path: str, seconds: int) -> Shown:
    """Open a page, and measure what its updates cost."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{url}/#/{path}")
    page.locator("#live.on").wait_for()
    page.wait_for_timeout(5_000)  # until its first state is drawn
    page.evaluate(
        """() => {
          window.longest = 0;
          new PerformanceObserver((list) => {
            for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
          }).observe({ type: "longtask" });
        }"""
    )
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def metrics() -> dict[str, float]:
        return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}

    before = metrics()
    page.wait_for_timeout(seconds * 1_000)
    after = metrics()
    updates = seconds / UPDATE_S
    shown = Shown(
        name,
        (after["ScriptDuration"] - before["ScriptDuration"]) / updates,
        (after["TaskDuration"] - before["TaskDuration"]) / updates,
        page.evaluate("window.longest") / 1_000,
        int(after["JSHeapUsedSize"]),
        int(after["Nodes"]),
    )
    page.close()
    return shown


def report(served: Served, shown: Sequence[Shown]) -> str:
    documents = table(
        ("", "median", "maximum"),
        [
            ("first document, kB", f"{served.first / 1e3:,.0f}", ""),
            ("update, kB", f"{served.update / 1e3:,.0f}", f"{served.largest / 1e3:,.0f}"),
            ("CPU of the server for an update, ms", f"{served.cpu_s * 1e3:,.0f}", f"{served.longest_s * 1e3:,.0f}"),
        ],
    )
    head = ("page", "script, ms", "main thread, ms", "longest task, ms", "JavaScript heap, MB", "nodes")
    pages = table(
        head,
        [
            (
                each.page,
                f"{each.script_s * 1e3:,.1f}",
                f"{each.cpu_s * 1e3:,.0f}",
                f"{each.longest_s * 1e3:,.0f}" if each.longest_s else "< 50",
                f"{each.heap / 1e6:,.0f}",
                f"{each.nodes:,}",
            )
            for each in shown
        ],
    )
    return f"{documents}\n\n{pages}"


def document(served: Served, shown: Sequence[Shown], options: argparse.Namespace) -> str:
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    found, deployments = machine(), options.applications * (CLASSES + 1)
    return f"""`python -m benchmarks.dashboard --write-docs` generates this section; measured on {date}.

A simulated instance has {deployments} deployments in {options.applications} applications, with {options.replicas}
replicas each. All have load, so every number changes. There is at most one update each second. A document is made once
for all pages.

{report(served, shown)}

The machine has {found["cores"]} cores ({found["cpu"]}), and its load average was {os.getloadavg()[1]:.0f}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.dashboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--applications", type=int, default=100, help="number of applications with 5 deployments (100)")
    parser.add_argument("--replicas", type=int, default=10, help="replicas per deployment (10)")
    parser.add_argument("--seconds", type=int, default=20, help="seconds for which each page is measured (20)")
    parser.add_argument("--chromium", default=os.environ.get("APP_TOOLKIT_TEST_CHROMIUM") or shutil.which("chromium"))
    parser.add_argument("--write-docs", action="store_true", help="write the section of docs/measurements.md")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright  # tests of the other parts need none

    if options.chromium is None:
        raise SystemExit("there is no chromium on PATH: name its executable with --chromium")
    applications = (
        application(f"app{number}", classes=CLASSES, replicas=options.replicas)
        for number in range(options.applications)
    )
    with simulated(*applications) as client:
        while client.execute(GetStatus()).status != "healthy":
            time.sleep(1)
        documents = asyncio.run(measure_documents(client, options.seconds))
        with served(client) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
            shown = [measure_page(browser, url, name, path, options.seconds) for name, path in PAGES.items()]
            browser.close()
    print(report(documents, shown))
    if options.write_docs:
        DOCS.write_text(replace_section(DOCS.read_text(), HEADING, document(documents, shown, options)))


if __name__ == "__main__":
    main()
