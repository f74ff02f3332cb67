"""A class that receives and returns arrays, and routes that time its calls over the socket or Ray's object store."""

import asyncio
import gc
import os
import sys
import time
from typing import Annotated, Any, Literal

import numpy as np
import psutil
from fastapi import Depends

from app_toolkit import Deployment, Toolkit
from app_toolkit.wire import calls

Array = np.ndarray[Any, np.dtype[np.uint8]]

CLIENTS = 8
"""The number of concurrent calls of `many`."""


class Store(Deployment, max_ongoing_requests=CLIENTS, resources={"num_cpus": 0.1}):
    def __init__(self) -> None:
        self.kept = np.zeros(0, np.uint8)

    async def switch(self, at: int, size: int) -> None:
        """Send payloads of at least `at` bytes out-of-band, and let `give` return an array of `size` bytes."""
        calls.OUT_OF_BAND_BYTES = at
        self.kept = np.ones(size, np.uint8)

    async def take(self, array: Array) -> int:
        return array.size

    async def give(self) -> Array:
        return self.kept

    async def echo(self, array: Array) -> Array:
        return array

    async def memory(self) -> int:
        return memory()


store = Store.bind()
ToStore = Annotated[Store, Depends(store)]
app = Toolkit(title="Payloads")


def memory() -> int:
    """Return the unique set size of this process in bytes, after a garbage collection."""
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_full_info().uss)


@app.get("/times/{way}/{size}")
async def times(way: Literal["there", "back"], size: int, count: int, out_of_band: bool, model: ToStore) -> list[float]:
    """Return the seconds of each of `count` sequential calls."""
    at = 0 if out_of_band else sys.maxsize
    calls.OUT_OF_BAND_BYTES = sys.maxsize
    await model.switch(at, size)
    calls.OUT_OF_BAND_BYTES = at
    array = np.ones(size, np.uint8)
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        await (model.take(array) if way == "there" else model.give())
        found.append(time.perf_counter() - begin)
    return found


@app.get("/many/{count}/{size}")
async def many(count: int, size: int, model: ToStore, out_of_band: bool = True) -> int:
    """Echo `size` bytes in `count` calls. Return how many calls returned them unchanged."""
    at = 0 if out_of_band else sys.maxsize
    await model.switch(at, 0)
    calls.OUT_OF_BAND_BYTES = at
    array = np.arange(size, dtype=np.uint8)
    numbers = iter(range(count))

    async def some() -> int:
        right = 0
        for _ in numbers:
            right += np.array_equal(await model.echo(array), array)
        return right

    return sum(await asyncio.gather(*(some() for _ in range(CLIENTS))))


@app.get("/memory")
async def both(model: ToStore) -> list[int]:
    return [memory(), await model.memory()]
