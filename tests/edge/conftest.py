"""One proxy with one replica behind it, and its ledger."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.world import Edge, World, eventually

from .app import Ledger, build


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    edge = Edge()
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
