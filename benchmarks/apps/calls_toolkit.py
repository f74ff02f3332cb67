"""A class with a handle of app_toolkit."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import calls
from fastapi import Depends

from app_toolkit import Deployment, Toolkit


class Model(Deployment, max_ongoing_requests=1_000):
    async def echo(self, text: str) -> str:
        return text

    async def count(self, most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number

    async def size(self, array: Any) -> int:
        return int(array.nbytes)


model = Model.bind()
ToModel = Annotated[Model, Depends(model)]
app = Toolkit()


@app.get("/")
async def here() -> str:
    return "here"


@app.get("/latency")
async def latency(model: ToModel, seconds: float) -> dict[str, float]:
    return await calls.latency(lambda: model.echo("x" * 100), seconds)


@app.get("/throughput")
async def throughput(model: ToModel, seconds: float) -> dict[str, float]:
    return await calls.throughput(lambda: model.echo("x" * 100), seconds)


@app.get("/items")
async def items(model: ToModel, seconds: float) -> dict[str, float]:
    return await calls.items(model.count, seconds)


@app.get("/payload/{size}")
async def payload(model: ToModel, size: int, seconds: float) -> dict[str, float]:
    return await calls.payload(model.size, size, seconds)
