"""Transfers large payloads out-of-band, as arguments and results of actor calls, which Ray puts into shared memory.

Only that actor call refers to the object in Ray's object store, and afterwards the arrays that are views of it.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from app_toolkit.engines.ray.orders import send
from app_toolkit.errors import ReplicaGone
from app_toolkit.host.orders import Order, Piece, PutPayload, TakePayload
from app_toolkit.types import ReplicaId

R = TypeVar("R")

WRITERS = 2
"""Threads that write into the object store, each at the speed of memory. A call that waits for a thread holds a permit
at a replica and may have a deadline, which bounds the number of waiting calls and their wait."""


class RayPayloads:
    """Transfers the payloads between one process and the replicas of its cluster."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._threads = ThreadPoolExecutor(WRITERS, "app-toolkit payloads")
        self._actor = lru_cache(maxsize=1_024)(self._find)

    async def put(self, replica: ReplicaId, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        await self._ask(replica, PutPayload(key, [Piece(piece) for piece in pieces]))

    async def get(self, replica: ReplicaId, key: str) -> Sequence[memoryview]:
        pieces = await self._ask(replica, TakePayload(key))
        if pieces is None:
            raise ReplicaGone(f"replica {replica} no longer has the payload of this call")
        return pieces

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, replica: ReplicaId, order: Order[Any, R]) -> R:
        with _as_replica_gone(replica):
            # This copies the arguments into the object store, which would block the event loop.
            sent = await asyncio.get_running_loop().run_in_executor(self._threads, self._send, replica, order)
            return await sent

    def _send(self, replica: ReplicaId, order: Order[Any, R]) -> Awaitable[R]:
        return send(self._actor(replica), order)

    def _find(self, replica: ReplicaId) -> Any:
        return ray.get_actor(replica, namespace=self._namespace)


@contextmanager
def _as_replica_gone(replica: ReplicaId) -> Iterator[None]:
    try:
        yield
    except (RayError, ValueError) as error:  # ValueError: there is no such actor
        raise ReplicaGone(f"replica {replica} was not reached: {type(error).__name__}") from error
