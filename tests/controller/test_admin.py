"""The admin process of the controller: when it starts, with which options, and what survives."""

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.controller.admin import PORT, START_S
from app_toolkit.core.reconcile import Start
from tests.controller.harness import ADMIN, SHOP, application, harness

pytestmark = pytest.mark.anyio


async def test_admin_process_starts_once_the_first_application_is_up():
    async with harness() as h:
        await h.controller.apply(application())
        await h.until(lambda: h.world.of(SHOP, "running"))
        started = [start.replica_set for start in h.performed(Start)]
        assert ADMIN not in started
        await h.until(lambda: h.controller.status().admin_url)
        assert h.word() == "healthy"
        assert h.controller.status().admin_url == f"http://127.0.0.1:{PORT}"


async def test_admin_process_starts_after_a_while_if_no_application_comes_up():
    async with harness() as h:
        h.world.broken[SHOP] = "it fails"
        await h.controller.apply(application())
        await h.clock.advance(START_S - 0.5)
        assert not h.world.of(ADMIN)
        await h.until(lambda: h.controller.status().admin_url, within_s=3.0)
        assert h.controller.status().admin.status == "healthy"


async def test_admin_process_that_is_switched_off_ends_and_comes_back():
    async with harness(deployed=application()) as h:
        await h.until(lambda: h.world.of(ADMIN, "running"))
        [proxy] = h.proxies()
        assert h.controller.admin()[0] in h.world.of(ADMIN)
        await h.controller.apply(application(), HTTPOptions(admin=False))
        await h.until(lambda: not h.world.of(ADMIN))
        assert h.controller.status().admin is None
        assert h.controller.status().options.items() > {"admin": False, "log_format": "text"}.items()
        assert h.controller.admin()[0] is None
        await h.controller.apply(application(), HTTPOptions(admin=True, admin_port=9001))
        await h.until(lambda: h.controller.status().admin_url == "http://127.0.0.1:9001")
        assert h.proxies() == [proxy], "options of the admin process do not restart proxies"


async def test_next_admin_process_prefers_the_port_that_the_last_one_has_chosen():
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(admin_port=0))
        await h.until(lambda: h.controller.status().admin_url)
        url = h.controller.status().admin_url
        [admin] = h.world.of(ADMIN)
        await h.controller_dies()
        await h.controller_starts()
        await h.until_healthy(within_s=60)
        assert h.world.of(ADMIN) == [admin], "it goes on without the controller"
        h.world.crash(admin)
        await h.until(lambda: h.world.of(ADMIN, "running"))
        assert h.world.of(ADMIN) != [admin]
        assert h.controller.status().admin_url == url
        assert h.controller.status().admin.restarts == 1
