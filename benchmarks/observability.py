"""Measure what observability costs: an instance without it, beside instances with metrics, logs and traces.

All instances run at the same time, and slices of one second measure them alternately, as in `benchmarks.ab`. They are
started several times, in different orders: two starts of the same instance differ by some percent.

python -m benchmarks.observability
python -m benchmarks.observability --rounds 10 --only get_32
"""

import argparse
import platform
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from statistics import median

from benchmarks.ab import TITLES, Figures, measure, ratios
from benchmarks.contenders import Contender
from benchmarks.measures import MEASURES, Failed

OFF = "off"
MEASURED = ("get_32", "stream_8")


def contenders(collector: str) -> list[Contender]:
    """Return the instances. `collector`: the URL of a collector of OpenTelemetry."""
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
    on = "--admin --admin-port 0 --access-log true"
    return [
        _instance(OFF, "without an admin server and an access log", "--no-admin --access-log false", {}),
        _instance("on", "metrics, admin server, access log", on, {}),
        _instance(
            "some traces",
            "the same, and traces of 1 % of the requests",
            on,
            traces | {"OTEL_TRACES_SAMPLER_ARG": "0.01"},
        ),
        _instance("all traces", "the same, and traces of all requests", on, traces | {"OTEL_TRACES_SAMPLER_ARG": "1"}),
    ]


def _instance(name: str, title: str, options: str, environ: dict[str, str]) -> Contender:
    return Contender(
        name=name,
        title=title,
        command="{python} -m app_toolkit.cli run {apps}/toolkit.py --engine ray "
        f"--host 127.0.0.1 --port {{port}} --num-replicas 2 {options}",
        roles={"proxy": "_Proxy", "replica": "_Replica"},
        says="Serving ",
        environ=environ,
    )


def table(instances: list[Contender], figures: Figures) -> str:
    lines = ["| measure | instance | median | relative to the first one |", "| --- | --- | --: | --: |"]
    for name, found in figures.items():
        unit = MEASURES[name].figures[0]
        for each in instances:
            beside = "1" if each.name == OFF else str(ratios(found[each.name], found[OFF]))
            lines.append(f"| {TITLES[name]}: {unit} | {each.title} | {median(found[each.name]):,.4g} | {beside} |")
    return "\n".join(lines)


@contextmanager
def collecting() -> Iterator[str]:
    """Run a collector that takes spans and keeps none. Yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.observability", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=5, help="how often the instances are started (5)")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds after each start (10)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order within a round (1)")
    parser.add_argument("--only", nargs="+", choices=MEASURED, default=MEASURED, help="measurements (default: all)")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with collecting() as collector:
        instances = contenders(collector)
        figures: dict[str, dict[str, list[float]]] = {
            name: {each.name: [] for each in instances} for name in options.only
        }
        try:
            for _ in range(options.starts):
                order = rng.sample(instances, len(instances))
                for name, found in measure(order, options.only, options.rounds, rng).items():
                    for instance, values in found.items():
                        figures[name][instance].extend(values)
        except Failed as error:
            sys.exit(f"a slice failed: {error}")
    print(table(instances, figures))
    names = ("ray", "fastapi", "uvicorn", "opentelemetry-sdk")
    print(", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)]))


if __name__ == "__main__":
    main()
