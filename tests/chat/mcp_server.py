"""An MCP server with a few tools. As a program it speaks over its standard streams, or over HTTP on a given port."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer


def server(folder: Path) -> MCPServer:
    """Return a server. `wait` writes into `folder` when it begins and when it is cancelled."""
    tools = MCPServer("tools")

    @tools.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tools.tool(structured_output=False)
    async def greet(name: str) -> str:
        return f"Hello, {name}."

    @tools.tool(structured_output=False)
    async def fail() -> str:
        raise ValueError("the tool is broken")

    @tools.tool(structured_output=False)
    async def die() -> str:
        os._exit(1)

    @tools.tool(structured_output=False)
    async def wait() -> str:
        (folder / "begun").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (folder / "cancelled").touch()
        return ""

    return tools


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server(Path(sys.argv[1])).run("streamable-http", port=int(sys.argv[2]))
    else:
        server(Path(sys.argv[1])).run()
