"""The page about reliability has the results, and the ledger shows a second execution and a handler without an end."""

import json
from pathlib import Path

from benchmarks.chaos.__main__ import RESULTS
from benchmarks.chaos.ledger import Ledger, executed_twice, unended
from benchmarks.chaos.report import document, summary
from benchmarks.chaos.scenarios import SCENARIOS


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
