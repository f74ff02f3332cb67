"""The app that benchmarks.prometheus measures: routes, a class with batches, a stream, and a metric of its own."""

import asyncio
import os
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.sse import EventSourceResponse
from prometheus_client import Counter

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch

ORDERS = Counter("shop_orders", "Orders.")
CPUS = {"num_cpus": 0.1}
TICKS = 20
TICK_S = 0.05


class Doubler(Deployment, num_replicas=2, resources=CPUS):
    @batch(max_batch_size=4)
    async def double(self, numbers: list[int]) -> list[tuple[int, int]]:
        await asyncio.sleep(0.01)
        return [(2 * number, os.getpid()) for number in numbers]


doublers = Doubler.bind()
app = Toolkit(title="measured", deployment=DeploymentConfig(name="web", num_replicas=2, resources=CPUS))


@app.get("/order")
async def order() -> int:
    await asyncio.sleep(0.02)
    ORDERS.inc()
    return os.getpid()


@app.post("/order")
async def post_order() -> int:
    return await order()


@app.get("/missing/{name}")
async def missing(name: str) -> None:
    raise HTTPException(404, f"there is no {name}")


@app.get("/double/{number}")
async def double(number: int, doubler: Annotated[Doubler, Depends(doublers)]) -> list[int]:
    _, pid = await doubler.double(number)
    return [os.getpid(), pid]


@app.get("/ticks", response_class=EventSourceResponse)
async def ticks() -> AsyncIterable[int]:
    for tick in range(TICKS):
        await asyncio.sleep(TICK_S)
        yield tick
