"""Chat models that share replicas: each replica loads the models that requests name."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit, multiplexed, options, replica_context
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, openai_router

NAMES = [f"translator-{number}" for number in range(6)]


class Translators(Deployment, num_replicas=2, ray_actor_options={"num_cpus": 0.1}):
    @multiplexed(max_models=len(NAMES))
    async def model(self, name: str) -> AsyncIterator[str]:
        yield name.upper()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async with self.model(request.model) as model:
            yield TextEvent(f"{model} of {replica_context().replica_id}")


translators = Translators.bind()


class Large(Deployment, num_replicas=2, max_ongoing_requests=2, ray_actor_options={"num_cpus": 0.1}):
    """Has room for one model, which takes longer to load than to use."""

    def __init__(self) -> None:
        self.loads = 0

    @multiplexed(max_models=1)
    async def model(self, name: str) -> AsyncIterator[str]:
        await asyncio.sleep(0.15)
        self.loads += 1
        yield name

    async def ask(self, name: str) -> tuple[str, int]:
        async with self.model(name):
            await asyncio.sleep(0.05)
        return replica_context().replica_id, self.loads


large = Large.bind()

app = Toolkit(title="Translators", deployment=DeploymentConfig(name="translators-api", num_replicas=2))
app.include_router(openai_router(dict.fromkeys(NAMES, translators)), prefix="/v1")


@app.get("/large/{name}")
async def ask(name: str, model: Annotated[Large, Depends(large)]) -> tuple[str, int]:
    return await options(model, affinity=name).ask(name)
