"""Which replicas wait for the resources of a machine, and when they get them."""

import asyncio

import pytest

from app_toolkit.engines.processes.capacity import UNIT, Capacity, Grant
from app_toolkit.engines.processes.reservations import Reservations
from app_toolkit.interfaces import Resources
from tests.patience import until

pytestmark = pytest.mark.anyio

ONE_GPU = Capacity({}, ("0",))
GPU = Resources(num_gpus=1)


async def test_a_replica_gets_what_another_one_frees_at_its_end() -> None:
    reservations = Reservations(ONE_GPU)
    await reservations.reserve("first", GPU)
    second = asyncio.create_task(reservations.reserve("second", GPU))
    third = asyncio.create_task(reservations.reserve("third", GPU))
    await until(lambda: len(reservations.lacks) == 2)
    assert reservations.lacks["second"].free == "0 of 1 GPU"
    reservations.release("first")
    assert (await second).gpus == {"0": UNIT}
    await until(lambda: set(reservations.lacks) == {"third"})
    reservations.release("second")
    await third
    assert not reservations.lacks


async def test_a_replica_that_ends_while_it_waits_leaves_nothing() -> None:
    reservations = Reservations(ONE_GPU)
    await reservations.reserve("first", GPU)
    waiting = asyncio.create_task(reservations.reserve("second", GPU))
    await until(lambda: "second" in reservations.lacks)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not reservations.lacks
    reservations.release("second")
    reservations.release("first")
    await reservations.reserve("third", GPU)


async def test_a_new_controller_knows_what_replicas_have_reserved() -> None:
    reservations = Reservations(ONE_GPU)
    reservations.adopt("first", Grant(gpus={"0": UNIT // 2}))
    assert await reservations.reserve("first", GPU) == Grant(gpus={"0": UNIT // 2})
    waiting = asyncio.create_task(reservations.reserve("second", GPU))
    await until(lambda: "second" in reservations.lacks)
    reservations.release("first")
    await waiting
