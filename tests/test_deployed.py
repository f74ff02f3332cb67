"""`deploy`, `status` and `delete` as scripts use them, sync and async, on processes."""

import asyncio
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

import app_toolkit
from app_toolkit import ConfigError, remote
from app_toolkit.userapp.loading import import_from
from tests.cluster import E2E, Cluster
from tests.docs.pages import page
from tests.patience import AGAIN_S, PATIENCE_S

pytestmark = pytest.mark.anyio

deployed = import_from("deployed", str(E2E))


@pytest.fixture(autouse=True)
def _as_it_was(processes_found: Cluster) -> Iterator[None]:
    before = names()
    yield
    app_toolkit.shutdown()
    assert names() == before


def names() -> list[str]:
    return [each.name for each in app_toolkit.status().applications]


def test_deployed_application_stays_until_it_is_deleted(processes: Cluster) -> None:
    app_toolkit.deploy(deployed.Counter.bind(), name="counter")
    app_toolkit.shutdown()  # which takes back what was run
    with app_toolkit.connect() as instance:
        (counter,) = [each for each in instance.status().applications if each.name == "counter"]
        assert (counter.status, counter.route_prefix) == ("healthy", None)
        assert remote(app_toolkit.get_handle("counter", "counter").count, "two words").result(30) == 2
        before = [each.id for each in counter.deployments[0].replicas]
        instance.scale("counter/counter", 2)
        (counter,) = [each for each in instance.status().applications if each.name == "counter"]
        after = [each.id for each in counter.deployments[0].replicas]
        assert (len(after), set(after) > set(before)) == (2, True)
        events = [each.name for each in instance.events("counter").events]
        assert events[0] == "Applied"
        assert {"Start", "Started"} <= set(events)
        assert len(instance.events("counter", last=2).events) == 2
        instance.delete("counter")
        assert "counter" not in names()
        with pytest.raises(ConfigError, match="there is no application 'counter'"):
            instance.delete("counter")


async def test_a_live_revision_is_added_weighed_and_promoted(processes: Cluster) -> None:
    deploy = partial(asyncio.to_thread, app_toolkit.deploy)
    await deploy(deployed.hello, name="greeting", route_prefix="/greeting")
    await deploy(deployed.bye, name="greeting", route_prefix="/greeting", traffic=50)
    async with app_toolkit.connect_async() as instance:
        (greeting,) = [each for each in (await instance.status()).applications if each.name == "greeting"]
        shares = [(each.revision, each.share, each.is_ready) for each in greeting.traffic]
        assert shares == [(1, 0.5, True), (2, 0.5, True)]
        await instance.set_traffic("greeting", {1: 1, 2: 3})
        (greeting,) = [each for each in (await instance.status()).applications if each.name == "greeting"]
        assert [each.share for each in greeting.traffic] == [0.25, 0.75]
        await instance.promote("greeting")
        async with httpx.AsyncClient(base_url=processes.proxy_url()) as client:
            async with asyncio.timeout(PATIENCE_S):
                while "bye" not in (await client.get("/greeting")).text:  # noqa: ASYNC110 - the proxy cannot tell
                    await asyncio.sleep(AGAIN_S)
        await instance.delete("greeting")
    with pytest.raises(ConfigError, match="there is no application 'greeting' beside which a revision could run"):
        await deploy(deployed.bye, name="greeting", tag="preview")


def test_the_page_says_how_it_is_done_from_python(processes: Cluster) -> None:
    names = page("docs/operations.md").run()
    assert names["counter"].count("two words") == 2
    with app_toolkit.connect() as instance:
        instance.delete("counter")
