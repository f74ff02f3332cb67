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


class RayStore:
    """Compare-and-set out of the one atomic step that there is, put-if-absent.

    A value is kept under `key@number`, each write under the next number: of two writers that read the same value
    one finds the number taken. What an earlier write left is deleted behind it.
    """

    async def get(self, key: str) -> bytes | None:
        return await asyncio.to_thread(self._get, key)

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

    def _get(self, key: str) -> bytes | None:
        numbers = self._numbers(key)
        return self._read(key, numbers[-1]) if numbers else None

    def _read(self, key: str, number: int) -> bytes | None:
        value: bytes | None = _internal_kv_get(_name(key, number), namespace=NAMESPACE)
        return value

    def _compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        numbers = self._numbers(key)
        last = numbers[-1] if numbers else 0
        if (self._read(key, last) if numbers else None) != expected:
            raise Conflict(f"{key} no longer holds what was expected")
        if _internal_kv_put(_name(key, last + 1), value, overwrite=False, namespace=NAMESPACE):
            raise Conflict(f"{key} was written by another at the same time")
        for number in numbers:
            _internal_kv_del(_name(key, number), namespace=NAMESPACE)

    def _delete(self, key: str) -> None:
        for number in self._numbers(key):
            _internal_kv_del(_name(key, number), namespace=NAMESPACE)


def _name(key: str, number: int) -> bytes:
    return f"{key}@{number:08d}".encode()
