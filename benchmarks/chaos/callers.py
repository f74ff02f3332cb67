"""Several proxies share a replica with one request slot: is it busy while requests wait, and are all waits equal?"""

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from statistics import mean

from benchmarks.chaos.client import Client, Done, closed_loop, ok
from benchmarks.chaos.ledger import Entry
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import lost
from benchmarks.chaos.system import System

NARROW = "narrow"
"""An application with one replica, which has one request slot."""

CLIENTS = 4
"""Clients per proxy. Each sends its next request as soon as it has received a response."""

SERVICE_S = 0.02

MOST_TRIES = 100
"""Maximum number of connections per proxy that are opened until every proxy has its clients."""


async def callers_share_a_slot(system: System, short: bool) -> list[Row]:
    callers = await asyncio.to_thread(system.proxies)
    seconds = 2 if short else 30
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(system.deployed(NARROW, NARROW))
        clients = await _clients_of_each(app, len(callers), stack)
        loops = (closed_loop(partial(client.get, path=f"/sleep/{SERVICE_S}"), 1, seconds) for client in clients)
        found = list(itertools.chain.from_iterable(await asyncio.gather(*loops)))
    entries = system.ledger.of(done.id for done in found)
    waits_ms = [wait * 1e3 for wait in mean_waits_s(ok(found), entries)]
    setup = f"{len(callers)} proxies with {CLIENTS} clients each, {SERVICE_S * 1e3:g} ms per request"
    return [
        lost("GET", found),
        Row(
            "share of the time in which the replica was busy",
            in_use(entries.values()) * 100,
            95,
            "%",
            at_least=True,
            saw=setup,
            clocked=True,
        ),
        Row("proxies that received requests", len(waits_ms), len(callers), at_least=True),
        Row(
            "longest mean wait at a proxy relative to the shortest",
            max(waits_ms) / min(waits_ms),
            2,
            "×",
            saw=f"{max(waits_ms):.1f} ms, {min(waits_ms):.1f} ms",
        ),
    ]


def in_use(entries: Collection[Entry]) -> float:
    """Return the share of the time from the first start to the last end in which a handler ran, one at a time."""
    busy = sum(entry.ended - entry.started for entry in entries)
    return busy / (max(entry.ended for entry in entries) - min(entry.started for entry in entries))


def mean_waits_s(found: Sequence[Done], entries: Mapping[str, Entry]) -> list[float]:
    """Return the mean time from sending a request until its handler started, for each proxy."""
    waits: dict[str, list[float]] = {}
    for done in found:
        waits.setdefault(done.proxy, []).append(entries[done.id].started - done.sent)
    return [mean(each) for each in waits.values()]


async def _clients_of_each(system: System, callers: int, stack: AsyncExitStack) -> list[Client]:
    """Connect `CLIENTS` clients to each proxy. The proxies share a port; the kernel assigns the connections."""
    found: dict[str, list[Client]] = {}
    for _ in range(callers * MOST_TRIES):
        if sum(map(len, found.values())) == callers * CLIENTS:
            break
        client = await stack.enter_async_context(system.client())
        theirs = found.setdefault((await client.get(path="/sleep/0")).proxy, [])
        if len(theirs) < CLIENTS:
            theirs.append(client)
    return list(itertools.chain.from_iterable(found.values()))
