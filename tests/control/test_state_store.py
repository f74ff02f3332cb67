"""The keys of the state store, and the controllers that may write them."""

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.application import applied
from app_toolkit.control.state_store import StateStore, StoredState
from app_toolkit.errors import StaleEpoch
from tests.control.specs import application
from tests.memory import MemoryStore

pytestmark = pytest.mark.anyio

SHOP = applied(None, application())
PACKED = applied(None, application("packed", prefix=None).model_copy(update={"code": "1a"}))


async def ours(store):
    replaced = []
    state_store = StateStore(store, lambda: replaced.append("replaced"))
    await state_store.take_epoch()
    return state_store, replaced


async def test_the_first_controller_finds_nothing():
    state_store, _ = await ours(MemoryStore())
    assert (state_store.epoch, await state_store.read()) == (1, StoredState())


async def test_next_controller_reads_the_stored_state():
    store = MemoryStore()
    state_store, _ = await ours(store)
    await state_store.put_application(SHOP)
    await state_store.put_code({"1a": b"one"})
    await state_store.put_application(PACKED)
    await state_store.put_http(HTTPOptions(port=9000))
    await state_store.put_port(4711)
    await state_store.put_admin_port(8001)
    await state_store.put_leases({"a terminal": [30.0, ["shop"]]})
    await state_store.delete_application(SHOP.name)
    after, _ = await ours(store)
    kept = StoredState({PACKED.name: PACKED}, HTTPOptions(port=9000), 4711, 8001, {"a terminal": [30.0, ["shop"]]})
    assert (after.epoch, await after.read()) == (2, kept)
    assert await store.get("code/1a") == b"one"


async def test_cleared_store_keeps_the_proxy_options_and_the_epoch():
    store = MemoryStore()
    state_store, _ = await ours(store)
    await state_store.put_code({"1a": b"one"})
    await state_store.put_application(PACKED)
    await state_store.put_http(HTTPOptions(port=9000))
    await state_store.put_port(4711)
    await state_store.put_admin_port(8001)
    await state_store.put_leases({})
    await state_store.delete_all()
    assert await store.keys("") == ["epoch", "http"]


async def test_code_that_no_application_names_is_dropped():
    store = MemoryStore()
    state_store, _ = await ours(store)
    await state_store.put_code({"1a": b"one"})
    await state_store.put_application(PACKED)
    other = PACKED.main.spec.model_copy(update={"code": "2b"})
    await state_store.put_code({"2b": b"two"})
    await state_store.put_application(applied(PACKED, other))
    await state_store.delete_code_except_of(PACKED.specs)
    assert await store.keys("code/") == ["code/1a"]


async def test_files_stay_as_long_as_an_application_names_them():
    store = MemoryStore()
    state_store, _ = await ours(store)
    both = PACKED.main.spec.model_copy(update={"artifact": "3c"})
    await state_store.put_code({"1a": b"one", "3c": b"files"})
    await state_store.put_application(applied(PACKED, both))
    await state_store.delete_code_except_of([both])
    assert await store.keys("code/") == ["code/1a", "code/3c"]
    await state_store.delete_code_except_of(PACKED.specs)
    assert await store.keys("code/") == ["code/1a"]


async def test_replaced_controller_is_refused():
    store = MemoryStore()
    old, replaced = await ours(store)
    await old.check_epoch()
    assert replaced == []
    new, _ = await ours(store)
    with pytest.raises(StaleEpoch, match="has epoch 1, and another controller has taken epoch 2"):
        await old.check_epoch()
    assert replaced == ["replaced"]
    await new.check_epoch()


async def test_of_two_that_begin_at_once_each_has_an_epoch_of_its_own():
    store = MemoryStore()
    first, second = StateStore(store, list), StateStore(store, list)
    get = store.get

    async def overtaken(key):
        store.get = get
        last = await get(key)
        await second.take_epoch()
        return last

    store.get = overtaken
    assert await first.take_epoch() > second.epoch == 1
