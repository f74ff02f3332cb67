"""A controller restarts and finds values that are foreign, incomplete or missing."""

import asyncio
import itertools
from collections import Counter
from contextlib import suppress

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.checkpoint import encode_checkpoint
from app_toolkit.control.operations import Delete
from app_toolkit.control.reconcile import Start
from app_toolkit.errors import ControlError, CorruptValue
from tests.control.harness import CHAT, application, harness
from tests.docs.pages import page
from tests.memory import MemoryStore

pytestmark = pytest.mark.anyio

KEY = "applications/shop"


class FullStore(MemoryStore):
    """Can be read, and not be written."""

    def __init__(self, values):
        self.values = values

    async def compare_and_set(self, key, expected, value):
        raise ControlError("the disk is full")

    async def delete(self, key):
        raise ControlError("the disk is full")


def flip(h, key):
    """Change one bit of a value."""
    value = bytearray(h.store.values[key])
    value[-1] ^= 1
    h.store.values[key] = bytes(value)


@pytest.mark.parametrize("key", [KEY, "http", "port", "lease", "epoch"])
async def test_a_controller_does_not_start_if_a_value_cannot_be_read_and_everything_keeps_running(key):
    async with harness() as h:
        await h.deploy(application(), HTTPOptions(port=0), owner="a terminal")
        await h.until_healthy()
        await h.clock.advance(1.0)
        processes, view, value = dict(h.world.processes), dict(h.proxy.view), h.store.values[key]
        await h.controller_dies()
        flip(h, key)
        with pytest.raises(CorruptValue, match=rf"^the value of '{key}' in the state store cannot be read: "):
            await h.controller_starts()
        await h.clock.advance(30.0)
        assert h.world.processes == processes
        assert h.proxy.view == view
        h.store.values[key] = value
        await h.controller_starts()
        await h.until_healthy()
        assert h.world.processes == processes


@pytest.mark.parametrize("key", [KEY, "http", "port", "lease", "epoch"])
async def test_a_shutdown_ends_everything_although_a_value_cannot_be_read(key):
    async with harness() as h:
        await h.deploy(application(), HTTPOptions(port=0), owner="a terminal")
        await h.until_healthy()
        await h.clock.advance(1.0)
        await h.controller_dies()
        flip(h, key)
        await h.controller_starts(discard=True)
        shutdown = asyncio.create_task(h.controller.shutdown())
        await h.until(shutdown.done)
        assert h.world.processes == {}
        assert h.store.values.keys() == {"epoch"}


async def test_a_shutdown_ends_everything_although_the_store_cannot_be_written():
    async with harness(deployed=application()) as h:
        h.store = h.controller.state_store.store = FullStore(h.store.values)
        shutdown = asyncio.create_task(h.controller.shutdown())
        await h.until(shutdown.done, within_s=40)
        assert h.world.processes == {}
        assert "the disk is full" in [entry.cause for entry in h.controller.event_log.entries()]


async def test_an_application_is_served_after_the_desired_state_was_discarded():
    async with harness() as h:
        await h.deploy(application(), HTTPOptions(port=0), owner="a terminal")
        await h.until_healthy()
        await h.controller_dies()
        flip(h, "epoch")
        await h.controller_starts(discard=True)
        await h.deploy(application(chat=3), HTTPOptions(port=0), owner="a terminal")
        await h.until_healthy()
        assert len(h.world.of(CHAT)) == 3


async def test_a_running_controller_changes_nothing_while_the_epoch_cannot_be_read():
    async with harness(deployed=application()) as h:
        value = h.store.values["epoch"]
        flip(h, "epoch")
        with pytest.raises(CorruptValue, match=r"^the value of 'epoch'"):
            await h.deploy(application(chat=3))
        h.store.values["epoch"] = value
        await h.clock.advance(10.0)
        assert len(h.world.of(CHAT)) == 2


async def test_the_error_says_what_to_do_and_does_not_quote_the_value():
    async with harness(deployed=application()) as h:
        await h.controller_dies()
        h.store.values[KEY] = encode_checkpoint(KEY, b'{"desired": "a secret"}')
        with pytest.raises(CorruptValue) as raised:
            await h.controller_starts()
        assert str(raised.value) in page("docs/operations.md").text
        assert "secret" not in str(raised.value)


# Between two writes, and in any world.


class Killed(BaseException):
    """What ends a controller wherever it is."""


class Mortal(MemoryStore):
    """Kills whoever writes to it for the time after so many: before that write is done."""

    def __init__(self, values, writes):
        super().__init__()
        self.values = values
        self.writes = writes

    def _die(self):
        if self.writes == 0:
            raise Killed
        self.writes -= 1

    async def compare_and_set(self, key, expected, value):
        self._die()
        await super().compare_and_set(key, expected, value)

    async def delete(self, key):
        self._die()
        await super().delete(key)


async def mortal(h, writes):
    """From now on the store outlives the controller by this."""
    await h.controller_dies()
    h.store = MemoryStore()
    h.store.values = h.controller.state_store.store.values
    await h.controller_starts()
    h.controller.state_store.store = Mortal(h.store.values, writes)


async def reborn(h):
    await h.controller_dies()
    await h.controller_starts()


async def test_wherever_in_an_update_the_controller_dies_no_fewer_serve():
    new = application(cpus=0.5)
    for writes in itertools.count():
        async with harness(deployed=application()) as h:
            await mortal(h, writes)
            applied = None
            with suppress(Killed):
                applied = await h.deploy(new)
            for _ in range(400):  # 40 s, or until it dies
                await h.clock.advance(0.1)
                assert len(h.world.of(CHAT, "running")) >= 2
                if h.run.done() or applied is None:
                    break
            died = h.run.done() or applied is None
            await reborn(h)
            for _ in range(600):
                await h.clock.advance(0.1)
                assert len(h.world.of(CHAT, "running")) >= 2
            assert h.word() == "healthy"
            cpus = [h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT)]
            assert cpus in ([0.1, 0.1], [0.5, 0.5]) if applied is None else cpus == [0.5, 0.5]
            assert Counter(start.template_hash for start in h.performed(Start, CHAT)).most_common(1)[0][1] == 2
            if not died:
                assert writes >= 3
                return


async def test_application_exists_or_not_wherever_the_controller_dies():
    for doing, writes in itertools.product(("apply", "delete"), range(5)):
        async with harness(deployed=application()) as h:
            if doing == "apply":
                await h.change(Delete("shop"))
                await h.until(lambda: not h.replicas())
            await mortal(h, writes)
            done = False
            with suppress(Killed):
                await (h.deploy(application()) if doing == "apply" else h.change(Delete("shop")))
                done = True
            await reborn(h)
            await h.clock.advance(60.0)
            assert h.word() in ("healthy", None)
            if done:
                assert h.word() == ("healthy" if doing == "apply" else None)
            if h.word() is None:
                assert not h.replicas()
            await h.deploy(application())
            await h.until_healthy()
            assert len(h.world.of(CHAT)) == 2
