"""Applications under a lease end with it, also if something fails meanwhile."""

import asyncio
import itertools

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.leases import LEASE_S
from tests.control.harness import CHAT, application, harness
from tests.keys import key

pytestmark = pytest.mark.anyio


async def test_state_is_removed_once_no_lease_is_held():
    async with harness() as h:
        await h.deploy(application(), owner="a terminal")
        await h.until_healthy()
        for _ in range(10):
            await h.clock.advance(LEASE_S / 2)
            h.controller.hold("a terminal")
        assert h.word() == "healthy"
        await h.clock.advance(LEASE_S - 0.5)
        assert h.word() == "healthy"
        await h.until(h.run.done, within_s=60)
        assert h.world.processes == {}
        [event] = h.logged("ShutdownBegun")
        assert "a terminal" in event.cause


async def test_applied_application_ends_with_its_lease_if_the_controller_dies():
    async with harness() as h:
        h.controller.hold("a terminal")
        await h.clock.advance(1.0)
        await h.deploy(application(), owner="a terminal")
        await h.controller_dies()
        await h.controller_starts()
        assert h.word() is not None
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}


async def test_the_lease_of_a_new_application_is_stored_first():
    async with harness() as h:
        compare_and_set, stored = h.store.compare_and_set, []

        async def noted(key, expected, value):
            stored.append(key)
            await compare_and_set(key, expected, value)

        h.store.compare_and_set = noted
        await h.deploy(application(), HTTPOptions(port=8123), owner="a terminal", code={"1a": b"one"})
        assert stored == ["http", "code/1a", "lease", "applications/shop"]


async def test_end_of_a_lease_continues_after_a_failure_of_the_store():
    for failing in itertools.count():
        async with harness() as h:
            await h.deploy(application(), owner="a terminal")
            await h.deploy(application("other", prefix="/other"), owner="a terminal")
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
            assert len(h.logged("ShutdownBegun")) == len(h.logged("LeaseEnded")) == 1
            if not h.logged("TickFailed"):
                assert failing > 3
                return
            h.controller.event_log = type(h.controller.event_log)(h.clock.now)


async def test_client_that_returns_keeps_the_applications_that_are_left():
    async with harness() as h:
        await h.deploy(application(), owner="a terminal")
        await h.until_healthy()
        delete = h.store.delete

        async def heard(key):
            h.store.delete = delete
            h.controller.hold("a terminal")
            await delete(key)

        h.store.delete = heard
        await h.until(lambda: h.word() is None, within_s=LEASE_S + 1.0)
        await h.deploy(application("other"), owner="a terminal")
        await h.until(lambda: h.word("other") == "healthy")
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}


async def test_application_without_lease_survives_a_failed_update_under_a_lease():
    async with harness(deployed=application()) as h:
        compare_and_set = h.store.compare_and_set

        async def fails(key, expected, value):
            if key.startswith("applications/"):
                raise ConnectionError("the store is away")
            await compare_and_set(key, expected, value)

        h.store.compare_and_set = fails
        with pytest.raises(ConnectionError):
            await h.deploy(application(chat=3), owner="a terminal")
        h.store.compare_and_set = compare_and_set
        await h.clock.advance(LEASE_S * 2)
        assert h.word() == "healthy"
        assert len(h.world.of(CHAT)) == 2
        await h.deploy(application(chat=3), owner="a terminal")
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}, "the lease holds it after a successful update"


async def test_leaving_client_removes_only_its_own_applications():
    async with harness(deployed=application()) as h:
        other = application().model_copy(update={"name": "other", "route_prefix": "/other"})
        await h.deploy(other, owner="a terminal")
        await h.until_healthy()
        leaving = asyncio.create_task(h.controller.leave("a terminal"))
        await h.until(leaving.done, within_s=60)
        assert [a.name for a in h.controller.status().applications] == ["shop"]
        assert h.word() == "healthy"
        assert not h.world.of(key("other/chat"))


async def test_instance_stays_for_a_client_that_is_about_to_deploy():
    async with harness() as h:
        await h.deploy(application(), owner="a terminal")
        await h.until_healthy()
        h.controller.hold("another terminal")
        leaving = asyncio.create_task(h.controller.leave("a terminal"))
        await h.until(leaving.done, within_s=60)
        await h.deploy(application(), owner="another terminal")
        await h.until_healthy()
        await h.until(h.run.done, within_s=90)
        assert h.world.processes == {}


async def test_an_empty_instance_that_was_started_to_last_stays_after_the_last_lease():
    async with harness() as h:
        await h.controller_dies()
        await h.controller_starts(lasting=True)
        await h.deploy(application(), owner="a terminal")
        await h.until_healthy()
        leaving = asyncio.create_task(h.controller.leave("a terminal"))
        await h.until(leaving.done, within_s=60)
        h.controller.hold("another terminal")
        await h.clock.advance(2 * LEASE_S)
        assert len(h.logged("LeaseEnded")) == 2
        assert not h.logged("ShutdownBegun")
        assert h.controller.status().applications == ()
        await h.deploy(application())
        await h.until_healthy()
