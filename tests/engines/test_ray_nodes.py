"""What Ray makes of a proxy for a node that is not there."""

import asyncio

import pytest

from app_toolkit.config.models import HTTPOptions, RayActorOptions
from app_toolkit.core.reconcile import Start
from app_toolkit.core.replica_state import Exited
from app_toolkit.engines.ray.launcher import RayLauncher, new_secret
from app_toolkit.interfaces import ProxySpec
from app_toolkit.types import NodeId, ReplicaId
from tests.cluster import Cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_proxy_for_a_node_that_is_gone_exits_and_is_started_nowhere_else(cluster: Cluster) -> None:
    launcher = RayLauncher(new_secret())
    told: asyncio.Queue[object] = asyncio.Queue()
    launcher.listen(told.put_nowait, epoch=1)
    gone = NodeId("ab" * 28)
    proxy = ProxySpec(ReplicaId(f"proxy@{gone}-1-1"), HTTPOptions(port=0).model_dump(), gone)
    try:
        launcher.perform(Start(proxy, RayActorOptions(num_cpus=0), f"proxy@{gone}", "v1"))
        async with asyncio.timeout(PATIENCE_S):
            event = await told.get()
        assert isinstance(event, Exited), event
        assert event.why is not None
        assert "schedul" in event.why
    finally:
        await launcher.aclose()
