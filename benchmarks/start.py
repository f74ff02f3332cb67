"""Measure start, memory, idle CPU, replacement and speed of servers with several processes, in one run.

python -m benchmarks.start                # `python -m benchmarks.peers gunicorn granian ray_serve` creates the peers
python -m benchmarks.start --write-docs   # also write docs/measurements.md
python -m benchmarks.start --only uvicorn processes --rounds 3

Each round starts each contender with one, two and four workers (replicas), in a new random order.
"""

import argparse
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from app_toolkit.control.operations import Deploy, Scale
from app_toolkit.control.queries import GetApplication
from app_toolkit.errors import ToolkitError
from app_toolkit.operate.http import HTTPClient
from benchmarks.__main__ import machine
from benchmarks.contenders import ITEM, RAY_SERVE_ROLES, Contender
from benchmarks.load import Load, load, mixed_load
from benchmarks.report import with_document
from benchmarks.servers import CannotStart, Server, python_of, started

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "measurements.md"
RESULTS = Path(__file__).parent / "results-start.json"

WORKERS = (1, 2, 4)
SETTLE_S = 2.0
"""Seconds after the first response before memory and idle CPU are measured."""
IDLE_S = 5
CHANGE_S = 60.0
"""Seconds in which workers must have started, or must have been replaced."""
CALLERS = 8
"""Clients that send requests while workers are replaced. As they are more than the workers, all workers get some."""
SLOW_SHARE = 0.05
"""The share of the requests of the mixed load that compute for 60 ms."""
CHANGED = "changed"
"""The application of app_toolkit whose replicas are changed."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Served(Contender):
    """A contender whose command has the placeholder `{workers}`."""

    grow: Callable[[Server, int], None] | None = None
    """Asks for this number of workers. None: it cannot be asked."""
    renew: Callable[[Server], None] | None = None
    """Asks for new workers in place of the running ones. None: it cannot be asked."""
    add: Callable[[Server], None] | None = None
    """Starts the workers that are changed, before they are. None: all workers are changed."""
    changes: str = "/process"
    """The path that a changed worker answers with the ID of its process."""

    def with_workers(self, number: int) -> "Served":
        return replace(self, command=self.command.replace("{workers}", str(number)))


def _signals(number: signal.Signals) -> Callable[..., None]:
    return lambda server, *_: server.process.send_signal(number)


def _add(server: Server) -> None:
    """Deploy the app once more: on Ray, only `run` itself can change the application that it serves."""
    with closing(HTTPClient(server.admin_url)) as client:
        spec, _ = client.execute(GetApplication("default"))
        added = spec.model_copy(update={"name": CHANGED, "route_prefix": f"/{CHANGED}"})
        client.wait_until_serving({CHANGED: client.execute(Deploy(added))}, CHANGE_S)


def _scale(server: Server, number: int) -> None:
    with closing(HTTPClient(server.admin_url)) as client:
        client.execute(Scale(f"{CHANGED}/app", number))


def _deploy(server: Server) -> None:
    """Deploy the app with another option that only new replicas can apply."""
    with closing(HTTPClient(server.admin_url)) as client:
        spec, _ = client.execute(GetApplication(CHANGED))
        (app,) = spec.deployments
        resources = app.config.resources.model_copy(update={"num_cpus": 0.11})
        app = app.model_copy(update={"config": app.config.model_copy(update={"resources": resources})})
        client.execute(Deploy(spec.model_copy(update={"deployments": (app,)})))


def _toolkit(name: str, title: str, options: str) -> Served:
    return Served(
        name=name,
        title=title,
        command=f"{{python}} -m app_toolkit.cli run {{apps}}/toolkit.py {options} --num-replicas {{workers}} "
        "--host 127.0.0.1 --port {port} --admin-port {admin_port}",
        roles={},
        grow=_scale,
        renew=_deploy,
        add=_add,
        changes=f"/{CHANGED}/process",
    )


UVICORN = "uvicorn"
CONTENDERS: tuple[Served, ...] = (
    Served(
        name=UVICORN,
        title="uvicorn --workers",
        command="{python} -m uvicorn bare:app --app-dir {apps} --port {port} --workers {workers} --no-access-log "
        "--log-level warning",
        roles={},
        grow=_signals(signal.SIGTTIN),
        renew=_signals(signal.SIGHUP),
    ),
    Served(
        name="gunicorn",
        title="gunicorn, asgi, --preload",
        command="{python} -m gunicorn bare:app --worker-class asgi --preload --workers {workers} "
        "--bind 127.0.0.1:{port} --log-level warning",
        roles={},
        peer="gunicorn",
        grow=_signals(signal.SIGTTIN),
        renew=_signals(signal.SIGHUP),
    ),
    Served(
        name="granian",
        title="Granian",
        command="{python} -m granian bare:app --interface asgi --workers {workers} --host 127.0.0.1 --port {port} "
        "--log-level warning --no-access-log",
        roles={},
        peer="granian",
        renew=_signals(signal.SIGHUP),
    ),
    _toolkit("processes", "app_toolkit, edge=replica", "--engine processes --edge replica"),
    _toolkit("processes-proxy", "app_toolkit, edge=proxy", "--engine processes --edge proxy"),
    _toolkit("ray", "app_toolkit on Ray", "--engine ray"),
    Served(
        name="ray-serve",
        title="Ray Serve, tuned",
        command="{python} {apps}/ray_serve.py {port} {workers} 1000",
        roles=RAY_SERVE_ROLES,
        peer="ray_serve",
        environ={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"},
    ),
)
TITLES = {contender.name: contender.title for contender in CONTENDERS}

START_FIGURES: Mapping[str, str] = {
    "first_1": "command to first response, 1 worker: s",
    "first_2": "command to first response, 2 workers: s",
    "processes": "processes, 1 worker",
    "memory": "memory, 1 worker: MiB",
    "each": "memory of each further worker: MiB",
    "idle_1": "idle CPU, 1 worker: % of a core",
    "idle_4": "idle CPU, 4 workers: % of a core",
    "grow": "one more worker: s",
    "renew": "replacement of 4 workers: s",
    "lost": "failed requests during the replacement",
}
"""The figures of start, memory and change, by name."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A load on two workers."""

    title: str
    run: Callable[[Server, int], Load]
    figure: str = "rps"
    lower_is_better: bool = False


