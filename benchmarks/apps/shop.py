"""A shop for the dashboard: routes that call a batched and an autoscaled deployment, streams, WebSockets, and failures.

app-toolkit run benchmarks/apps/shop.py --name shop
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, WebSocket
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel

from app_toolkit import AutoscalingConfig, Deployment, DeploymentConfig, Toolkit, batch

SLOWDOWN = 1.0
"""The factor of the latencies. `benchmarks/screenshots.py` deploys another one as a second revision."""
PRICES = {f"tea-{number}": 2 + number / 10 for number in range(100)}

logger = logging.getLogger("shop")


async def work(typical_s: float) -> None:
    await asyncio.sleep(typical_s * SLOWDOWN * random.lognormvariate(0, 0.4))


class Embedder(Deployment, num_replicas=2):
    @batch(max_batch_size=16, batch_wait_timeout_s=0.02)
    async def embed(self, texts: list[str]) -> list[float]:
        await work(0.01)
        return [len(text) / 10 for text in texts]


class Ranker(
    Deployment,
    num_replicas="auto",
    autoscaling_config=AutoscalingConfig(min_replicas=1, max_replicas=4, target_ongoing_requests=1),
):
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def rank(self, query: str) -> list[str]:
        vectors = await asyncio.gather(*map(self._embedder.embed, query.split()))
        await work(0.03)
        return [name for name, price in PRICES.items() if price > sum(vectors)][:5]


ranker = Ranker.bind(Embedder.bind().handle)
search = APIRouter(prefix="/search")
chat = APIRouter(prefix="/chat")


@search.get("")
async def find(query: str, model: Annotated[Ranker, Depends(ranker)]) -> list[str]:
    return await model.rank(query)


class Word(BaseModel):
    text: str


@chat.get("", response_class=EventSourceResponse)
async def reply(words: int = 100) -> AsyncIterable[Word]:
    for number in range(words):
        await asyncio.sleep(0.1)
        yield Word(text=f"word {number}")


@chat.websocket("/socket")
async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    async for message in websocket.iter_text():
        await websocket.send_text(message.upper())


app = Toolkit(title="Shop", deployment=DeploymentConfig(name="web", num_replicas=2))
app.include_router(search, deployment=DeploymentConfig(name="search", num_replicas=2))
app.include_router(chat, deployment=DeploymentConfig(name="chat"))


@app.get("/items/{name}")
async def price(name: str) -> float:
    await work(0.004)
    if name not in PRICES:
        logger.warning("there is no item %s", name)
    return PRICES[name]
