"""Measure sentence embeddings by MiniLM over HTTP, with the same model and batching options for each contender.

python -m benchmarks.peers litserve bentoml ray_serve minilm && python -m benchmarks.embeddings
python -m benchmarks.embeddings --rounds 1 --seconds 5 --only toolkit litserve
python -m benchmarks.embeddings --write-docs      # also write docs/measurements.md
python -m benchmarks.embeddings --read            # read the results of the last run, without measuring

64 clients send one sentence per request, each sentence once, and send the next request as soon as they receive a
response. *Model busy* is the share of the time in which the model computed. The process of the model measures it and
reports it with each response.
"""

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.__main__ import ROOT, _failure, _note, _versions, machine
from benchmarks.contenders import RAY_SERVE_ROLES, Contender
from benchmarks.load import Client, percentile, request_of
from benchmarks.measures import Failed, Figures, Measure, take
from benchmarks.peers import MINILM, minilm
from benchmarks.report import Bound, Need, bounds_table, figure, judge, middle, number, table, with_document
from benchmarks.servers import APPS, CannotStart, Server, python_of, started

CLIENTS = 64
WARM_UP_S = 3
OURS = "toolkit"
PEERS = ("ray-serve", "ray-serve-best", "litserve", "bentoml")
NAME = "embed_64"
FIGURES = ("rps", "p50_ms", "p99_ms", "busy_percent", "cpu_ms")
PATH = "/embed"
DOCS = ROOT / "docs" / "measurements.md"
RESULTS = ROOT / "benchmarks" / "results-embeddings.json"
EXAMPLES = ROOT / "examples"


def body(contender: str, text: str) -> str:
    """Return the request body for a sentence. BentoML batches requests that contain lists."""
    return json.dumps({"texts": [text]} if contender == "bentoml" else {"text": text})


def _contender(name: str, title: str, command: str, **more: Any) -> Contender:
    # All contenders import the model and its dependencies from one folder. app_toolkit is that of this checkout.
    folders = (APPS, EXAMPLES, minilm(), *((ROOT,) if more.get("peer") is None else ()))
    environ = {"PYTHONPATH": ":".join(map(str, folders))} | more.pop("environ", {})
    posts = (PATH, body(name, "warm"))
    return Contender(name, title, command, environ=environ, measures=(NAME,), posts=posts, **more)


