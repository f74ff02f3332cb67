"""The API of OpenAI in front of a model with replicas of its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch
from app_toolkit.chat import ChatError, ChatEvent, ChatRequest, TextEvent, openai_router
from app_toolkit.streaming import StreamLogDeployment


class Assistant(Deployment, name="assistant", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100):
    def __init__(self) -> None:
        self._running = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self._running += 1
        try:
            if request.prompt == "fail":
                raise ChatError("the prompt is too long", code="context_length_exceeded")
            for word in request.prompt.split():
                yield TextEvent(word)
            if request.prompt == "wait":
                await asyncio.Event().wait()
        finally:
            self._running -= 1

    async def running(self) -> int:
        return self._running

    @batch(max_batch_size=8)
    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text))] for text in texts]


assistant = Assistant.bind()
app = Toolkit(deployment=DeploymentConfig(name="front", num_replicas=2, ray_actor_options={"num_cpus": 0.1}))
router = openai_router({"assistant": assistant}, embeddings={"assistant": assistant}, log=StreamLogDeployment.bind())
app.include_router(router, prefix="/v1")


@app.get("/running")
async def running(model: Annotated[Assistant, Depends(assistant)]) -> int:
    return await model.running()
