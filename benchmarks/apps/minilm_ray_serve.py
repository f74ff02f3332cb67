"""MiniLM on Ray Serve: minilm_ray_serve.py PORT"""

import asyncio
import sys
import threading
from typing import Any

import ray
from fastapi import FastAPI
from minilm import BATCH_SIZE, ONGOING, WAIT_S, TimedMiniLM
from pydantic import BaseModel
from ray import serve

api = FastAPI()


class Query(BaseModel):
    text: str


class Answer(BaseModel):
    vector: list[float]
    busy_s: float


@serve.deployment(max_ongoing_requests=ONGOING)
@serve.ingress(api)
class Embedder:
    def __init__(self) -> None:
        self.model = TimedMiniLM()

    @serve.batch(max_batch_size=BATCH_SIZE, batch_wait_timeout_s=WAIT_S)
    async def embed(self, texts: list[str]) -> list[dict[str, Any]]:
        return await asyncio.to_thread(
            self.model, texts
        )  # on the event loop it would block the requests of the next batch

    @api.post("/embed", response_model=Answer)
    async def answer(self, query: Query) -> dict[str, Any]:
        return await self.embed(query.text)


ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Embedder.bind())
print("ready", flush=True)
threading.Event().wait()
