"""`deploy`, `status` and `delete` as scripts use them, sync and async, on processes."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import app_toolkit
from app_toolkit import ConfigError, aio, remote, running
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
    (counter,) = [each for each in app_toolkit.status().applications if each.name == "counter"]
    assert (counter.status, counter.route_prefix) == ("healthy", None)
    assert remote(app_toolkit.get_handle("counter", "counter").count, "two words").result(30) == 2
    before = [each.id for each in counter.deployments[0].replicas]
    app_toolkit.scale("counter/counter", 2)
    (counter,) = [each for each in app_toolkit.status().applications if each.name == "counter"]
    after = [each.id for each in counter.deployments[0].replicas]
    assert (len(after), set(after) > set(before)) == (2, True)
    app_toolkit.rollback("counter")
    (counter,) = [each for each in app_toolkit.status().applications if each.name == "counter"]
    assert counter.deployments[0].target == 1
    events = [each.name for each in app_toolkit.events("counter")]
    assert events[0] == "Applied"
    assert {"Start", "Started"} <= set(events)
    assert len(app_toolkit.events("counter", last=2)) == 2
    app_toolkit.delete("counter")
    assert "counter" not in names()
    with pytest.raises(ConfigError, match="there is no application 'counter'"):
        app_toolkit.delete("counter")


async def test_a_live_revision_is_added_weighed_and_promoted(processes: Cluster) -> None:
    await aio.deploy(deployed.hello, name="greeting", route_prefix="/greeting")
    await aio.deploy(deployed.bye, name="greeting", route_prefix="/greeting", traffic=50)
    (greeting,) = [each for each in (await aio.status()).applications if each.name == "greeting"]
    assert [(each.revision, each.share, each.is_ready) for each in greeting.traffic] == [(1, 0.5, True), (2, 0.5, True)]
    await aio.set_traffic("greeting", {1: 1, 2: 3})
    (greeting,) = [each for each in (await aio.status()).applications if each.name == "greeting"]
    assert [each.share for each in greeting.traffic] == [0.25, 0.75]
    with pytest.raises(ConfigError, match="the guard 'errors<1%' should be error_rate<1%"):
        await aio.rollout("greeting", guards=["errors<1%"])
    await aio.rollout("greeting", steps=[75, 100], every="1h", guards=["p95<1.2x"])
    await aio.pause_rollout("greeting")
    greeting_status = (await aio.status()).application("greeting")
    assert greeting_status is not None
    release = greeting_status.canary
    assert release is not None
    assert (release.revision, release.steps, release.paused) == (2, (75, 100), True)
    await aio.resume_rollout("greeting")
    await aio.promote("greeting")
    async with httpx.AsyncClient(base_url=processes.proxy_url()) as client:
        async with asyncio.timeout(PATIENCE_S):
            while "bye" not in (await client.get("/greeting")).text:  # noqa: ASYNC110 - the proxy cannot tell
                await asyncio.sleep(AGAIN_S)
    await aio.abort("greeting")
    await aio.delete("greeting")
    with pytest.raises(ConfigError, match="there is no application 'greeting' beside which a revision could run"):
        await aio.deploy(deployed.bye, name="greeting", tag="preview")


async def test_another_call_does_not_wait_until_an_application_is_up(processes: Cluster, tmp_path: Path) -> None:
    run = asyncio.create_task(aio.run(deployed.Slow.bind(str(tmp_path / "go")), name="slow", address="auto"))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (slow := (await aio.status()).application("slow")) is None:  # noqa: ASYNC110 - it cannot tell
                await asyncio.sleep(AGAIN_S)
        assert (slow.status, run.done()) == ("starting", False)
    finally:
        (tmp_path / "go").touch()
    assert await (await run).ready()
    await aio.shutdown()


def test_async_form_takes_the_same_arguments() -> None:
    public = {name for name, each in vars(aio).items() if inspect.iscoroutinefunction(each)}
    assert public == {
        *("run", "deploy", "scale", "set_traffic", "promote", "abort", "rollback", "delete", "status", "events"),
        *("slow", "rollout", "pause_rollout", "resume_rollout", "get_handle", "shutdown"),
    }
    for name in public:
        takes, other = (inspect.signature(getattr(module, name)).parameters for module in (aio, running))
        assert [*takes] == [each for each in other if each != "blocking"]
        assert {each.default for each in takes.values()} <= {each.default for each in other.values()}


def test_the_page_says_how_it_is_done_from_python(processes: Cluster) -> None:
    names = page("docs/operations.md").run()
    assert names["counter"].count("two words") == 2
    app_toolkit.delete("counter")
