"""Traffic of all four kinds at once, for as long as something is done to the app that it goes to."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from benchmarks.chaos.client import Client, Dialogue, Done, new_id, ok, open_loop, talk
from benchmarks.chaos.ledger import Ledger, executed_twice
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import capacity_of, lost
from benchmarks.chaos.system import System

SHORT_RATE = 50.0
"""GET a second at most in a short form: others use the machine then, and a capacity that was measured in one second may
be a tenth of that in the next minute."""

POSTS = 10.0
"""A second."""

STREAMS = 1.0
"""Begun a second."""

TALKERS = 8
TALK_EVERY_S = 0.2
AGAIN_S = 0.1
"""How long a client waits before it opens a WebSocket once more."""

PROPER = ("1000", "1001", "1012")
"""How a WebSocket may end: it is over, the server goes, the server restarts."""


@dataclass(slots=True)
class Traffic:
    """What became of it, once it is over."""

    gets: list[Done] = field(default_factory=list)
    posts: list[Done] = field(default_factory=list)
    streams: list[Done] = field(default_factory=list)
    dialogues: list[Dialogue] = field(default_factory=list)

    @property
    def messages(self) -> list[Done]:
        return [message for dialogue in self.dialogues for message in dialogue.messages]


@asynccontextmanager
async def traffic(system: System, short: bool) -> AsyncIterator[Traffic]:
    """GET at a third of capacity, and beside it POST, streams and WebSockets; to an app that has versions.

    In a short form GET is at `SHORT_RATE` at most. At the end of the block nothing new begins; all that has begun is
    waited for.
    """
    stream_s = 2 if short else 15
    over, found = asyncio.Event(), Traffic()
    async with system.client() as client, system.client(patience_s=stream_s + 10) as patient:
        rate = min(await capacity_of(client, short) / 3, SHORT_RATE if short else math.inf)
        count = partial(_count, patient, stream_s)
        async with asyncio.TaskGroup() as group:
            gets = group.create_task(open_loop(client.get, rate, math.inf, over))
            posts = group.create_task(open_loop(client.post, POSTS, math.inf, over))
            streams = group.create_task(open_loop(count, STREAMS, math.inf, over))
            for _ in range(TALKERS):
                group.create_task(_talk_on(system, over, found.dialogues))
            try:
                yield found
            finally:
                over.set()
    found.gets, found.posts, found.streams = gets.result(), posts.result(), streams.result()


async def _count(client: Client, seconds: int, due: float) -> Done:
    expected = b"".join(b"%d\n" % number for number in range(seconds * 10))
    return await client.ask("GET", f"/count/{seconds}", new_id(), due, expected=expected)


async def _talk_on(system: System, over: asyncio.Event, dialogues: list[Dialogue]) -> None:
    """One WebSocket after the other."""
    while not over.is_set():
        dialogues.append(await talk(system.address, f"{system.prefix}/echo", TALK_EVERY_S, over))
        await asyncio.sleep(AGAIN_S)


def nothing_lost(found: Traffic, ledger: Ledger) -> list[Row]:
    """Every request has its answer, every POST was executed once, no stream ends early, no WebSocket is cut."""
    written = ledger.of(done.id for done in found.posts)
    return [
        lost("GET", found.gets),
        lost("POST", found.posts),
        Row("POST that was executed twice", executed_twice(written.values()), 0),
        Row("POST that succeeded and is not in the ledger", sum(done.id not in written for done in ok(found.posts)), 0),
        lost("streams", found.streams),
        lost("messages over WebSockets", found.messages),
        Row(
            f"WebSockets that ended other than with {', '.join(PROPER[:-1])} or {PROPER[-1]}",
            sum(dialogue.closed not in PROPER for dialogue in found.dialogues),
            0,
            saw=ends(found),
        ),
    ]


def ends(found: Traffic) -> str:
    """How often WebSockets ended in which way."""
    codes = Counter(dialogue.closed for dialogue in found.dialogues)
    return ", ".join(f"{count} {code}" for code, count in codes.most_common())