def contenders() -> tuple[Contender, ...]:
    ray_serve: dict[str, Any] = {
        "command": "{python} {apps}/minilm_ray_serve.py {port}",
        "says": "ready",
        "peer": "ray_serve",
    }
    return (
        _contender(
            OURS,
            "app_toolkit",
            "{python} -m app_toolkit.cli run {apps}/minilm_toolkit.py --engine ray --host 127.0.0.1 --port {port}",
            roles={"proxy": "_Proxy", "replica": "_Replica"},
            says="Serving ",
        ),
        _contender(
            "toolkit-one-process",
            "app_toolkit, one process",
            "{python} -m uvicorn minilm_toolkit:app --port {port} --no-access-log --log-level warning",
            roles={"replica": "uvicorn"},
        ),
        _contender(
            "ray-serve",
            "Ray Serve, defaults",
            roles={"proxy": "ray::ProxyActor", "replica": "ray::ServeReplica"},
            **ray_serve,
        ),
        _contender(
            "ray-serve-best",
            "Ray Serve, tuned",
            roles=RAY_SERVE_ROLES,
            environ={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"},
            **ray_serve,
        ),
        _contender(
            "litserve",
            "LitServe",
            "{python} {apps}/minilm_lit.py {port}",
            roles={"server": ""},
            peer="litserve",
        ),
        _contender(
            "bentoml",
            "BentoML",
            "{python} -m bentoml serve minilm_bento:Embedder --working-dir {apps} --host 127.0.0.1 --port {port}",
            roles={"server": ""},
            peer="bentoml",
        ),
    )


# The load


class Asking(Client):
    """A client that keeps its responses and their times, so that they are parsed after the measurement."""

    def __init__(self, requests: Iterator[bytes], latencies: list[float], answers: list[tuple[float, bytes]]) -> None:
        super().__init__(requests, latencies)
        self.answers = answers
        self.body: list[bytes] = []

    def on_body(self, part: bytes) -> None:
        self.body.append(part)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.answers.append((time.perf_counter(), b"".join(self.body)))
        self.body.clear()


def busy_s(answer: bytes) -> float:
    """Return the busy time in a response. Raises `Failed` if there is none, or no complete vector."""
    found = re.search(rb'"busy_s":\s*([\d.e+-]+)', answer)
    if found is None or answer.count(b",") < 383:
        raise Failed(f"the response has no vector with a busy time: {answer[:200]!r}")
    return float(found[1])


def sentences(words: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Yield random sentences of 6 to 16 words without end."""
    while True:
        yield " ".join(rng.choices(words, k=rng.randint(6, 16)))


async def ask(
    url: str,
    bodies: Iterator[str],
    clients: int,
    seconds: float,
    cpu: Callable[[], float],
    warm_up_s: float = WARM_UP_S,
) -> Figures:
    """Send requests, and return the figures of `seconds` after the warm-up. Raises `Failed` for a wrong response.

    `cpu` returns the CPU seconds that the server has used so far.
    """
    parts = urlsplit(url)
    requests = (request_of(url, each) for each in bodies)
    latencies: list[float] = []
    answers: list[tuple[float, bytes]] = []
    loop = asyncio.get_running_loop()
    connected = [
        (
            await loop.create_connection(
                lambda: Asking(requests, latencies, answers), parts.hostname or "127.0.0.1", parts.port or 80
            )
        )[1]
        for _ in range(clients)
    ]
    await asyncio.sleep(warm_up_s)
    latencies.clear()
    answers.clear()
    began, used = time.perf_counter(), cpu()
    await asyncio.sleep(seconds)
    elapsed, used = time.perf_counter() - began, cpu() - used
    for client in connected:
        client.transport.abort()
    failed = sum(client.failed for client in connected)
    if failed or len(answers) < 2:
        raise Failed(f"{failed} of {len(answers)} requests failed")
    busy = [(at, busy_s(answer)) for at, answer in answers]
    (first_at, first), (last_at, last) = busy[0], busy[-1]
    return {
        "rps": len(latencies) / elapsed,
        "p50_ms": median(latencies) * 1_000,
        "p99_ms": percentile(latencies, 99) * 1_000,
        "busy_percent": (last - first) / (last_at - first_at) * 100,
        "cpu_ms": used / len(latencies) * 1_000,
    }


def _measure(texts: Iterator[str]) -> Measure:
    def run(server: Server, seconds: int) -> Figures:
        bodies = (body(server.contender.name, text) for text in texts)
        return asyncio.run(ask(server.url + PATH, bodies, CLIENTS, seconds, lambda: server.cpu().total()))

    return Measure(f"MiniLM, {CLIENTS} clients", FIGURES, run)


def measure(chosen: Sequence[Contender], rounds: int, seconds: int, seed: int) -> dict[str, Any]:
    """Measure each contender once per round, in a new random order."""
    there = [each for each in chosen if python_of(each)]
    rng = random.Random(seed)
    embedding = _measure(sentences(_words(), rng))
    figures: dict[str, Any] = {each.name: {} for each in there}
    failed: list[dict[str, Any]] = []
    for round_ in range(rounds):
        for contender in rng.sample(there, len(there)):
            print(f"Round {round_ + 1} of {rounds}: {contender.title}", flush=True)
            try:
                with started(contender) as server:
                    _note(figures[contender.name], NAME, round_, take(embedding, server, seconds))
            except (Failed, CannotStart, OSError) as error:
                failed.append(_failure(contender, NAME, round_, error))
    return {
        "run": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "rounds": rounds,
            "seconds": seconds,
            "seed": seed,
            "clients": CLIENTS,
            "batch": _batch(),
        },
        "titles": {each.name: each.title for each in chosen},
        "machine": machine(),
        "versions": _versions(there) | dict(each.split("==") for each in MINILM),
        "absent": {each.name: "its environment is missing" for each in chosen if each not in there},
        "failed": failed,
        "figures": figures,
    }


def _words() -> list[str]:
    text = (EXAMPLES / "embeddings" / "corpus.py").read_text("utf-8")
    return sorted(set(re.findall(r"[a-z]+", text.lower())))


def _batch() -> dict[str, float]:
    """Return the batching options of the contenders, read from the module that they import."""
    text = (APPS / "minilm.py").read_text("utf-8")
    return {name: float(value) for name, value in re.findall(r"^([A-Z_]+) = ([\d.]+)$", text, re.MULTILINE)}


# The report


def _best(need: Need, name: str, best: Callable[[list[float]], float]) -> float:
    return need(OURS, NAME, name) / best([need(each, NAME, name) for each in PEERS])


BOUNDS = (
    Bound("Model busy", lambda need: need(OURS, NAME, "busy_percent"), 90, unit="%"),
    Bound("Requests/s relative to the best peer", lambda need: _best(need, "rps", max), 1),
    Bound("p99 latency relative to the best peer", lambda need: _best(need, "p99_ms", min), 1, at_most=True),
)
"""The targets."""


def report(results: dict[str, Any]) -> str:
    """Return the medians of the undisturbed rounds, and the CPU that other processes used in all rounds."""
    ours = figure(results, OURS, NAME, "rps")
    rows = []
    for name, title in results["titles"].items():
        found = [figure(results, name, NAME, each) for each in FIGURES]
        others = middle(results["figures"].get(name, {}).get(NAME, {}).get("others_percent", ()))
        ratio = None if ours is None or found[0] is None else found[0] / ours
        rows.append((title, *map(number, (*found, ratio, others))))
    head = (
        "",
        "requests/s",
        "p50, ms",
        "p99, ms",
        "model busy, %",
        "CPU per request, ms",
        "relative to app_toolkit",
        "other processes, % of a core",
    )
    return "\n\n".join((table(head, rows), bounds_table(judge(results, BOUNDS))))


def document(results: dict[str, Any]) -> str:
    run, machine, batch = results["run"], results["machine"], results["run"]["batch"]
    absent = "".join(
        f"{results['titles'][name]} was not measured: {why}.\n\n" for name, why in results["absent"].items()
    )
    return f"""# Embeddings benchmark

`python -m benchmarks.embeddings --write-docs` wrote this section on {run["date"]}: medians of {run["rounds"]} rounds of
{run["seconds"]} s, with {machine["cores"]} cores ({machine["cpu"]}). {run["clients"]} clients send one sentence per
request. All contenders run all-MiniLM-L6-v2 with ONNX Runtime in one process. A batch has up to
{batch["BATCH_SIZE"]:g} sentences and waits up to {batch["WAIT_S"] * 1_000:g} ms. *Model busy* is the share of the time
in which the model computed.

{report(results)}

{absent}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.embeddings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument("--seconds", type=int, default=10, help="duration of the load after the warm-up (10)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the sentences and the order of contenders (1)")
    parser.add_argument("--only", nargs="+", help="measure only these contenders")
    parser.add_argument("--read", action="store_true", help="read the results of the last run, without measuring")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md")
    options = parser.parse_args()
    if options.read:
        results = json.loads(RESULTS.read_text())
    else:
        chosen = [each for each in contenders() if not options.only or each.name in options.only]
        results = measure(chosen, options.rounds, options.seconds, options.seed)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results))
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(results)))


if __name__ == "__main__":
    main()
