"""The MCP SDK without sessions, with sessions, and with the older SSE transport."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from mcp import Client
from mcp.client.sse import sse_client
from mcp.server.mcpserver import MCPServer

from app_toolkit import DeploymentConfig, Toolkit


def server() -> MCPServer:
    mcp = MCPServer("calculator")

    @mcp.tool()
    def add(a: int, b: int) -> int:
        return a + b

    return mcp


def router() -> APIRouter:
    stateless, sessions, sse = server(), server(), server()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with stateless.session_manager.run(), sessions.session_manager.run():
            yield

    router = APIRouter(lifespan=lifespan)
    router.mount("/stateless", stateless.streamable_http_app(stateless_http=True))
    router.mount("/sessions", sessions.streamable_http_app())
    router.mount("/events", sse.sse_app())
    return router


app = FastAPI()
app.include_router(router())

pinned = Toolkit()
pinned.include_router(router(), deployment=DeploymentConfig(name="mcp", num_replicas=1))

sticky = Toolkit()
sticky.include_router(router(), deployment=DeploymentConfig(name="mcp", affinity="header:mcp-session-id, cookie"))


async def calls(client: Client, number: int) -> None:
    assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
    for other in range(3):
        result = await client.call_tool("add", {"a": number, "b": other})
        assert result.structured_content == {"result": number + other}, result


async def stateless(url: str, number: int) -> None:
    async with Client(f"{url}/stateless/mcp", mode="legacy") as client:
        await calls(client, number)


async def modern(url: str, number: int) -> None:
    """The protocol of July 2026 has no sessions, even if the server supports sessions for older clients."""
    async with Client(f"{url}/sessions/mcp", mode="2026-07-28") as client:
        await calls(client, number)


async def sessions(url: str, number: int) -> None:
    async with Client(f"{url}/sessions/mcp", mode="legacy") as client:
        await calls(client, number)


async def sse(url: str, number: int) -> None:
    async with Client(sse_client(f"{url}/events/sse"), mode="legacy") as client:
        await calls(client, number)
