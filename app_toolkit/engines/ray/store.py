"""The store on Ray: its GCS key-value store, which outlives every actor (and, kept in Redis, the head node).

Ray has no public door to it; the four private functions are imported here and nowhere else, and
`tests/engines/test_ray_private.py` says so when one of them goes.
"""

import asyncio

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from app_toolkit.errors import Conflict

NAMESPACE = b"app_toolkit"

KEPT = 8
"""Writes of a key that stay. The number that a writer wants is taken, however often up to this others overtook it."""


class RayStore:
    """Compare-and-set out of the one atomic step that there is, put-if-absent.

    A value is kept under `key@number`, each write under the next number: of two writers that read the same value
    one finds the number taken. All but the last few are deleted. A `delete` compares nothing: a write that had
    compared before it is made all the same.
    """

    async def get(self, key: str) -> bytes | None:
        return (await asyncio.to_thread(self._last, key))[1]

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        await asyncio.to_thread(self._compare_and_set, key, expected, value)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._delete, key)

    async def keys(self, prefix: str) -> list[str]:
        written = await asyncio.to_thread(_internal_kv_list, prefix.encode(), namespace=NAMESPACE)
        return sorted({name.decode().rpartition("@")[0] for name in written})

    def _numbers(self, key: str) -> list[int]:
        written = _internal_kv_list(f"{key}@".encode(), namespace=NAMESPACE)
        return sorted(int(name.decode().rpartition("@")[2]) for name in written)

    def _last(self, key: str) -> tuple[int, bytes | None]:
        """The number of the last write and what it wrote; 0 and None where there is none."""
        while numbers := self._numbers(key):
            value: bytes | None = _internal_kv_get(_name(key, numbers[-1]), namespace=NAMESPACE)
            if value is not None:
                return numbers[-1], value
            # Deleted between the two steps: look again.
        return 0, None

    def _compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        last, there = self._last(key)
        if there != expected:
            raise Conflict(f"{key} no longer holds what was expected")
        if _internal_kv_put(_name(key, last + 1), value, overwrite=False, namespace=NAMESPACE):
            raise Conflict(f"{key} was written by another at the same time")
        if last >= KEPT:
            _internal_kv_del(_name(key, last + 1 - KEPT), namespace=NAMESPACE)

    def _delete(self, key: str) -> None:
        for number in self._numbers(key):  # the last one last: no earlier value comes to light
            _internal_kv_del(_name(key, number), namespace=NAMESPACE)


def _name(key: str, number: int) -> bytes:
    return f"{key}@{number:08d}".encode()
