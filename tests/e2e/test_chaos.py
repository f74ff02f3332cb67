"""The short forms of the scenarios of `benchmarks.chaos` that kill no proxy, against the session's cluster."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.chaos.callers import callers_share_a_slot
from benchmarks.chaos.hostile import floods, impatient_clients, large_slow_uploads, no_descriptors, slow_uploads
from benchmarks.chaos.scenarios import (
    big_upload,
    clients_hang_up,
    clients_hang_up_behind_batches,
    clients_hang_up_behind_calls,
    overload,
    slow_readers,
)
from benchmarks.chaos.streams import followers_of_a_hub, idle_streams
from benchmarks.chaos.system import VICTIM, Actors, System
from benchmarks.chaos.updates import updates
from tests.cluster import Served


class Rig(System):
    """Deploys each application once, from this process: the command takes longer than most short forms."""

    def __init__(self, victim: Served, ledger: Path) -> None:
        super().__init__(victim.cluster.client, Actors(victim.cluster.address()), victim.spec.name, ledger)
        self._cluster = victim.cluster
        self._served: dict[str, Served] = {}

    @asynccontextmanager
    async def deployed(
        self, application: str, version: str, *options: str, file: Path = VICTIM
    ) -> AsyncIterator[System]:
        assert (options, file) == ((), VICTIM)
        if application not in self._served:

            def deploy() -> Served:
                return self._cluster.deploy(f"victim:{version}", VICTIM.parent, name=application, held=False)

            self._served[application] = await asyncio.to_thread(deploy)
        yield self.beside(application)

    def close(self) -> None:
        for served in self._served.values():
            served.delete()


@pytest.fixture(scope="module")
def system(victim: Served, ledger: Path) -> Iterator[System]:
    rig = Rig(victim, ledger)
    yield rig
    rig.close()


SLOW = [
    *(clients_hang_up_behind_calls, clients_hang_up_behind_batches, slow_readers, idle_streams, followers_of_a_hub),
    *(big_upload, overload, callers_share_a_slot, slow_uploads, large_slow_uploads, floods, no_descriptors),
    impatient_clients,
]


@pytest.mark.parametrize(
    "scenario",
    [
        clients_hang_up,
        *(pytest.param(scenario, marks=pytest.mark.slow) for scenario in SLOW),
        pytest.param(updates, marks=[pytest.mark.slow, pytest.mark.timeout(240)]),
    ],
)
def test_every_bound_is_met(system: System, scenario: object) -> None:
    rows = asyncio.run(scenario(system, True))  # type: ignore[operator]
    # Latencies and throughputs are not checked: other processes use the machine of a test, too.
    judged = [row for row in rows if not row.clocked]
    assert judged
    assert not [row for row in judged if not row.holds]
    assert system.is_quiet()
