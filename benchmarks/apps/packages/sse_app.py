"""sse-starlette: a stream of events that ends by itself."""

import asyncio
from collections.abc import AsyncIterator

import httpx
from fastapi import APIRouter, FastAPI
from sse_starlette import EventSourceResponse

from app_toolkit import DeploymentConfig, Toolkit


def router() -> APIRouter:
    router = APIRouter()

    @router.get("/count")
    async def count(to: int) -> EventSourceResponse:
        async def events() -> AsyncIterator[dict[str, str]]:
            for number in range(to):
                yield {"event": "count", "data": str(number)}
                await asyncio.sleep(0.05)

        return EventSourceResponse(events())

    return router


app = FastAPI()
app.include_router(router())

pinned = Toolkit()
pinned.include_router(router(), deployment=DeploymentConfig(name="events", num_replicas=1))


async def events(url: str, number: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        answer = await client.get("/count", params={"to": number + 1})
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        assert data == [str(count) for count in range(number + 1)]
