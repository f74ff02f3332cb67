"""`run`, `deploy` and the others as coroutines, for callers that must not block their event loop.

Each function runs in a thread. If the coroutine is cancelled, the function continues in its thread.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from app_toolkit import running
from app_toolkit.config.options import RunKeywords
from app_toolkit.deployment import Bound
from app_toolkit.running import App, Application

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    @wraps(function)
    async def in_a_thread(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(function, *args, **kwargs)

    return in_a_thread


@overload
async def run(app: Bound[T], **options: Unpack[RunKeywords]) -> T: ...
@overload
async def run(app: App, **options: Unpack[RunKeywords]) -> Application: ...
async def run(app: Any, **options: Unpack[RunKeywords]) -> Any:
    """As `app_toolkit.run`, except that `blocking` is not available."""
    return await asyncio.to_thread(lambda: running.run(app, **options))


deploy = _awaited(running.deploy)
scale = _awaited(running.scale)
set_traffic = _awaited(running.set_traffic)
rollout = _awaited(running.rollout)
pause_rollout = _awaited(running.pause_rollout)
resume_rollout = _awaited(running.resume_rollout)
promote = _awaited(running.promote)
abort = _awaited(running.abort)
rollback = _awaited(running.rollback)
delete = _awaited(running.delete)
status = _awaited(running.status)
events = _awaited(running.events)
slow = _awaited(running.slow)
get_handle = _awaited(running.get_handle)
shutdown = _awaited(running.shutdown)
