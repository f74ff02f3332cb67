"""`run`, `deploy` and the others for who must not block: the same names, awaited.

Each works in a thread. Cancelled, it is not waited for any more, and what it has begun goes on.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar, Unpack, overload

from fastapi import FastAPI, Request

from app_toolkit import running
from app_toolkit.cli.deploy import WAIT_S
from app_toolkit.core.status import InstanceStatus
from app_toolkit.deployment import Bound
from app_toolkit.running import Application, RunKeywords

T = TypeVar("T")


@overload
async def run(app: Bound[T], **said: Unpack[RunKeywords]) -> T: ...
@overload
async def run(app: FastAPI | Callable[[Request], Any], **said: Unpack[RunKeywords]) -> Application: ...
async def run(app: Any, **said: Unpack[RunKeywords]) -> Any:
    """As `app_toolkit.run`, which alone can stay in the foreground."""
    return await asyncio.to_thread(lambda: running.run(app, **said))


async def deploy(
    app: Bound[Any] | FastAPI | Callable[[Request], Any],
    *,
    only: Collection[str] = (),
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    **said: Unpack[RunKeywords],
) -> None:
    """As `app_toolkit.deploy`."""
    await asyncio.to_thread(running.deploy, app, only=only, wait=wait, wait_timeout_s=wait_timeout_s, **said)


async def scale(
    deployment: str,
    num_replicas: int,
    *,
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    address: str | None = None,
) -> None:
    """As `app_toolkit.scale`."""
    await asyncio.to_thread(
        running.scale, deployment, num_replicas, wait=wait, wait_timeout_s=wait_timeout_s, address=address
    )


async def rollback(
    application: str, *, wait: bool = True, wait_timeout_s: float = WAIT_S, address: str | None = None
) -> None:
    """As `app_toolkit.rollback`."""
    await asyncio.to_thread(running.rollback, application, wait=wait, wait_timeout_s=wait_timeout_s, address=address)


async def delete(name: str, *, wait: bool = True, address: str | None = None) -> None:
    """As `app_toolkit.delete`."""
    await asyncio.to_thread(running.delete, name, wait=wait, address=address)


async def status(*, address: str | None = None) -> InstanceStatus:
    """As `app_toolkit.status`."""
    return await asyncio.to_thread(running.status, address=address)


async def get_handle(application: str, deployment: str, *, address: str | None = None) -> Any:
    """As `app_toolkit.get_handle`."""
    return await asyncio.to_thread(running.get_handle, application, deployment, address=address)


async def shutdown() -> None:
    """As `app_toolkit.shutdown`."""
    await asyncio.to_thread(running.shutdown)
