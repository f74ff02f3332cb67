"""The choice of the member that gets a call of a split."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from app_toolkit.core import deadlines
from app_toolkit.core.traffic import choose, known_shares
from app_toolkit.errors import DeadlineExceeded
from app_toolkit.interfaces import Call, Callee, DeploymentClient
from app_toolkit.observability.context import DEADLINE


def member_of(
    split: Callee, published: Mapping[str, float] | None, shard_key: str | None, draw: Callable[[], float]
) -> str:
    """Return the name of the member that gets a call.

    Parameters:
        split: The split.
        published: The shares that are published to this process. None: those of the split apply.
        shard_key: Calls with the same key get the same member, as long as the shares stay. None: there is no key.
        draw: Returns a random number, at least 0 and below 1.
    """
    shares = split.shares if published is None else known_shares(split.shares, published)
    return choose(shares, shard_key, draw() if shard_key is None else 0.0)


class UnpublishedSplit:
    """The client of a split whose shares have not been published to this process: the first calls of a process.

    A call waits for the shares. Then the client of its member sends it, with the time that is left.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        published: Callable[[], Awaitable[object]],
        member: Callable[[str | None], DeploymentClient],
    ) -> None:
        """Create the client.

        Parameters:
            loop: The event loop of the data plane.
            published: Waits until the shares are published. Raises a `RequestError` if they are not.
            member: Returns the client of the member that gets a call with this shard key, once the shares are
                published.
        """
        self.loop = loop
        self._published = published
        self._member = member

    async def call(self, call: Call) -> Any:
        call = await self._ready(call)
        return await self._member(call.shard_key).call(call)

    async def fetch(self, call: Call) -> Any:
        call = await self._ready(call)
        return await self._member(call.shard_key).fetch(call)

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        call = await self._ready(call)
        async with aclosing(self._member(call.shard_key).stream(call)) as items:
            async for item in items:
                yield item

    async def _ready(self, call: Call) -> Call:
        """Wait for the shares, and return the call with the time that is left. Raises `DeadlineExceeded`."""
        since = self.loop.time()
        until = deadlines.until(since, (call.timeout_s,), DEADLINE.get())
        try:
            async with asyncio.timeout_at(until):
                await self._published()
        except TimeoutError:
            raise DeadlineExceeded(f"{call.method} did not begin before its deadline") from None
        if call.timeout_s is None:
            return call
        return replace(call, timeout_s=call.timeout_s - (self.loop.time() - since))
