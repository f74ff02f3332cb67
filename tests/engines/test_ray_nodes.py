"""What becomes of a process that Ray cannot start."""

import asyncio

import pytest
from pydantic import JsonValue

from app_toolkit.config.models import DeploymentConfig, HTTPOptions
from app_toolkit.contract.replica_spec import ProxySpec, ReplicaSpec
from app_toolkit.control.reconcile import Start
from app_toolkit.control.replica_state import Exited
from app_toolkit.engines.ray.launcher import RayProcesses
from app_toolkit.host.launcher import ProcessLauncher
from app_toolkit.host.store import new_secret
from app_toolkit.interfaces import ReloadableOptions, Resources
from app_toolkit.types import NodeId, ReplicaId
from tests.cluster import Cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_proxy_for_a_node_that_is_gone_exits_and_is_started_nowhere_else(cluster: Cluster) -> None:
    launcher = ProcessLauncher(RayProcesses(), new_secret())
    events: asyncio.Queue[object] = asyncio.Queue()
    launcher.listen(events.put_nowait, epoch=1)
    gone = NodeId("ab" * 28)
    proxy = ProxySpec(ReplicaId(f"proxy@{gone}-1-1"), HTTPOptions(port=0).model_dump(), gone)
    try:
        launcher.perform(Start(proxy, Resources(), f"proxy@{gone}", "v1"))
        async with asyncio.timeout(PATIENCE_S):
            event = await events.get()
        assert isinstance(event, Exited), event
        assert event.why is not None
        assert "schedul" in event.why
    finally:
        await launcher.aclose()


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"pip": 3}, "runtime_env['pip'] must be of type str or List[str]"),
        ({"pip": ["a"], "conda": "b"}, "cannot be specified at the same time"),
        ({"working_dir": "file:///no/such.zip"}, "/no/such.zip"),
    ],
)
async def test_a_replica_whose_runtime_env_cannot_be_created_exits_with_the_reason(
    cluster: Cluster, environment: dict[str, JsonValue], why: str
) -> None:
    launcher = ProcessLauncher(RayProcesses(), new_secret())
    events: asyncio.Queue[object] = asyncio.Queue()
    launcher.listen(events.put_nowait, epoch=1)
    replica = ReplicaSpec(
        ReplicaId("refused-1-1"), "shop", DeploymentConfig(name="refused"), "shop:app", ".", "", ReloadableOptions(1)
    )
    try:
        launcher.perform(Start(replica, Resources(0.1, engine_options={"runtime_env": environment}), "refused", "v1"))
        async with asyncio.timeout(PATIENCE_S):
            event = await events.get()
        assert isinstance(event, Exited), event
        assert event.why is not None
        assert why in event.why
    finally:
        await launcher.aclose()
