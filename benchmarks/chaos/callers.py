"""Several callers, and a replica that has one slot: whether it rests while they wait, and whether all wait alike."""

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
"""The application of one replica with one slot."""

CLIENTS = 4
"""Of each caller: as soon as one was answered, it asks again."""

SERVICE_S = 0.02

MOST_TRIES = 100
"""Connections, for each caller, until the kernel has given it its clients."""


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
    told = f"{len(callers)} proxies of {CLIENTS} clients each, {SERVICE_S * 1e3:g} ms for a request"
    return [
        lost("GET", found),
        Row("the slot: in use", in_use(entries.values()) * 100, 95, "%", at_least=True, saw=told, clocked=True),
        Row("proxies that were asked", len(waits_ms), len(callers), at_least=True),
        Row(
            "mean wait of the caller that waits longest, of the shortest",
            max(waits_ms) / min(waits_ms),
            2,
            "×",
            saw=f"{max(waits_ms):.1f} ms, {min(waits_ms):.1f} ms",
        ),
    ]


def in_use(entries: Collection[Entry]) -> float:
    """For which part of the time, from the first start to the last end, handlers ran; one at a time."""
    busy = sum(entry.ended - entry.started for entry in entries)
    return busy / (max(entry.ended for entry in entries) - min(entry.started for entry in entries))


def mean_waits_s(found: Sequence[Done], entries: Mapping[str, Entry]) -> list[float]:
    """From when a request was sent until its handler started: of each caller."""
    waits: dict[str, list[float]] = {}
    for done in found:
        waits.setdefault(done.proxy, []).append(entries[done.id].started - done.sent)
    return [mean(each) for each in waits.values()]


async def _clients_of_each(system: System, callers: int, stack: AsyncExitStack) -> list[Client]:
    """`CLIENTS` for each proxy. They share a port, and which one has a connection is the kernel's choice."""
    found: dict[str, list[Client]] = {}
    for _ in range(callers * MOST_TRIES):
        if sum(map(len, found.values())) == callers * CLIENTS:
            break
        client = await stack.enter_async_context(system.client())
        theirs = found.setdefault((await client.get(path="/sleep/0")).proxy, [])
        if len(theirs) < CLIENTS:
            theirs.append(client)
    return list(itertools.chain.from_iterable(found.values()))
