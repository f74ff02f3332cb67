"""What every test gets: asyncio, and a check that it left nothing of ours running."""

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cluster import Cluster

LEAVE_S = 2.0
"""How long what a test has told to stop may take to end."""

OURS = str(Path(__file__).parent.parent / "app_toolkit")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def cluster() -> "Iterator[Cluster]":
    """The one Ray of the session, and the controller on it; started for the first test that asks."""
    from tests.cluster import running  # Ray takes a second to import, and few tests need it

    with running() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LEAVE_S
    while (left := [t for t in threading.enumerate() if t not in before and _must_end(t)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert not left, f"the test left threads behind: {', '.join(thread.name for thread in left)}"


def _must_end(thread: threading.Thread) -> bool:
    # Daemon threads of libraries (AnyIO's idle workers, Ray's client) belong to whoever needed them first.
    return not thread.daemon or thread.name.startswith("app-toolkit")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    # What an async fixture started it also ends, and only after the test: there is nothing to check before.
    fixtures = [d.func for defs in pyfuncitem._fixtureinfo.name2fixturedefs.values() for d in defs]
    if inspect.iscoroutinefunction(pyfuncitem.obj) and not any(
        inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in fixtures
    ):
        pyfuncitem.obj = _no_task_outlives(pyfuncitem.obj)


def _no_task_outlives(
    test: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def checked(**arguments: Any) -> None:
        before = asyncio.all_tasks()
        await test(**arguments)
        left = {task for task in asyncio.all_tasks() - before if _is_ours(task)}
        if left:
            _, left = await asyncio.wait(left, timeout=LEAVE_S)
        assert not left, f"the test left tasks behind: {', '.join(repr(task) for task in left)}"

    return checked


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(OURS)
