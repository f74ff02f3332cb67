"""Compare chats whose conversations are stored in SQLite or in PostgreSQL with chats that are not stored.

python -m benchmarks.stored_chats                          # 50 and 500 streams at once, in turns
python -m benchmarks.stored_chats --postgresql URL         # also in an empty database, postgresql://user@host/database
python -m benchmarks.stored_chats --write-docs             # and write the section of docs/measurements.md

The server is one uvicorn process. Each stream is a new conversation with one message.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.__main__ import ROOT
from benchmarks.contenders import Contender
from benchmarks.load import percentile, request_of
from benchmarks.measures import Failed, Figures
from benchmarks.report import number, table, with_document
from benchmarks.servers import Server, started

DOCS = ROOT / "docs" / "measurements.md"

TOKENS = 100
PERIOD_S = 0.1
SPREAD_S = 8.0
"""Seconds in which the streams begin, so that at the end of them all are open."""
STREAMS = (50, 500)
TOKEN = b'"text-delta"'
END = b"\n0\r\n\r\n"
"""The last chunk of a response."""
PATIENCE_S = 60.0
PREFACE = (
    f"`python -m benchmarks.stored_chats` begins {' and '.join(map(str, STREAMS))} new conversations within "
    f"{SPREAD_S:g} s on one uvicorn process. Each response has {TOKENS} tokens, one every {PERIOD_S * 1_000:g} ms. The "
    "figures are milliseconds, the medians of rounds that run in turns. The message of the user is stored before the "
    "model is called, and the response after its last token."
)


@dataclass(frozen=True, slots=True)
class Store:
    """Where conversations are stored."""

    title: str
    database: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgresql", metavar="URL", help="also measure this database, which is empty")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the measurements (1)")
    parser.add_argument("--write-docs", action="store_true", help="write the section of docs/measurements.md")
    options = parser.parse_args()
    stores = [Store("nowhere"), Store("SQLite", "conversations.db")]
    if options.postgresql:
        stores.append(Store("PostgreSQL", options.postgresql))
    document = report(measure(stores, options.rounds, options.seed))
    print(document)
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text("utf-8"), document), "utf-8")


def measure(stores: Sequence[Store], rounds: int, seed: int) -> Mapping[tuple[str, int], list[Figures]]:
    """Return the figures of each round by the title of the store and the number of streams."""
    rng = random.Random(seed)
    figures: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    for _ in range(rounds):
        for store in rng.sample(stores, len(stores)):
            with started(contender(store)) as server:
                asyncio.run(stream(server, 3, 0.0))  # the first one creates the tables
                for streams in STREAMS:
                    before = server.cpu().total()
                    found = asyncio.run(stream(server, streams, SPREAD_S))
                    used = (server.cpu().total() - before) / streams
                    figures[store.title, streams].append({**found, "cpu_ms": used * 1_000})
    return figures


def contender(store: Store) -> Contender:
    """Return the server of a chat."""
    return Contender(
        name=store.title,
        title=store.title,
        command="{python} -m uvicorn stored_chats:app --port {port} --no-access-log",
        says="Uvicorn running",
        gets="/health",
        roles={},
        environ={
            "PYTHONPATH": f"{Path(__file__).parent / 'apps'}:{ROOT}",  # the toolkit of this checkout
            "CHAT_TOKENS": str(TOKENS),
            "CHAT_PERIOD_S": str(PERIOD_S),
            "CHAT_DATABASE": store.database,
        },
    )


class Reader(asyncio.Protocol):
    """Reads one response, and notes when its tokens arrive."""

    def __init__(self, request: bytes) -> None:
        self.arrivals: list[float] = []
        self.tokens = 0
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.asked_at = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if count := data.count(TOKEN):
            self.arrivals.append(time.perf_counter())
            self.tokens += count
        self._rest = data[1 - len(TOKEN) :]  # a token or the end may be split
        if data.endswith(END):
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(None)


async def stream(server: Server, streams: int, spread_s: float) -> Figures:
    """Begin so many conversations within that time. Raises `Failed` if a token is missing."""
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(streams):
        request = partial(Reader, request_of(f"{server.url}/api/chat", question()))
        readers.append((await loop.create_connection(request, "127.0.0.1", server.port))[1])
        await asyncio.sleep(spread_s / streams)
    await asyncio.wait([reader.ended for reader in readers], timeout=TOKENS * PERIOD_S + PATIENCE_S)
    tokens = sum(reader.tokens for reader in readers)
    if tokens != streams * TOKENS:
        raise Failed(f"{tokens:,} of {streams * TOKENS:,} tokens arrived")
    firsts = [reader.arrivals[0] - reader.asked_at for reader in readers]
    gaps = [after - before for each in readers for before, after in zip(each.arrivals, each.arrivals[1:], strict=False)]
    return {
        f"{name}_p{percent}_ms": percentile(values, percent) * 1_000
        for name, values in (("first", firsts), ("gap", gaps))
        for percent in (50, 99)
    }


def question() -> str:
    """Return the request of a new conversation."""
    id = uuid.uuid4().hex
    message = {"id": f"{id}-1", "role": "user", "parts": [{"type": "text", "text": "How are you?"}]}
    return json.dumps({"id": id, "trigger": "submit-message", "messages": [message]})


def report(figures: Mapping[tuple[str, int], list[Figures]]) -> str:
    """Return the figures as a section of a page."""
    names = ("first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms", "cpu_ms")
    rows = [
        (store, str(streams), *(number(median(figure[name] for figure in rounds)) for name in names))
        for (store, streams), rounds in sorted(figures.items(), key=lambda item: (item[0][1], item[0][0] != "nowhere"))
    ]
    head = ("Stored", "Streams", "First token", "99 %", "Gap", "99 %", "CPU per response")
    versions = ", ".join(f"{name} {version(name)}" for name in ("app-toolkit", "fastapi", "uvicorn", "sqlalchemy"))
    return f"""# Stored chats

{PREFACE}

Python {platform.python_version()}, {versions}, {os.cpu_count()} cores

{table(head, rows)}
"""


if __name__ == "__main__":
    main()
