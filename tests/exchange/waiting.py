"""A request that waits in the queue of a router."""

import asyncio

from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.preference import NO_PREFERENCE, Preference
from app_toolkit.exchange.router import Router


async def acquire(router: Router, since: float | None = None, preference: Preference = NO_PREFERENCE) -> Permit:
    """Wait for a permit. Raises the error with which the router fails the request. `since`: default now."""
    loop = asyncio.get_running_loop()
    granted: asyncio.Future[Permit] = loop.create_future()
    waiter = router.wait(
        granted.set_result,
        loop.time() if since is None else since,
        preference=preference,
        failed=granted.set_exception,
    )
    try:
        return await granted
    finally:
        router.leave(waiter)
