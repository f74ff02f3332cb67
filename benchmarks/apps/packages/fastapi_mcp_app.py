"""fastapi-mcp: the routes of an app as MCP tools, over both of its transports."""

from typing import TypeVar

from fastapi import FastAPI
from fastapi_mcp import FastApiMCP
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client
from pins import ONE

from app_toolkit import DeploymentConfig, Toolkit

A = TypeVar("A", bound=FastAPI)


def with_tools(app: A) -> A:
    @app.get("/double", operation_id="double")
    def double(value: int) -> int:
        return 2 * value

    mcp = FastApiMCP(app)
    mcp.mount_http()
    mcp.mount_sse()
    return app


app = with_tools(FastAPI())
pinned = with_tools(Toolkit(deployment=ONE))
sticky = with_tools(Toolkit(deployment=DeploymentConfig(name="app", affinity="header:mcp-session-id, cookie")))


async def calls(session: ClientSession, number: int) -> None:
    await session.initialize()
    assert [tool.name for tool in (await session.list_tools()).tools] == ["double"]
    for value in range(number, number + 3):
        result = await session.call_tool("double", {"value": value})
        assert result.content[0].text == str(2 * value), result


async def http(url: str, number: int) -> None:
    async with streamablehttp_client(f"{url}/mcp") as (read, write, _), ClientSession(read, write) as session:
        await calls(session, number)


async def sse(url: str, number: int) -> None:
    async with sse_client(f"{url}/sse") as (read, write), ClientSession(read, write) as session:
        await calls(session, number)
