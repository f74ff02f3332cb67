"""The API of OpenAI in front of a model with replicas of its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, openai_router
from app_toolkit.streaming import StreamLogDeployment


class Assistant(Deployment, name="assistant", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100):
    def __init__(self) -> None:
        self._running = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self._running += 1
        try:
            for word in request.prompt.split():
                yield TextEvent(word)
            if request.prompt == "wait":
                await asyncio.Event().wait()
        finally:
            self._running -= 1

    async def running(self) -> int:
        return self._running


assistant = Assistant.bind()
app = Toolkit(deployment=DeploymentConfig(name="front", num_replicas=2, ray_actor_options={"num_cpus": 0.1}))
router = openai_router({"assistant": assistant}, log=StreamLogDeployment.bind())
app.include_router(router, prefix="/v1")


@app.get("/running")
async def running(model: Annotated[Assistant, Depends(assistant)]) -> int:
    return await model.running()
