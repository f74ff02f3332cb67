"""What the tests of the proxy share: one proxy, and for each test the replicas behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .world import Edge, World, eventually


@pytest.fixture(scope="package")
def edge() -> Iterator[Edge]:
    edge = Edge()
    yield edge
    edge.close()


@pytest.fixture
def world(edge: Edge, tmp_path: Path) -> Iterator[World]:
    world = World(edge, tmp_path)
    yield world
    try:
        # Whatever happened: nobody waits, and every turn has been given back.
        eventually(world.settled)
    finally:
        world.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    """A world whose proxy is its own, so that it may be drained."""
    world = World(Edge(), tmp_path)
    yield world
    world.close()
    world.edge.close()
    statistics = world.edge.server.statistics()
    assert (statistics.waiting, statistics.ongoing, statistics.connections, statistics.idle) == (0, 0, 0, 0)
