"""One model behind every route that a chat client can talk to, and a count of its responses that run."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from typing import Annotated

from fastapi import Depends, WebSocket
from fastapi.sse import EventSourceResponse

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    ai_sdk_router,
    api_keys,
    openai_router,
    websocket_router,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueFull
from app_toolkit.streaming import StreamLogDeployment, resumable, stream_router

KEY = "the-key-of-the-clients"
REFUSALS = 2
"""How often a request that asks for it is refused: as often as the OpenAI SDKs try again by themselves."""


class Model(Deployment, name="model", max_ongoing_requests=200, resources={"num_cpus": 0.1}):
    """An `EchoModel` that counts its responses by the word that names them, and refuses some of them at first."""

    def __init__(self) -> None:
        self._echo = EchoModel(period_s=0.01)
        self._running: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the words of the prompt. `/refuse STATUS NAME` is refused with this status the first times."""
        words = request.prompt.split()
        self._running.update(words)
        try:
            if words[:1] == ["/refuse"]:
                self._refuse(words[1], words[2])
            async for event in self._echo.chat(request):
                yield event
        finally:
            self._running.subtract(words)

    def _refuse(self, status: str, name: str) -> None:
        if self._refused[name] >= REFUSALS:
            return
        self._refused[name] += 1
        if status == str(QueueFull.status):
            raise QueueFull("10 requests wait already")
        raise ChatError("this is not the time", status=int(status))

    async def running(self, word: str) -> int:
        """Return how many responses with this word in their prompt run."""
        return self._running[word]

    async def refused(self, name: str) -> int:
        return self._refused[name]

    @batch(max_batch_size=8)
    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.5] for text in texts]


async def agent(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """A model that runs its tools itself."""
    yield TextEvent("I look.")
    yield ToolCallEvent(0, "c1", "search", '{"query": "x"}')
    yield ToolCallEvent(1, "c2", "search", "{}")
    yield ToolResultEvent("c1", {"found": [1]})
    yield ToolResultEvent("c2", "nothing", is_error=True)
    yield TextEvent("I found one.")


model = Model.bind()
log = StreamLogDeployment.bind()
models = {"echo": model, "agent": agent}

app = Toolkit(deployment=DeploymentConfig(name="front", resources={"num_cpus": 0.1}))
app.include_router(openai_router(models, embeddings={"lengths": model}, log=log), prefix="/v1")
app.include_router(openai_router(models), prefix="/protected/v1", dependencies=[Depends(api_keys({"ada": KEY}))])
app.include_router(ai_sdk_router(models, log=log), prefix="/api/chat")
app.include_router(ai_sdk_router(models, resume=False, version=6), prefix="/plain")
app.include_router(websocket_router(models, log=log), prefix="/ws")
app.include_router(stream_router(log=log), prefix="/streams")


@app.get("/count", response_class=EventSourceResponse)
@resumable(log=log, retry_ms=20)
async def count(to: int) -> AsyncIterable[int]:
    for number in range(to):
        await asyncio.sleep(0.005)
        yield number


@app.websocket("/words")
async def words(websocket: WebSocket, to: Annotated[Model, Depends(model)]) -> None:
    """Send the words of each message back, one message each, and `.` at the end."""
    await websocket.accept(subprotocol=next(iter(websocket.scope["subprotocols"]), None))
    async for prompt in websocket.iter_text():
        async for event in to.chat(ChatRequest((ChatMessage("user", prompt),))):
            if isinstance(event, TextEvent):
                await websocket.send_text(event.text)
        await websocket.send_text(".")


@app.get("/running")
async def running(word: str, of: Annotated[Model, Depends(model)]) -> int:
    return await of.running(word)


@app.get("/refused")
async def refused(name: str, of: Annotated[Model, Depends(model)]) -> int:
    return await of.refused(name)