SPEEDS: Mapping[str, Speed] = {
    "get": Speed("GET, 32 clients: requests/s", lambda server, s: load(f"{server.url}/", 32, s)),
    "post": Speed("validated POST, 32 clients: requests/s", lambda server, s: load(f"{server.url}/item", 32, s, ITEM)),
    "order": Speed(
        "POST with 1 ms of work, 16 clients: requests/s", lambda server, s: load(f"{server.url}/order", 16, s, ITEM)
    ),
    "stream": Speed("stream of 100, 8 clients: streams/s", lambda server, s: load(f"{server.url}/stream", 8, s)),
    "mixed": Speed(
        "mixed load, 16 clients: p99, ms",
        lambda server, s: mixed_load(server.url, "/compute", SLOW_SHARE, 16, s),
        figure="p99_ms",
        lower_is_better=True,
    ),
}


class Failed(Exception):
    """A measurement has no result."""


def measure(contenders: Sequence[Served], rounds: int, seconds: int, seed: int) -> dict[str, Any]:
    names = (*START_FIGURES, *SPEEDS)
    figures: dict[str, dict[str, list[float | None]]] = {each.name: {name: [] for name in names} for each in contenders}
    failed: list[str] = []
    rng = random.Random(seed)
    for number in range(rounds):
        for contender in rng.sample(list(contenders), len(contenders)):
            print(f"Round {number + 1} of {rounds}: {contender.title}", flush=True)
            results: dict[str, float] = {}
            for workers, phase in zip(WORKERS, (_alone, _loaded, _changing), strict=True):
                try:
                    with started(contender.with_workers(workers)) as server:
                        for name, value in phase(server, contender, seconds):
                            results[name] = value
                except (CannotStart, Failed, ToolkitError, ValueError, OSError, subprocess.SubprocessError) as error:
                    failed.append(f"round {number + 1}, {contender.name}, {workers} workers: {error}")
                    print(f"  {failed[-1]}", flush=True)
            if "memory" in results and "memory_4" in results:
                results["each"] = (results["memory_4"] - results["memory"]) / 3
            for name in names:
                figures[contender.name][name].append(results.get(name))
    run = {"rounds": rounds, "seconds": seconds, "seed": seed}
    return {"run": run, "machine": machine(), "failed": failed, "figures": figures}


