"""The desired state of the admin server: when it starts, with which options, and what survives."""

import asyncio

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.admin import PORT, START_S
from app_toolkit.types import Address
from tests.control.harness import SHOP, application, harness

pytestmark = pytest.mark.anyio

ADDRESS = Address("tcp:127.0.0.1:4711")


def options(h):
    return h.controller.desired.admin.desired


async def test_admin_server_is_desired_once_the_first_application_is_up():
    async with harness() as h:
        await h.deploy(application())
        await h.until(lambda: h.world.of(SHOP, "running"))
        assert options(h) is None
        desired = asyncio.create_task(h.controller.admin_after(None, 30.0))
        await h.until(desired.done)
        assert desired.result() == options(h)
        assert h.word() == "healthy"
        assert h.controller.desired.admin.preferred_port == PORT


async def test_admin_server_is_desired_after_a_while_if_no_application_comes_up():
    async with harness() as h:
        h.world.broken[SHOP] = "it fails"
        await h.deploy(application())
        await h.clock.advance(START_S - 0.5)
        assert options(h) is None
        await h.until(lambda: options(h), within_s=3.0)


async def test_options_of_the_admin_server_restart_no_proxy():
    async with harness(deployed=application()) as h:
        await h.until(lambda: options(h))
        [proxy] = h.proxies()
        await h.deploy(application(), HTTPOptions(admin=False))
        assert options(h) is None
        assert h.controller.desired.admin.is_off
        assert h.controller.status().options.items() > {"admin": False, "log_format": "text"}.items()
        await h.deploy(application(), HTTPOptions(admin=True, admin_port=9001))
        assert options(h).admin_port == h.controller.desired.admin.preferred_port == 9001
        await h.clock.advance(10.0)
        assert h.proxies() == [proxy]


async def test_status_has_the_url_of_the_admin_server_or_why_it_does_not_run():
    async with harness(deployed=application()) as h:
        for _ in range(2):
            h.controller.admin_serves(None, "the port is in use")
        assert (h.controller.status().admin_url, h.controller.status().admin_failure) == (None, "the port is in use")
        assert [each.cause for each in h.logged("AdminFailed")] == ["the port is in use"]
        h.controller.admin_serves(ADDRESS)
        assert (h.controller.status().admin_url, h.controller.status().admin_failure) == ("http://127.0.0.1:4711", None)


async def test_next_controller_desires_the_admin_server_at_once_at_the_same_port():
    async with harness() as h:
        await h.deploy(application(), HTTPOptions(admin_port=0))
        await h.until(lambda: options(h))
        h.controller.admin_serves(ADDRESS)
        await h.clock.advance(1.0)
        await h.controller_dies()
        await h.controller_starts()
        assert h.controller.status().admin_url is None
        await h.until(lambda: options(h), within_s=1.0)
        assert h.controller.desired.admin.preferred_port == 4711
