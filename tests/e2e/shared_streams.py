"""Chats of two replicas, which therefore keep their streams in the shared log, and in the log that a route names."""

import asyncio
from collections.abc import AsyncIterator

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, ai_sdk_router
from app_toolkit.streaming import SharedStreamLog, resumable, stream_router


async def count(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    for number in range(int(request.prompt)):
        yield TextEvent(f"{number} ")
        await asyncio.sleep(0.02)


def make(title: str) -> Toolkit:
    app = Toolkit(title=title, deployment=DeploymentConfig(name="app", num_replicas=2, max_surge=2))
    app.include_router(ai_sdk_router(count), prefix="/api/chat")
    app.include_router(stream_router(log=SharedStreamLog()), prefix="/streams")

    @app.get("/numbers")
    @resumable(log=SharedStreamLog())
    async def numbers() -> AsyncIterator[int]:
        yield 1

    return app


one, two = make("one"), make("two")