def _alone(server: Server, _: Served, __: int) -> Iterator[tuple[str, float]]:
    yield "first_1", server.first_response_s
    time.sleep(SETTLE_S)
    processes = server.family()
    yield "processes", len(processes)
    yield "memory", memory(processes)
    yield "idle_1", idle(server)


def _loaded(server: Server, _: Served, seconds: int) -> Iterator[tuple[str, float]]:
    yield "first_2", server.first_response_s
    load(server.url, 32, 1)  # warm
    for name, speed in SPEEDS.items():
        found = speed.run(server, seconds)
        if found.failed or not found.requests:
            raise Failed(f"{name}: {found.failed} of {found.requests} requests failed")
        yield name, getattr(found, speed.figure)


def _changing(server: Server, contender: Served, _: int) -> Iterator[tuple[str, float]]:
    time.sleep(SETTLE_S)
    yield "memory_4", memory(server.family())
    yield "idle_4", idle(server)
    if contender.add is not None:
        contender.add(server)
    with Callers(server, contender.changes) as callers:
        _until(lambda: len(callers.workers) == 4, "reached")
        old = set(callers.workers)
        if contender.renew is not None:
            failed, began = callers.failed, time.perf_counter()
            contender.renew(server)
            _until(lambda: len(callers.workers - old) >= 4 and not any(map(psutil.pid_exists, old)), "replaced")
            yield "renew", time.perf_counter() - began
            yield "lost", callers.failed - failed
        if contender.grow is not None:
            old, began = set(callers.workers), time.perf_counter()
            contender.grow(server, 5)
            _until(lambda: bool(callers.workers - old), "joined by a fifth one")
            yield "grow", time.perf_counter() - began


