"""An app with metrics of its own, whose routes call a class and stream."""

import asyncio
import os
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.sse import EventSourceResponse
from prometheus_client import Counter, Gauge
from prometheus_fastapi_instrumentator import Instrumentator

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch

ORDERS = Counter("shop_orders", "Orders.", ["kind"])
DEPTH = Gauge("shop_depth", "Depth.")

CPUS = {"num_cpus": 0.1}


class Doubler(Deployment, resources=CPUS):
    @batch(max_batch_size=4)
    async def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]


doublers = Doubler.bind()
app = Toolkit(title="measured", deployment=DeploymentConfig(name="web", num_replicas=2, resources=CPUS))
Instrumentator().instrument(app)


@app.get("/orders/{kind}")
async def order(kind: str) -> int:
    ORDERS.labels(kind).inc()
    DEPTH.set(7)
    if kind == "none":
        raise HTTPException(404)
    return os.getpid()


@app.get("/double/{number}")
async def double(number: int, doubler: Annotated[Doubler, Depends(doublers)]) -> int:
    return await doubler.double(number)


@app.get("/ticks", response_class=EventSourceResponse)
async def ticks() -> AsyncIterable[int]:
    for tick in range(5):
        await asyncio.sleep(0.02)
        yield tick
