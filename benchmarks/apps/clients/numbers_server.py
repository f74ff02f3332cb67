"""An MCP server, which the model of `chats.py` starts."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")


@server.tool(structured_output=False)
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


if __name__ == "__main__":
    server.run()
