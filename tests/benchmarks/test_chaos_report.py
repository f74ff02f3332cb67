"""What the rig saw is judged as it is: a leak, a second execution, a handler without an end, a bound that is missed."""

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.__main__ import RESULTS
from benchmarks.chaos.ledger import Ledger, executed_twice, unended
from benchmarks.chaos.probe import Probe, queued, slope
from benchmarks.chaos.report import Row, document, holds, plain, summary, verdict
from benchmarks.chaos.scenarios import SCENARIOS


def entry(*rows: Row, failed: str | None = None) -> dict[str, Any]:
    return {
        "bar": "B1",
        "title": "replicas die",
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


GOOD, BAD = Row("lost", 0, 0), Row("until it is back", 6.25, 5, "s", saw="slow")


@pytest.mark.parametrize(
    ("value", "at_least", "kept"),
    [(5, False, True), (5.1, False, False), (5, True, True), (4.9, True, False), (None, False, False)],
)
def test_a_bound_is_kept_up_to_its_limit_and_never_by_what_did_not_come_about(
    value: float | None, at_least: bool, kept: bool
) -> None:
    assert Row("time", value, 5, at_least=at_least).holds is kept


def test_what_took_for_ever_is_missed_also_when_it_has_been_to_json_and_back() -> None:
    row = Row("until it is back", math.inf, 5)
    again = Row(**json.loads(json.dumps(plain(row))))
    assert (row.holds, again.holds, again.value) == (False, False, None)


def test_a_scenario_holds_where_all_of_it_does() -> None:
    assert holds(entry(GOOD))
    assert not holds(entry(GOOD, BAD))
    assert not holds(entry())
    assert verdict(entry(failed="the victim did not come up")) == "not measured: the victim did not come up"


def test_the_page_tells_what_was_wanted_and_measured_and_what_was_not() -> None:
    said = document(results(entry(GOOD, BAD), entry(failed="`app-toolkit run` has no --moon")))
    assert "| until it is back (slow) | ≤ 5 s | 6.25 | **missed** |" in said
    assert "| B1: replicas die | 1 of 2 hold | **missed** |" in said
    assert "Not measured: `app-toolkit run` has no --moon." in said
    assert "in its short form" in said
    assert "None" not in said


def test_the_page_in_the_docs_is_made_of_the_results() -> None:
    known = json.loads(RESULTS.read_text())
    assert (RESULTS.parents[2] / "docs" / "reliability.md").read_text() == document(known)
    assert {scenario.bar for scenario in SCENARIOS} == {entry["bar"] for entry in known["scenarios"]}
    assert summary(known) in document(known)


def test_the_ledger_tells_who_ran_twice_and_who_never_ended(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("start a 1 0.1\nstart b 2 0.2\nend a 1 0.3\nsta")
    ledger = Ledger(path)
    before = ledger.of("ab")
    assert unended(before.values()) == 1
    with path.open("a") as file:  # the rest of a line that was read in the middle
        file.write("rt a 2 0.4\ncancel b 2 0.5\nchunk a 2 0.6\n")
    written = ledger.of(["a", "b", "never came"])
    assert (executed_twice(written.values()), unended(written.values())) == (1, 1)
    assert unended(before.values()) == 1
    assert written["a"].pids == {1, 2}
    assert (written["a"].chunks, written["b"].over, set(written)) == (1, True, {"a", "b"})


def test_a_late_jump_is_no_trend_and_a_slow_rise_is() -> None:
    assert slope([(t, 30.0 if t > 8 else 0.0) for t in range(11)]) == 0
    assert slope([(t, t * 1.0 + (t % 2) * 0.2) for t in range(11)]) == pytest.approx(1.0, abs=0.1)
    assert slope([]) == slope([(0, 1)]) == 0


@pytest.mark.anyio
async def test_a_probe_sees_memory_and_files_grow() -> None:
    async with Probe({"we": os.getpid()}, every_s=0.01) as probe:
        hoard = b"x" * 50_000_000
        opened = socket.socket()
    opened.close()
    assert len(hoard) == 50_000_000
    assert probe.growth(["we"]) > 40
    assert max(sample.fds["we"] for sample in probe.samples) > probe.samples[0].fds["we"]


def test_what_waits_in_the_kernel_is_counted_by_the_clients_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"x" * 1_000)
            assert queued(server.getsockname()[1])[client.getsockname()[1]] == 1_000
