"""Transfers large payloads out-of-band, as arguments and results of actor calls, which Ray puts into shared memory.

Only that actor call refers to the object in Ray's object store, and afterwards the arrays that are views of it.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pickle import PickleBuffer
from typing import Any

import ray
from ray.exceptions import RayError

from app_toolkit.errors import ReplicaGone
from app_toolkit.types import ReplicaId

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
        await self._ask(replica, "put_payload", key, [Lent(piece) for piece in pieces])

    async def get(self, replica: ReplicaId, key: str) -> Sequence[memoryview]:
        found = await self._ask(replica, "get_payload", key)
        if found is None:
            raise ReplicaGone(f"replica {replica} no longer has the payload of this call")
        views: Sequence[memoryview] = found
        return views

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, replica: ReplicaId, method: str, *args: Any) -> Any:
        with _as_replica_gone(replica):
            # This copies the arguments into the object store, which would block the event loop.
            result = await asyncio.get_running_loop().run_in_executor(self._threads, self._call, replica, method, *args)
            return await result

    def _call(self, replica: ReplicaId, method: str, *args: Any) -> Any:
        return getattr(self._actor(replica), method).remote(*args)

    def _find(self, replica: ReplicaId) -> Any:
        return ray.get_actor(replica, namespace=self._namespace)


class Lent:
    """Bytes that Ray serializes into the object store with a single copy. The receiver gets a view of the store."""

    def __init__(self, piece: bytes | memoryview) -> None:
        self._piece = piece

    # The `PickleBuffer` is created only for the serialization. If the garbage collector finds a `PickleBuffer` together
    # with the view that it refers to, it clears the buffer first, and the view then accesses it: the process crashes.
    def __reduce_ex__(self, protocol: Any) -> tuple[type[memoryview], tuple[PickleBuffer]]:
        return memoryview, (PickleBuffer(self._piece),)


@contextmanager
def _as_replica_gone(replica: ReplicaId) -> Iterator[None]:
    try:
        yield
    except (RayError, ValueError) as error:  # ValueError: there is no such actor
        raise ReplicaGone(f"replica {replica} was not reached: {type(error).__name__}") from error
