"""One proxy with one replica behind it, and its ledger."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app_toolkit.edge.protocol import Timeouts
from app_toolkit.exchange.upload_rate import MinimumRate
from tests.beside.app import Ledger, build
from tests.edge.world import RunningProxy, World, eventually


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # So long that no client of a test is late, however slow the machine is.
    edge = RunningProxy(Timeouts(head_s=60.0, keep_alive_s=60.0, body=MinimumRate(500.0, 60.0)))
    world = World(edge, Path(tmp_path_factory.mktemp("edge")))
    yield world
    try:
        eventually(world.settled)
    finally:
        world.close()
        edge.close()


@pytest.fixture(scope="module")
def ledger(world: World) -> Ledger:
    ledger = build()
    world.one(app=ledger)
    return ledger
