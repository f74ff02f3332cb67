"""The measurements of handle calls in an ingress. All contenders use this code."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median
from typing import Any

import numpy as np

MB = 1024 * 1024
WARM_S = 1.0
STORE_BYTES = 8_000_000_000
"""More bytes than Ray's object store has on a machine with 24 GB, so that writing them touches all of its memory."""


async def latency(call: Callable[[], Awaitable[Any]], seconds: float) -> dict[str, float]:
    """Measure the latency of sequential calls."""
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
    """Measure the items per second of sequential streams with `most` items each."""
    taken = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        async for _ in stream(most):
            taken += 1
    return {"rps": taken / (time.perf_counter() - began)}


_touched = False


async def _touch_the_store(call: Callable[[Any], Awaitable[int]]) -> None:
    """Write to all memory of the object store, once per process."""
    global _touched
    if not _touched:
        _touched = True
        array = np.zeros(64 * MB // 8)
        for _ in range(STORE_BYTES // array.nbytes):
            await call(array)


async def payload(call: Callable[[Any], Awaitable[int]], size: int, seconds: float) -> dict[str, float]:
    """Measure the throughput of calls that send an array and return its size.

    The object store is touched first, because the first access to memory, of a shared store above all, takes several
    times as long.
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
