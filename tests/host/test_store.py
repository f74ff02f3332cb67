"""The secret of an instance, in its state store."""

import pytest

from app_toolkit.control.state_store import application_key
from app_toolkit.errors import CorruptValue
from app_toolkit.host.encryption import Encryption
from app_toolkit.host.store import create_secret, is_left_over
from tests.memory import MemoryStore

pytestmark = pytest.mark.anyio


class EncryptedStore(MemoryStore):
    def __init__(self, token: str) -> None:
        super().__init__()
        self.encryption = Encryption(token)

    async def get(self, key: str) -> bytes | None:
        stored = await super().get(key)
        return None if stored is None else self.encryption.decrypt(key, stored)

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        assert await self.get(key) == expected
        self.values[key] = self.encryption.encrypt(key, value)


async def test_a_later_controller_reads_the_secret_that_the_first_one_created() -> None:
    store = MemoryStore()
    assert await create_secret(store) == await create_secret(store)


async def test_a_secret_that_cannot_be_read_is_replaced_only_to_discard_everything() -> None:
    store = EncryptedStore("the token")
    before = await create_secret(store)
    store.encryption = Encryption("a new token")
    with pytest.raises(CorruptValue):
        await create_secret(store)
    assert await create_secret(store, discard=True) != before


async def test_values_without_an_application_are_left_over_if_they_cannot_be_read() -> None:
    store = EncryptedStore("the token")
    assert not await is_left_over(store)
    await create_secret(store)
    assert not await is_left_over(store)
    store.encryption = Encryption("a new token")
    assert await is_left_over(store)
    await store.compare_and_set(application_key("shop"), None, b"{}")
    assert not await is_left_over(store)
