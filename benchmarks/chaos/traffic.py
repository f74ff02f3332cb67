"""Background traffic of four kinds: GET, POST, streams and WebSockets."""

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
"""Maximum GET requests per second in the short form. Other processes use the machine then, so the capacity can drop to
a tenth of the value that was measured in one second."""

POSTS = 10.0
"""POST requests per second."""

STREAMS = 1.0
"""New streams per second."""

TALKERS = 8
TALK_EVERY_S = 0.2
AGAIN_S = 0.1
"""How long a client waits before it opens its next WebSocket."""

PROPER = ("1000", "1001", "1012")
"""The expected close codes of a WebSocket: normal closure, going away, service restart."""


@dataclass(slots=True)
class Traffic:
    """The outcomes of all requests and WebSockets; complete after the end of the traffic."""

    gets: list[Done] = field(default_factory=list)
    posts: list[Done] = field(default_factory=list)
    streams: list[Done] = field(default_factory=list)
    dialogues: list[Dialogue] = field(default_factory=list)

    @property
    def messages(self) -> list[Done]:
        return [message for dialogue in self.dialogues for message in dialogue.messages]


@asynccontextmanager
async def traffic(system: System, short: bool) -> AsyncIterator[Traffic]:
    """Send GET at a fifth of the capacity, POST, streams and WebSocket messages to an app that reports its versions.

    In the short form, the rate of GET is at most `SHORT_RATE`. At the end of the block, no new request starts, and all
    requests in flight are awaited.
    """
    stream_s = 2 if short else 15
    over, found = asyncio.Event(), Traffic()
    async with system.client() as client, system.client(patience_s=stream_s + 10) as patient:
        rate = min(await capacity_of(client, short) / 5, SHORT_RATE if short else math.inf)
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
    """Open one WebSocket after the other until `over` is set."""
    while not over.is_set():
        dialogues.append(await talk(system.address, f"{system.prefix}/echo", TALK_EVERY_S, over))
        await asyncio.sleep(AGAIN_S)


def nothing_lost(found: Traffic, ledger: Ledger) -> list[Row]:
    """Check that each request got its response, each POST ran once, and no stream or WebSocket ended early."""
    written = ledger.of(done.id for done in found.posts)
    return [
        lost("GET", found.gets),
        lost("POST", found.posts),
        Row("POST: executed more than once", executed_twice(written.values()), 0),
        Row("POST: successful, but not in the ledger", sum(done.id not in written for done in ok(found.posts)), 0),
        lost("streams", found.streams),
        lost("messages over WebSockets", found.messages),
        Row(
            f"WebSockets: ended without close code {', '.join(PROPER[:-1])} or {PROPER[-1]}",
            sum(dialogue.closed not in PROPER for dialogue in found.dialogues),
            0,
            saw=ends(found),
        ),
    ]


def ends(found: Traffic) -> str:
    """Return the number of WebSockets by close code."""
    codes = Counter(dialogue.closed for dialogue in found.dialogues)
    return ", ".join(f"{count} {code}" for code, count in codes.most_common())
