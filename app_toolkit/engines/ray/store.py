"""The state store on Ray: its GCS key-value store, which outlives every actor, and with Redis also the head node.

Ray has no public API for it. Only this module imports the four private functions, and
`tests/engines/test_ray_private.py` fails if one of them is removed from Ray.
"""

import asyncio

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from app_toolkit.engines.ray import environment
from app_toolkit.errors import Conflict
from app_toolkit.host.encryption import Encryption

NAMESPACE = b"app_toolkit"

KEPT = 8
"""The number of latest writes of a key that are kept. A writer that read an earlier value gets a conflict if at most
this number of other writes have followed, because the number of its own write is then still in use."""


class RayStore:
    """Implements compare-and-set with the only atomic operation of Ray's store, put-if-absent.

    Each write of a value has the key `key@number` with the next number. If two writers have read the same value, the
    number already exists for one of them. All but the last few writes are deleted. A `delete` does not compare: a write
    that has compared before a concurrent `delete` is still made.

    Values are encrypted if the cluster has an access token.
    """

    def __init__(self) -> None:
        self._encryption = Encryption(environment.cluster_token())

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
        named = (name.decode().rpartition("@") for name in written)
        # The key of a live revision, `KEY@13`, begins with the key of its application.
        return sorted(int(number) for whose, _, number in named if whose == key)

    def _last(self, key: str) -> tuple[int, bytes | None]:
        """Return the number and the value of the last write; 0 and None if there is none."""
        while numbers := self._numbers(key):
            value: bytes | None = _internal_kv_get(_name(key, numbers[-1]), namespace=NAMESPACE)
            if value is not None:
                return numbers[-1], self._encryption.decrypt(key, value)
            # The value was deleted between the two calls: try again.
        return 0, None

    def _compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        last, value_now = self._last(key)
        if value_now != expected:
            raise Conflict(f"{key} no longer holds what was expected")
        encrypted = self._encryption.encrypt(key, value)
        if _internal_kv_put(_name(key, last + 1), encrypted, overwrite=False, namespace=NAMESPACE):
            raise Conflict(f"{key} was written by another at the same time")
        if last >= KEPT:
            _internal_kv_del(_name(key, last + 1 - KEPT), namespace=NAMESPACE)

    def _delete(self, key: str) -> None:
        for number in self._numbers(key):  # in ascending order, so that a concurrent read never gets an earlier value
            _internal_kv_del(_name(key, number), namespace=NAMESPACE)


def _name(key: str, number: int) -> bytes:
    return f"{key}@{number:08d}".encode()
