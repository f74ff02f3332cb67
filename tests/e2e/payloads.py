"""An app whose routes send large things to a class and get them back, and say what they saw."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends

from app_toolkit import Deployment, Toolkit, remote
from app_toolkit.wire.calls import OUT_OF_BAND_BYTES
from tests.engines.contract.ground import Ground

LARGE = OUT_OF_BAND_BYTES
"""Bytes of an array that does not cross a socket."""

Array = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(size: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def lies_in_the_store(address: int) -> bool:
    """Whether what lies there is in memory that this process shares with Ray's store."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return "/plasma" in line
    return False


def look(array: Array) -> dict[str, Any]:
    return {
        "sum": int(array.sum(dtype=np.int64)),
        "size": array.size,
        "writeable": array.flags.writeable,
        "in the store": lies_in_the_store(array.__array_interface__["data"][0]),
    }


class Store(Deployment, max_ongoing_requests=8, resources={"num_cpus": 0.1}):
    async def look(self, array: Array) -> dict[str, Any]:
        return look(array)

    async def length(self, data: bytes) -> tuple[str, int]:
        return type(data).__name__, len(data)

    async def make(self, size: int, seed: int) -> Array:
        return pattern(size, seed)

    async def echo(self, value: Any) -> Any:
        return value

    async def each(self, size: int, count: int) -> AsyncIterator[Array]:
        for seed in range(count):
            yield pattern(size, seed)

    async def hold(self, array: Array, folder: str) -> int:
        ground = Ground(Path(folder))
        ground.note("began")
        try:
            await ground.opened("hold")
        except asyncio.CancelledError:
            ground.note("was cancelled")
            raise
        return array.size

    async def fail(self, size: int) -> None:
        raise Refusal(pattern(size, 3))


class Refusal(Exception):
    """Large, as errors can be."""

    def __init__(self, array: Array) -> None:
        super().__init__("not this one")
        self.array = array


store = Store.bind()
ToStore = Annotated[Store, Depends(store)]
app = Toolkit(title="Payloads")


@app.get("/there/{size}")
async def there(size: int, model: ToStore) -> dict[str, Any]:
    return await model.look(pattern(size, 1))


@app.get("/back/{size}")
async def back(size: int, model: ToStore) -> dict[str, Any]:
    return look(await model.make(size, 1))


@app.get("/bytes/{size}")
async def there_and_back(size: int, model: ToStore) -> list[Any]:
    data = pattern(size, 2).tobytes()
    came = await model.echo(data)
    return [came == data, *await model.length(came)]


@app.get("/passed/{size}")
async def passed(size: int, model: ToStore) -> dict[str, Any]:
    return await remote(model.look, remote(model.make, size, 1).later())


@app.get("/stream/{size}/{count}")
async def stream(size: int, count: int, model: ToStore) -> list[dict[str, Any]]:
    return [look(array) async for array in model.each(size, count)]


@app.get("/fail/{size}")
async def fail(size: int, model: ToStore) -> dict[str, Any]:
    try:
        await model.fail(size)
    except Refusal as refusal:
        return {"said": str(refusal), **look(refusal.array)}
    return {}


@app.get("/hold/{size}")
async def hold(size: int, ground: str, model: ToStore) -> int:
    return await model.hold(pattern(size, 1), ground)


@app.get("/many/{count}/{size}")
async def many(count: int, size: int, model: ToStore) -> int:
    """Calls that send and get so many bytes, eight at a time; gives how many were right."""
    given = pattern(size, 4)
    numbers = iter(range(count))

    async def some() -> int:
        right = 0
        for _ in numbers:
            right += bool((await model.echo(given) == given).all())
        return right

    return sum(await asyncio.gather(*(some() for _ in range(8))))