def memory(processes: Sequence[psutil.Process]) -> float:
    """Return the memory of processes in MiB. Each page that several processes share counts once."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / MIB


def idle(server: Server) -> float:
    """Return the CPU usage without requests, in percent of one core."""
    before, began = _cpu_s(server), time.perf_counter()
    time.sleep(IDLE_S)
    return (_cpu_s(server) - before) / (time.perf_counter() - began) * 100


def _cpu_s(server: Server) -> float:
    """Return the CPU seconds of all threads. Elsewhere, the kernel counts them in ticks of 10 ms."""
    total = 0
    for process in server.family():
        for thread in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(thread.read_text().split()[0])
    return total / 1e9


def _until(condition: Callable[[], bool], change: str) -> None:
    deadline = time.perf_counter() + CHANGE_S
    while not condition():
        if time.perf_counter() > deadline:
            raise Failed(f"the workers were not {change} within {CHANGE_S:g} s")
        time.sleep(0.002)


class Callers:
    """Clients that ask for the ID of the worker until the end of the block. Each request has its own connection."""

    def __init__(self, server: Server, path: str) -> None:
        self.workers: set[int] = set()
        self.failed = 0
        """Responses without status 200, and connections that were closed without a response."""
        self._port, self._path = server.port, path
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._call, daemon=True) for _ in range(CALLERS)]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        while not self._ends.is_set():
            connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
            try:
                with closing(connection):
                    connection.request("GET", self._path, headers={"connection": "close"})
                    response = connection.getresponse()
                    content = response.read()
            except (OSError, HTTPException):
                self.failed += 1
                continue
            if response.status == 200:
                self.workers.add(int(content))
            else:
                self.failed += 1


# The page


def table(figures: Mapping[str, Mapping[str, Sequence[float | None]]], titles: Mapping[str, str]) -> str:
    """Return the median of each figure as Markdown, with one column for each contender."""
    columns = [TITLES[name] for name in figures]
    lines = ["| " + " | ".join(["", *columns]) + " |", "| --- " + "| --: " * len(columns) + "|"]
    for name, title in titles.items():
        cells = [_shown([value for value in found[name] if value is not None]) for found in figures.values()]
        lines.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join(lines)


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    middle = median(values)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"


def ratio_table(figures: Mapping[str, Mapping[str, Sequence[float | None]]]) -> str:
    """Return the ratios to uvicorn of each round as Markdown: the median, and the lowest and the highest."""
    others = [name for name in figures if name != UVICORN]
    lines = [
        "| " + " | ".join(["", *(TITLES[name] for name in others)]) + " |",
        "| --- " + "| --: " * len(others) + "|",
    ]
    for name, speed in SPEEDS.items():
        cells = []
        for contender in others:
            pairs = zip(figures[contender][name], figures[UVICORN][name], strict=True)
            ratios = [one / other for one, other in pairs if one is not None and other]
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "–")
        better = " (lower is better)" if speed.lower_is_better else ""
        lines.append("| " + " | ".join([speed.title.partition(":")[0] + better, *cells]) + " |")
    return "\n".join(lines)


def document(results: Mapping[str, Any]) -> str:
    machine, run, figures = results["machine"], results["run"], results["figures"]
    ratios = f"Ratios to `uvicorn --workers 2`, by round:\n\n{ratio_table(figures)}\n\n" if UVICORN in figures else ""
    missing = "".join(f"- {sentence.splitlines()[0]}\n" for sentence in results["failed"])
    missing = f"\nWithout a result:\n\n{missing}" if missing else ""
    return f"""# Start and memory benchmark

`python -m benchmarks.start --write-docs` writes this section. The figures are medians of {run["rounds"]} rounds; each
round measures the contenders in a new random order. The machine has {machine["cores"]} cores ({machine["cpu"]},
{machine["system"]}), so only ratios are comparable with other machines. All contenders serve the same FastAPI app.

## Start, memory, idle CPU and changes

{table(figures, START_FIGURES)}

Memory is PSS, {SETTLE_S:g} s after the first response. *One more worker* is SIGTTIN of uvicorn and gunicorn, and a
scale of app_toolkit. The *replacement* is SIGHUP of the other servers, and a deployment with another option of
app_toolkit, under the load of {CALLERS} clients with a connection for each request.

## Speed with two workers

{table(figures, {name: speed.title for name, speed in SPEEDS.items()})}

{ratios}Each load takes {run["seconds"]} s. The work of 1 ms is CPU time in the endpoint. In the mixed load,
{SLOW_SHARE:.0%} of the requests compute for 60 ms, and the others return a small document.
{missing}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument("--seconds", type=int, default=2, help="duration of each load (2)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the contenders (1)")
    parser.add_argument("--only", nargs="+", choices=list(TITLES), help="measure only these contenders")
    parser.add_argument("--read", action="store_true", help="read the results of the last run, without measuring")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md")
    options = parser.parse_args()
    if options.read:
        results = json.loads(RESULTS.read_text())
    else:
        chosen = [each for each in CONTENDERS if each.name in (options.only or TITLES) and python_of(each)]
        results = measure(chosen, options.rounds, options.seconds, options.seed)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results["figures"], {**START_FIGURES, **{name: speed.title for name, speed in SPEEDS.items()}}))
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(results)))


if __name__ == "__main__":
    main()
