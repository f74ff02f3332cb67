"""What is held, and goes with its lease, whatever fails meanwhile."""

import asyncio
import itertools

import pytest

from app_toolkit.controller.leases import LEASE_S
from app_toolkit.errors import ConfigError
from tests.controller.harness import CHAT, application, harness

pytestmark = pytest.mark.anyio


async def test_once_nobody_holds_it_everything_is_put_away():
    async with harness() as h:
        await h.controller.apply(application(), owner="a terminal")
        await h.until_healthy()
        for _ in range(10):
            await h.clock.advance(LEASE_S / 2)
            h.controller.hold("a terminal")
        assert h.word() == "healthy"
        await h.clock.advance(LEASE_S - 0.5)
        assert h.word() == "healthy"
        await h.until(h.run.done, within_s=60)
        assert h.world.processes == {}
        [told] = h.told("ShutdownBegun")
        assert "a terminal" in told.cause


async def test_a_lease_outlives_the_controller():
    async with harness() as h:
        await h.controller.apply(application(), owner="a terminal")
        await h.until_healthy()
        await h.clock.advance(1.0)
        await h.controller_dies()
        await h.controller_starts()
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}


async def test_what_the_controller_has_answered_goes_with_its_lease_also_where_it_dies_at_once():
    async with harness() as h:
        h.controller.hold("a terminal")
        await h.clock.advance(1.0)
        await h.controller.apply(application(), owner="a terminal")
        await h.controller_dies()
        await h.controller_starts()
        assert h.word() is not None
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}


async def test_wherever_in_the_end_of_a_lease_the_store_fails_it_goes_on_with_it():
    for failing in itertools.count():
        async with harness() as h:
            await h.controller.apply(application(), owner="a terminal")
            await h.controller.apply(application("other", prefix="/other"), owner="a terminal")
            await h.until_healthy()
            asked, delete = itertools.count(), h.store.delete

            async def fails(key, asked=asked, failing=failing, delete=delete):
                if next(asked) == failing:
                    raise ConnectionError("the store is away")
                await delete(key)

            h.store.delete = fails
            await h.until(h.run.done, within_s=90)
            assert h.world.processes == {}
            assert await h.store.keys("applications/") == await h.store.keys("lease") == []
            assert len(h.told("ShutdownBegun")) == len(h.told("LeaseEnded")) == 1
            if not h.told("TickFailed"):
                assert failing > 3
                return
            h.controller.event_log = type(h.controller.event_log)(h.clock.now)


async def test_who_is_heard_again_while_its_lease_is_ended_keeps_what_is_left():
    async with harness() as h:
        await h.controller.apply(application(), owner="a terminal")
        await h.until_healthy()
        delete = h.store.delete

        async def heard(key):
            h.store.delete = delete
            h.controller.hold("a terminal")
            await delete(key)

        h.store.delete = heard
        await h.until(lambda: h.word() is None, within_s=LEASE_S + 1.0)
        await h.controller.apply(application("other"), owner="a terminal")
        await h.until(lambda: h.word("other") == "healthy")
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}


async def test_what_nobody_held_does_not_go_with_the_lease_of_an_update_that_failed():
    async with harness(deployed=application()) as h:
        compare_and_set = h.store.compare_and_set

        async def fails(key, expected, value):
            if key.startswith("applications/"):
                raise ConnectionError("the store is away")
            await compare_and_set(key, expected, value)

        h.store.compare_and_set = fails
        with pytest.raises(ConnectionError):
            await h.controller.apply(application(chat=3), owner="a terminal")
        h.store.compare_and_set = compare_and_set
        await h.clock.advance(LEASE_S * 2)
        assert h.word() == "healthy"
        assert len(h.world.of(CHAT)) == 2


async def test_what_was_applied_under_no_lease_outlives_every_lease():
    async with harness(deployed=application()) as h:
        h.controller.hold("a terminal")
        await h.clock.advance(LEASE_S * 2)
        assert h.word() == "healthy"


async def test_whoever_leaves_takes_along_what_is_theirs_and_nothing_else():
    async with harness(deployed=application()) as h:
        other = application().model_copy(update={"name": "other", "route_prefix": "/other"})
        await h.controller.apply(other, owner="a terminal")
        await h.until_healthy()
        with pytest.raises(ConfigError, match="'other' is held by another run"):
            await h.controller.apply(other, owner="another terminal")
        leaving = asyncio.create_task(h.controller.leave("a terminal"))
        await h.until(leaving.done, within_s=60)
        assert [a.name for a in h.controller.status().applications] == ["shop"]
        assert h.word() == "healthy"
        assert not h.world.of("other/chat")


async def test_whoever_is_about_to_deploy_keeps_the_instance_when_the_last_application_leaves():
    async with harness() as h:
        await h.controller.apply(application(), owner="a terminal")
        await h.until_healthy()
        h.controller.hold("another terminal")
        leaving = asyncio.create_task(h.controller.leave("a terminal"))
        await h.until(leaving.done, within_s=60)
        await h.controller.apply(application(), owner="another terminal")
        await h.until_healthy()
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}
