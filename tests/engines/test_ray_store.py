"""Compare-and-set on Ray takes several steps: what others do between two of them loses nothing."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.experimental import internal_kv

from app_toolkit.engines.ray import store as ray_store
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import Conflict, TargetError
from app_toolkit.host.store import last_epoch, packed_code
from app_toolkit.interfaces import code_key
from tests.cluster import Cluster

pytestmark = pytest.mark.anyio

KEY = "contract/steps"


@pytest.fixture
async def store(cluster: Cluster) -> AsyncIterator[RayStore]:
    store = RayStore()
    yield store
    await store.delete(KEY)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have something else happen just before, or just after, the next step of a kind."""

    def meanwhile(step: str, happens: Callable[[], None], *, after: bool = False) -> None:
        real = getattr(ray_store, f"_internal_kv_{step}")

        def interrupted(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(ray_store, f"_internal_kv_{step}", real)
            if after:
                answer = real(*arguments, **options)
                happens()
                return answer
            happens()
            return real(*arguments, **options)

        monkeypatch.setattr(ray_store, f"_internal_kv_{step}", interrupted)

    return meanwhile


def write(store: RayStore, expected: bytes, value: bytes) -> None:
    """In the thread in which another write is between two steps."""
    asyncio.run(store.compare_and_set(KEY, expected, value))


def kept() -> list[bytes]:
    """The writes of the key that Ray still has."""
    return list(internal_kv._internal_kv_list(KEY.encode(), namespace=ray_store.NAMESPACE))


@pytest.mark.parametrize("times", [1, 2, ray_store.KEPT])
async def test_a_write_after_a_concurrent_change_fails(store: RayStore, meanwhile: Any, times: int) -> None:
    await store.compare_and_set(KEY, None, b"0")

    def overtake() -> None:
        for number in range(times):
            write(store, b"%d" % number, b"%d" % (number + 1))

    meanwhile("put", overtake)
    with pytest.raises(Conflict, match=KEY):
        await store.compare_and_set(KEY, b"0", b"mine")
    assert await store.get(KEY) == b"%d" % times


async def test_a_value_that_is_replaced_while_it_is_read_is_not_absent(store: RayStore, meanwhile: Any) -> None:
    await store.compare_and_set(KEY, None, b"0")
    meanwhile("list", lambda: write(store, b"0", b"1"), after=True)
    assert await store.get(KEY) in (b"0", b"1")


async def test_temporary_values_of_other_processes_are_removed(store: RayStore) -> None:
    before = None
    for number in range(20):
        value = b"%d" % number
        await store.compare_and_set(KEY, before, value)
        before = value
    assert 0 < len(kept()) <= 10
    await store.delete(KEY)
    assert kept() == []


async def test_code_with_a_wrong_hash_is_refused(store: RayStore) -> None:
    name = hashlib.sha256(b"what was packed").hexdigest()
    key = code_key(name)
    try:
        await store.compare_and_set(key, None, b"what was packed")
        assert await asyncio.to_thread(packed_code, store, name) == b"what was packed"
        await store.compare_and_set(key, b"what was packed", b"what was put there")
        with pytest.raises(TargetError, match=f"the store's value of '{key}' does not match its hash"):
            await asyncio.to_thread(packed_code, store, name)
    finally:
        await store.delete(key)


async def test_a_process_knows_the_last_epoch(cluster: Cluster) -> None:
    assert await asyncio.to_thread(last_epoch, RayStore()) == cluster.status()["epoch"]
