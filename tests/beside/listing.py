"""The corpus against the edge and against plain uvicorn, side by side.

python -m tests.beside.listing                  # print the table
python -m tests.beside.listing --write-docs     # write docs/edge.md
"""

import argparse
import asyncio
import inspect
import logging
import re
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge.protocol import Timeouts
from app_toolkit.edge.request_parser import HeadLimits
from app_toolkit.edge.server import SWEEP_S
from app_toolkit.exchange.filters.upload_pacing import MEASURE_S
from app_toolkit.exchange.request import DISCARDED_BODY, KEPT_BODY
from app_toolkit.exchange.upload_rate import PROMPT, PROMPT_S
from app_toolkit.types import ASGIApp
from tests.beside.app import Ledger, build
from tests.beside.client import Outcome, observe
from tests.beside.corpus import CORPUS, Entry
from tests.edge.world import RunningProxy, World, eventually

PAGE = Path(__file__).parents[2] / "docs" / "edge.md"
TEXT = Path(__file__).with_name("page.md")
SILENCE_S = 1.5
AT_ONCE = 16


@contextmanager
def ours(ledger: Ledger) -> Iterator[int]:
    """The port of our proxy, with one replica behind it."""
    with tempfile.TemporaryDirectory() as folder:
        edge = RunningProxy(Timeouts())
        world = World(edge, Path(folder))
        try:
            world.one(app=ledger)
            yield world.port
        finally:
            world.close()
            edge.close()


@contextmanager
def plain(app: ASGIApp) -> Iterator[int]:
    """The port of uvicorn with httptools, otherwise as it comes."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_config=None))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def observed(port: int, ledger: Ledger) -> list[Outcome]:
    """What came of each entry, in the corpus's order."""

    def ask(entry: Entry) -> Outcome:
        return observe(entry, port, ledger, SILENCE_S, most=2_000)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ask, CORPUS))


def smuggled(outcome: Outcome) -> bool:
    return any("/smuggled" in line for line in outcome.ran)


def cell(outcome: Outcome) -> str:
    statuses = outcome.statuses
    if len(set(statuses)) == 1 and len(statuses) > 2:
        said = f"{len(statuses):,} × {statuses[0]}"
    else:
        said = ", ".join(map(str, statuses)) or "no answer"
    return f"{said}, {outcome.end}" + (", **ran `/smuggled`**" if smuggled(outcome) else "")


def table(our: list[Outcome], their: list[Outcome]) -> str:
    """A row for each entry with which the edge and uvicorn do different things."""
    rows = ["| entry | kind | the edge | plain uvicorn |", "|---|---|---|---|"]
    for entry, mine, its in zip(CORPUS, our, their, strict=True):
        if cell(mine) != cell(its):
            rows.append(f"| {entry.name} | {entry.kind} | {cell(mine)} | {cell(its)} |")
    return "\n".join(rows)


def counts(our: list[Outcome], their: list[Outcome]) -> str:
    rows = [f"| of {len(CORPUS)} entries | the edge | plain uvicorn |", "|---|---|---|"]
    for name, holds in {
        "ran two requests out of one": smuggled,
        "answered 500": lambda outcome: 500 in outcome.statuses,
        "hung: neither answered, nor served another request, nor closed": lambda outcome: outcome.end == "hung",
    }.items():
        rows.append(f"| {name} | {sum(map(holds, our))} | {sum(map(holds, their))} |")
    return "\n".join(rows)


def page(observations: str, summary: str) -> str:
    """docs/edge.md: its text, the numbers that the code has, and what was observed."""
    limits, timeouts, options = HeadLimits(), Timeouts(), HTTPOptions()
    return TEXT.read_text("utf-8").format(
        limits=limits,
        head_kib=limits.head_bytes // 1024,
        url_kib=limits.url_bytes // 1024,
        discarded_mib=DISCARDED_BODY // 1024**2,
        kept_kib=KEPT_BODY // 1024,
        measure_s=MEASURE_S,
        prompt_kib=PROMPT.bytes_per_s / 1024,
        soon_s=PROMPT_S,
        grace_s=PROMPT.grace_s,
        timeouts=timeouts,
        options=options,
        sweep_s=SWEEP_S,
        silence_s=SILENCE_S,
        uvicorn=uvicorn.__version__,
        table=observations,
        counts=summary,
    )


def listed(text: str) -> list[tuple[str, str, str]]:
    """Each row of a page: the entry's name, its kind, and what the edge did."""
    _, _, rows = text.partition("| entry |")
    return re.findall(r"^\| ([^|]+) \| (\w+) \| ([^|]+) \|", rows, re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=inspect.getdoc(inspect.getmodule(main)))
    parser.add_argument("--write-docs", action="store_true", help="write docs/edge.md")
    arguments = parser.parse_args()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it warns of most of what follows
    ledger = build()
    with ours(ledger) as port:
        our = observed(port, ledger)
    ledger = build()
    with plain(ledger) as port:
        their = observed(port, ledger)
    if arguments.write_docs:
        PAGE.write_text(page(table(our, their), counts(our, their)), "utf-8")
    else:
        print(table(our, their), counts(our, their), sep="\n\n")


if __name__ == "__main__":
    main()
