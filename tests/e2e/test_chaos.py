"""The short forms of `benchmarks.chaos` that need nobody killed: the rig's own code, against the session's cluster."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.report import Row
from benchmarks.chaos.scenarios import big_upload, clients_hang_up, overload, slow_readers
from benchmarks.chaos.system import LEDGER, System
from tests.cluster import Served


@pytest.fixture(scope="module")
def system(victim: Served) -> System:
    return System(victim.cluster.instance, victim.spec.name, Path(os.environ[LEDGER]))


CROWDED = 10
"""Others use the machine of a test, too: what depends on its speed may be so many times worse."""


@pytest.mark.parametrize(
    "scenario",
    [
        clients_hang_up,
        slow_readers,
        big_upload,
        overload,
    ],
)
def test_every_bound_is_kept(system: System, scenario: object) -> None:
    rows = [_borne(row) for row in asyncio.run(scenario(system, True))]  # type: ignore[operator]
    assert rows
    assert not [row for row in rows if not row.holds]
    assert system.is_quiet()


def _borne(row: Row) -> Row:
    if not row.clocked:
        return row
    return replace(row, limit=row.limit / CROWDED if row.at_least else row.limit * CROWDED)
