"""The short forms of `benchmarks.chaos` that end no proxy: the rig's own code, against the session's cluster."""

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.chaos.callers import callers_share_a_slot
from benchmarks.chaos.hostile import floods, impatient_clients, no_descriptors, slow_uploads
from benchmarks.chaos.scenarios import (
    big_upload,
    clients_hang_up,
    clients_hang_up_behind_batches,
    clients_hang_up_behind_calls,
    overload,
    slow_readers,
)
from benchmarks.chaos.streams import idle_streams
from benchmarks.chaos.system import LEDGER, System
from benchmarks.chaos.updates import updates
from tests.cluster import Served


@pytest.fixture(scope="module")
def system(victim: Served) -> System:
    return System(victim.cluster.instance, victim.spec.name, Path(os.environ[LEDGER]))


@pytest.mark.parametrize(
    "scenario",
    [
        clients_hang_up,
        clients_hang_up_behind_calls,
        clients_hang_up_behind_batches,
        slow_readers,
        idle_streams,
        big_upload,
        overload,
        callers_share_a_slot,
        slow_uploads,
        floods,
        no_descriptors,
        impatient_clients,
        pytest.param(updates, marks=pytest.mark.timeout(240)),
    ],
)
def test_every_bound_is_kept(system: System, scenario: object) -> None:
    rows = asyncio.run(scenario(system, True))  # type: ignore[operator]
    # Speeds are left to the rig: others use the machine of a test, too.
    judged = [row for row in rows if not row.clocked]
    assert judged
    assert not [row for row in judged if not row.holds]
    assert system.is_quiet()
