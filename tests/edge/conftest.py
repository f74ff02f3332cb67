"""What the tests of the proxy share: one proxy, and for each test the replicas behind it."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app_toolkit.wire import pool
from tests.edge.wire import ManualLoop, Wire
from tests.edge.world import CALM, RunningProxy, World, eventually


@pytest.fixture(scope="package")
def edge() -> Iterator[RunningProxy]:
    edge = RunningProxy(CALM)
    yield edge
    edge.close()


@pytest.fixture
def near() -> bool:
    """Whether replicas run on the event loop of the proxy (`on_both`)."""
    return False


@pytest.fixture
def world(edge: RunningProxy, tmp_path: Path, near: bool) -> Iterator[World]:
    world = World(edge, tmp_path, near=near)
    yield world
    try:
        # Whatever happened: nobody waits, and every turn has been given back.
        eventually(world.settled)
    finally:
        world.close()


@pytest.fixture(scope="package")
def put_away() -> Iterator[Callable[[World], None]]:
    """Puts away a world whose proxy is its own. That takes half a second, in which the next tests run."""
    ending: deque[World] = deque()

    def put_away(world: World) -> None:
        world.close()
        world.edge.end()
        ending.append(world)
        while len(ending) > 3:
            _is_gone(ending.popleft())

    yield put_away
    while ending:
        _is_gone(ending.popleft())


def _is_gone(world: World) -> None:
    world.edge.close()
    statistics = world.edge.server.statistics()
    left = (statistics.waiting, statistics.ongoing, statistics.connections, statistics.idle)
    assert left == (0, 0, 0, 0), world.folder


@pytest.fixture
def own(tmp_path: Path, put_away: Callable[[World], None], near: bool) -> Iterator[World]:
    """A world whose proxy is its own, so that it may be drained."""
    world = World(RunningProxy(CALM), tmp_path, near=near)
    yield world
    put_away(world)


@pytest.fixture
def new_wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Wire]]:
    """Creates a proxy without sockets, with options of its own."""
    loop = ManualLoop()
    made: list[Wire] = []

    def new_wire(**options: Any) -> Wire:
        wire = Wire(loop, **options)
        monkeypatch.setattr(pool, "connect", wire.connect)
        made.append(wire)
        return wire

    yield new_wire
    try:
        for wire in made:
            wire.close()
    finally:
        loop.close()


@pytest.fixture
def wire(new_wire: Callable[..., Wire]) -> Wire:
    return new_wire()
