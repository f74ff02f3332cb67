"""uvicorn's server without its waits."""

import asyncio
import socket

from app_toolkit.transport.uvicorn_server import EventServer

AGAIN_S = 0.002


class PromptServer(EventServer):
    """A server that ends as soon as its connections are closed and its requests have ended.

    `uvicorn.Server` waits 0.1 s before it looks at its connections, and as long each time that one is open.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # what is to be sent is sent when the loop turns
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while (self.server_state.connections or self.server_state.tasks) and not self.force_exit:  # noqa: ASYNC110
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()
