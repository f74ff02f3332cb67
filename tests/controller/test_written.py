"""Which keys hold what, and who may still write them."""

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.controller.written import Kept, Written
from app_toolkit.core.rollout import applied
from app_toolkit.engines.memory import MemoryStore
from app_toolkit.errors import StaleEpoch
from app_toolkit.observability.story import Story
from tests.core.specs import application

pytestmark = pytest.mark.anyio

SHOP = applied(None, application())
PACKED = applied(None, application("packed", prefix=None).model_copy(update={"code": "1a"}))


async def ours(store):
    told = []
    written = Written(store, Story(lambda: 0.0), lambda: told.append("replaced"))
    await written.take_epoch()
    return written, told


async def test_the_first_controller_finds_nothing():
    written, _ = await ours(MemoryStore())
    assert (written.epoch, await written.read()) == (1, Kept())


async def test_the_next_controller_reads_what_the_last_one_kept():
    store = MemoryStore()
    written, _ = await ours(store)
    await written.keep_application(SHOP)
    await written.keep_application(PACKED, {"1a": b"one"})
    await written.keep_http(HTTPOptions(port=9000))
    await written.keep_port(4711)
    await written.keep_leases({"a terminal": [30.0, ["shop"]]})
    await written.drop_application("shop")
    after, _ = await ours(store)
    kept = Kept({"packed": PACKED}, HTTPOptions(port=9000), 4711, {"a terminal": [30.0, ["shop"]]})
    assert (after.epoch, await after.read()) == (2, kept)
    assert await store.get("code/1a") == b"one"


async def test_what_is_put_away_leaves_how_proxies_listen_and_the_epoch():
    store = MemoryStore()
    written, _ = await ours(store)
    await written.keep_application(PACKED, {"1a": b"one"})
    await written.keep_http(HTTPOptions(port=9000))
    await written.keep_port(4711)
    await written.keep_leases({})
    await written.drop_all()
    assert await store.keys("") == ["copies/epoch", "copies/http", "epoch", "http"]


async def test_code_that_no_application_names_is_dropped():
    store = MemoryStore()
    written, _ = await ours(store)
    await written.keep_application(PACKED, {"1a": b"one"})
    other = PACKED.wanted.model_copy(update={"code": "2b"})
    await written.keep_application(applied(PACKED, other), {"2b": b"two"})
    await written.drop_code_except_of(PACKED.versions)
    assert await store.keys("code/") == ["code/1a"]


async def test_files_stay_as_long_as_an_application_names_them():
    store = MemoryStore()
    written, _ = await ours(store)
    both = PACKED.wanted.model_copy(update={"artifact": "3c"})
    await written.keep_application(applied(PACKED, both), {"1a": b"one", "3c": b"files"})
    await written.drop_code_except_of([both])
    assert await store.keys("code/") == ["code/1a", "code/3c"]
    await written.drop_code_except_of(PACKED.versions)
    assert await store.keys("code/") == ["code/1a"]


async def test_whoever_is_replaced_is_told_when_it_asks():
    store = MemoryStore()
    old, told = await ours(store)
    await old.check_epoch()
    assert told == []
    new, _ = await ours(store)
    with pytest.raises(StaleEpoch, match="has epoch 1, and another has taken 2"):
        await old.check_epoch()
    assert told == ["replaced"]
    await new.check_epoch()


async def test_of_two_that_begin_at_once_each_has_an_epoch_of_its_own():
    store = MemoryStore()
    first, second = Written(store, Story(lambda: 0.0), list), Written(store, Story(lambda: 0.0), list)
    get = store.get

    async def overtaken(key):
        store.get = get
        last = await get(key)
        await second.take_epoch()
        return last

    store.get = overtaken
    assert await first.take_epoch() > second.epoch == 1
