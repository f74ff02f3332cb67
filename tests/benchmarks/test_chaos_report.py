"""The rig detects a leak, a second execution and a handler without an end, and reports a bound that is missed."""

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.__main__ import RESULTS
from benchmarks.chaos.ledger import Ledger, executed_twice, unended
from benchmarks.chaos.probe import Probe, queued
from benchmarks.chaos.report import Row, document, plain, summary
from benchmarks.chaos.scenarios import SCENARIOS
from tests.patience import wait_until


def entry(*rows: Row, failed: str | None = None) -> dict[str, Any]:
    return {
        "engine": "ray",
        "bar": "B1",
        "title": "replicas are killed",
        "says": "A replica is killed.",
        "date": "2026-01-01",
        "form": "short",
        "seconds": 8.0,
        "failed": failed,
        "rows": [plain(row) for row in rows],
    }


def results(*entries: dict[str, Any]) -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "a CPU", "memory_gb": 8.0, "system": "Linux 6"}
    return {"machine": machine, "versions": {"ray": "2.60.0"}, "scenarios": list(entries)}


GOOD, BAD = Row("lost", 0, 0), Row("time until it is back", 6.25, 5, "s", saw="slow")


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [(5, False, True), (5.1, False, False), (5, True, True), (4.9, True, False), (None, False, False)],
)
def test_a_bound_is_met_up_to_its_limit_and_never_by_an_event_that_did_not_occur(
    value: float | None, at_least: bool, met: bool
) -> None:
    assert Row("time", value, 5, at_least=at_least).holds is met


def test_an_infinite_time_misses_its_bound_also_after_a_round_trip_through_json() -> None:
    row = Row("time until it is back", math.inf, 5)
    again = Row(**json.loads(json.dumps(plain(row))))
    assert (row.holds, again.holds, again.value) == (False, False, None)


def test_the_page_shows_the_bounds_and_the_measurements_and_the_scenarios_without_any() -> None:
    said = document(results(entry(GOOD, BAD), entry(failed="`app-toolkit run` has no --moon")))
    assert "| time until it is back (slow) | ≤ 5 s | 6.25 | **missed** |" in said
    assert "| Ray | B1: replicas are killed | 1 of 2 met | **missed** |" in said
    assert "Not measured on Ray: `app-toolkit run` has no --moon." in said
    assert "in the short form" in said
    assert "None" not in said


def test_the_page_in_the_docs_is_generated_from_the_results() -> None:
    known = json.loads(RESULTS.read_text())
    assert (RESULTS.parents[2] / "docs" / "reliability.md").read_text() == document(known)
    assert {scenario.bar for scenario in SCENARIOS} == {entry["bar"] for entry in known["scenarios"]}
    assert summary(known) in document(known)


def test_the_ledger_shows_which_handlers_ran_twice_and_which_never_ended(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("start a 1 0.1\nstart b 2 0.2\nend a 1 0.3\nsta")
    ledger = Ledger(path)
    before = ledger.of("ab")
    assert unended(before.values()) == 1
    with path.open("a") as file:  # the rest of a line that was read before it was complete
        file.write("rt a 2 0.4\ncancel b 2 0.5\nchunk a 2 0.6\n")
    written = ledger.of(["a", "b", "never came"])
    assert (executed_twice(written.values()), unended(written.values())) == (1, 1)
    assert unended(before.values()) == 1
    assert written["a"].pids == {1, 2}
    assert (written["a"].chunks, written["b"].over, set(written)) == (1, True, {"a", "b"})


@pytest.mark.anyio
async def test_a_probe_sees_memory_and_files_grow() -> None:
    async with Probe({"we": os.getpid()}, every_s=0.01) as probe:
        hoard = b"x" * 50_000_000
        opened = socket.socket()
    opened.close()
    assert len(hoard) == 50_000_000
    assert probe.growth(["we"]) > 40
    assert max(sample.fds["we"] for sample in probe.samples) > probe.samples[0].fds["we"]


def test_bytes_in_kernel_buffers_are_counted_by_client_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"x" * 1_000)
            # On its way from one buffer to the other it may be in neither, or in both.
            wait_until(lambda: queued(server.getsockname()[1])[client.getsockname()[1]] == 1_000)
