"""One test's dealings with an app that some engine serves."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from websockets.asyncio.client import connect

from tests.engines.contract.ground import AGAIN_S, Ground, eventually
from tests.engines.contract.served import Load, Served
from tests.patience import PATIENCE_S


@dataclass
class Visit:
    """One test's dealings with the app: its clients, and the ground that it shares with the handlers."""

    served: Served
    client: httpx.AsyncClient
    ground: Ground

    def get(self, path: str, *, id: str | None = None) -> asyncio.Task[httpx.Response]:
        headers = {} if id is None else {"x-request-id": id}
        return asyncio.create_task(self.client.get(path, headers=headers))

    def talk(self, path: str = "/desk/talk") -> connect:
        return connect(f"{self.served.url.replace('http', 'ws')}{path}?ground={self.ground.folder}", proxy=None)

    async def noted(self, *events: str) -> None:
        """Wait until the ledger has these among its entries."""
        async with asyncio.timeout(PATIENCE_S):
            await eventually(lambda: set(events) <= set(self.ground.notes))

    async def loaded(self, condition: Callable[[Load], bool]) -> None:
        """Wait until what goes on in the engine is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(load := await self.served.load()):
            assert time.monotonic() < deadline, f"it never came about: {load}"
            await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def visiting(served: Served, folder: Path, *names: str) -> AsyncIterator[Visit]:
    """Once it is over, whatever happened: the files are there, nobody waits, and every turn and slot is given back."""
    ground = Ground(folder)
    async with httpx.AsyncClient(
        base_url=served.url,
        transport=served.transport(),
        params={"ground": str(folder)},
        trust_env=False,
        verify=False,  # nothing here is HTTPS, and to read the certificates of all authorities takes 25 ms
        timeout=PATIENCE_S,
        # A connection for each request: uvicorn closes those on which a handler has raised.
        limits=httpx.Limits(max_keepalive_connections=0),
    ) as client:
        visit = Visit(served, client, ground)
        yield visit
    for name in names:  # also where the test failed before it came to that
        ground.open(name)
    await visit.loaded(lambda load: load == Load(0, 0, 0))
