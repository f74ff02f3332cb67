"""What an ingress measures of the handle it has: the same code for every contender."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median
from typing import Any

import numpy as np

MB = 1024 * 1024
WARM_S = 1.0
STORE_BYTES = 8_000_000_000
"""More than Ray's store has on a machine of 24 GB, and than it can hand out without handing something out again."""


async def latency(call: Callable[[], Awaitable[Any]], seconds: float) -> dict[str, float]:
    """One call after another."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await call()
        took.append(time.perf_counter() - began)
    took.sort()
    return {"p50_ms": median(took) * 1e3, "p99_ms": took[int(len(took) * 0.99)] * 1e3}


async def throughput(call: Callable[[], Awaitable[Any]], seconds: float, callers: int = 32) -> dict[str, float]:
    done = 0
    end = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return {"rps": done / (time.perf_counter() - began)}


async def items(stream: Callable[[int], AsyncIterator[Any]], seconds: float, most: int = 1_000) -> dict[str, float]:
    """Streams of so many items, one after another, each read to its end."""
    taken = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        async for _ in stream(most):
            taken += 1
    return {"rps": taken / (time.perf_counter() - began)}


_touched = False


async def _touch_the_store(call: Callable[[Any], Awaitable[int]]) -> None:
    """Once in a process, by arrays that go through a store wherever one is used."""
    global _touched
    if not _touched:
        _touched = True
        array = np.zeros(64 * MB // 8)
        for _ in range(STORE_BYTES // array.nbytes):
            await call(array)


async def payload(call: Callable[[Any], Awaitable[int]], size: int, seconds: float) -> dict[str, float]:
    """An array goes there, and its length comes back.

    Many have gone before: memory that nobody has touched yet, of a shared store above all, costs several times as much.
    """
    await _touch_the_store(call)
    array = np.arange(size * MB // 8, dtype=np.float64)
    warm = time.perf_counter() + WARM_S
    while time.perf_counter() < warm:
        await call(array)
    sent = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        assert await call(array) == array.nbytes
        sent += 1
    return {"mb_s": sent * array.nbytes / 1e6 / (time.perf_counter() - began)}
