"""One model behind every route that a chat client can talk to, and a count of its responses that run."""

import asyncio
import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from fastapi import Depends, WebSocket
from fastapi.sse import EventSourceResponse

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    DataEvent,
    McpServers,
    SQLConversationStore,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    ag_ui_router,
    ai_sdk_router,
    anthropic_router,
    api_keys,
    conversations_router,
    ollama_router,
    openai_router,
    websocket_router,
    with_mcp_tools,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueFull
from app_toolkit.streaming import resumable, stream_router

KEY = "the-key-of-the-clients"
REFUSALS = 2
"""How often a request that asks for it is refused: as often as the OpenAI SDKs try again by themselves."""


async def agent(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
    """A model that runs its tools itself."""
    yield TextEvent("I look.")
    yield ToolCallEvent(0, "c1", "search", '{"query": "x"}')
    yield ToolCallEvent(1, "c2", "search", "{}")
    yield ToolResultEvent("c1", {"found": [1]})
    yield ToolResultEvent("c2", "nothing", is_error=True)
    yield TextEvent("I found one.")


async def titles(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
    """A model that writes titles, in the format of Open WebUI."""
    yield TextEvent('{"title": "A title by the small model"}')


BY_NAME = {"agent": agent, "titles": titles}
"""The models of Open WebUI that are not an `EchoModel`."""


class Model(Deployment, name="model", max_ongoing_requests=200, resources={"num_cpus": 0.1}):
    """An `EchoModel` that counts its responses by the word that names them, and refuses some of them at first."""

    def __init__(self) -> None:
        self._echo = EchoModel(period_s=0.01)
        self._running: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._received: Counter[str | None] = Counter()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the words of the prompt. `/refuse STATUS NAME` is refused with this status the first times."""
        words = request.prompt.split()
        self._running.update(words)
        self._received[request.model] += 1
        chat = BY_NAME.get(request.model or "", self._echo.chat)
        try:
            if words[:1] == ["/refuse"]:
                self._refuse(words[1], words[2])
            async with aclosing(chat(request)) as events:
                async for event in events:
                    yield event
        finally:
            self._running.subtract(words)

    async def count_tokens(self, request: ChatRequest) -> int:
        return await self._echo.count_tokens(request)

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

    async def received(self, model: str) -> int:
        """Return how many requests the model with this name has received."""
        return self._received[model]

    @batch(max_batch_size=8)
    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.5] for text in texts]


async def stateful(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """Count in the state of the client, and yield what the page knows."""
    client = request.extra or {}
    yield DataEvent("page", client["context"][0]["value"])
    yield DataEvent("state", {"count": client["state"]["count"] + 1})


async def calculator(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """Add the two numbers of the prompt with the tool of the MCP server."""
    last = request.messages[-1]
    if last.role == "tool":
        yield TextEvent(f"The sum is {last.text}.")
    else:
        first, second = request.prompt.split()
        yield ToolCallEvent(0, "call_0", "numbers_add", f'{{"a": {first}, "b": {second}}}')


class Calculator(Deployment, name="calculator", max_open_streams=0, resources={"num_cpus": 0.1}):
    """A chain that runs the tools of an MCP server."""

    def __init__(self) -> None:
        self._servers = McpServers({"numbers": [sys.executable, str(Path(__file__).parent / "numbers_server.py")]})
        self._model = with_mcp_tools(calculator, self._servers)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async with aclosing(self._model.chat(request)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        await self._servers.aclose()


model = Model.bind()
models = {"echo": model, "agent": agent}
conversations = SQLConversationStore(Path(tempfile.gettempdir()) / "app_toolkit_clients.db")  # of all replicas

app = Toolkit(deployment=DeploymentConfig(name="front", resources={"num_cpus": 0.1}))
app.include_router(openai_router(models, embeddings={"lengths": model}, conversations=conversations), prefix="/v1")
app.include_router(anthropic_router(models), prefix="/v1")
app.include_router(openai_router({"echo": model, "agent": model, "titles": model}), prefix="/webui/v1")
protected = [Depends(api_keys({"ada": KEY}))]
app.include_router(openai_router(models), prefix="/protected/v1", dependencies=protected)
app.include_router(anthropic_router(models), prefix="/protected/v1", dependencies=protected)
app.include_router(ai_sdk_router(models), prefix="/api/chat")
app.include_router(ai_sdk_router(models, resume=False, version=6), prefix="/plain")
app.include_router(ai_sdk_router(models, conversations=conversations, version=6), prefix="/stored/chat")
app.include_router(conversations_router(conversations), prefix="/stored/conversations")
if importlib.util.find_spec("mcp"):
    with_tools = {"calculator": Calculator.bind()}
    app.include_router(openai_router(with_tools), prefix="/mcp/v1")
    app.include_router(anthropic_router(with_tools), prefix="/mcp/v1")
    app.include_router(ai_sdk_router(with_tools), prefix="/mcp/chat")
app.include_router(ag_ui_router({**models, "stateful": stateful}), prefix="/ag-ui")
app.include_router(ollama_router(models, embeddings={"lengths": model}), prefix="/ollama")
app.include_router(websocket_router(models), prefix="/ws")
app.include_router(stream_router(), prefix="/streams")


@app.get("/count", response_class=EventSourceResponse)
@resumable(retry_ms=20)
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


@app.get("/received")
async def received(by: str, of: Annotated[Model, Depends(model)]) -> int:
    return await of.received(by)
