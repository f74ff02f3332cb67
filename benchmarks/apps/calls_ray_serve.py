"""The same class with a handle of Ray Serve: calls_ray_serve.py PORT"""

import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import calls
import ray
from fastapi import FastAPI
from ray import serve

port = int(sys.argv[1])
api = FastAPI()


@serve.deployment(max_ongoing_requests=1_000)
class Model:
    async def echo(self, text: str) -> str:
        return text

    async def count(self, most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number

    async def size(self, array: Any) -> int:
        return int(array.nbytes)


@serve.deployment
@serve.ingress(api)
class Ingress:
    def __init__(self, model: Any) -> None:
        self.model = model

    @api.get("/")
    async def here(self) -> str:
        return "here"

    @api.get("/latency")
    async def latency(self, seconds: float) -> dict[str, float]:
        return await calls.latency(lambda: self.model.echo.remote("x" * 100), seconds)

    @api.get("/throughput")
    async def throughput(self, seconds: float) -> dict[str, float]:
        return await calls.throughput(lambda: self.model.echo.remote("x" * 100), seconds)

    @api.get("/items")
    async def items(self, seconds: float) -> dict[str, float]:
        streaming = self.model.options(stream=True)
        return await calls.items(streaming.count.remote, seconds)

    @api.get("/payload/{size}")
    async def payload(self, size: int, seconds: float) -> dict[str, float]:
        return await calls.payload(self.model.size.remote, size, seconds)


ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(Ingress.bind(Model.bind()))
print("ready", flush=True)
threading.Event().wait()
