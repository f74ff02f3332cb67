"""The checks detect an update that loses requests or leaves an old version behind."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.client import OK, TRUNCATED, Dialogue, Done
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.report import Row
from benchmarks.chaos.system import Look, Said
from benchmarks.chaos.traffic import Traffic, nothing_lost
from benchmarks.chaos.updates import Step, Update, paced, replaced, taken


def done(at: float, version: str, outcome: str = OK, id: str = "a") -> Done:
    return Done(id, outcome, at, at, at + 0.1, version=version)


def look(at: float, *phases: str) -> Look:
    replicas = [{"id": str(number), "phase": phase} for number, phase in enumerate(phases)]
    return Look(at, {"status": "updating", "deployments": [{"name": "versions/app", "replicas": replicas}]})


GOOD = Step(Update("two"), Said(0, "Serving", began=10.0, ended=20.0), settled=20.0)
BAD = Step(Update("raises", "Error: no"), Said(2, "rolled back:\n  Error: no", began=30.0, ended=35.0), settled=38.0)
STEPS = (GOOD, BAD)
LOOKS = (look(15, "running", "running", "starting"), look(19, "recovering", "running", "draining"))
GETS = (
    done(19, "one/one"),
    done(19.9, "two/one"),
    *(done(20 + second, "two/two") for second in range(1, 30)),
    done(37, "raises/two"),
)
SPOKEN = Dialogue(5, [done(19, "one/one"), done(21, "one/two")], closed="1012", ended=22)


def judged(found: Traffic, looks: Sequence[Look] = LOOKS) -> dict[str, Row]:
    return {row.says: row for row in (*replaced(found, STEPS), *paced(STEPS, looks))}


def missed(rows: dict[str, Row]) -> set[str]:
    return {says for says, row in rows.items() if not row.holds}


def test_a_correct_update_meets_every_bound() -> None:
    rows = judged(Traffic(gets=[*GETS], dialogues=[SPOKEN]))
    assert len(rows) == 5
    assert not missed(rows)


@pytest.mark.parametrize(
    "late",
    [done(20.1, "one/one"), done(20.1, "two/one"), done(29, "one/two"), done(38.1, "two/raises")],
)
def test_a_response_with_a_part_of_a_replaced_version_is_detected(late: Done) -> None:
    said = "responses from a version after it was replaced or rolled back"
    assert missed(judged(Traffic(gets=[*GETS, late], dialogues=[SPOKEN]))) == {said}
    assert missed(judged(Traffic(gets=[*GETS], streams=[late], dialogues=[SPOKEN]))) == {said}
    opened = Dialogue(late.sent, [late], closed="1000", ended=40)
    assert missed(judged(Traffic(gets=[*GETS], dialogues=[SPOKEN, opened]))) == {said}


def test_too_few_replicas_no_closed_websocket_and_a_silent_version_are_detected() -> None:
    found = Traffic(gets=[*GETS], dialogues=[SPOKEN])
    assert missed(judged(found, [*LOOKS, look(18, "running", "draining", "starting")])) == {
        "minimum number of running replicas of a deployment during successful updates"
    }
    assert missed(judged(found, [*LOOKS, look(25, "running")])) == set(), "a snapshot outside of the updates"
    assert missed(judged(replace(found, dialogues=[]))) == {"WebSockets that the server closed with 1001 or 1012"}
    silent = [get for get in GETS if not 31 < get.sent < 37]
    assert missed(judged(replace(found, gets=silent))) == {
        "longest time without a response from the working version during a failing update"
    }


def test_lost_requests_and_messages_are_detected(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text(
        "start a 1 0.1\nend a 1 0.2\nstart b 1 0.3\nend b 1 0.4\nstart b 2 0.5\nend b 2 0.6\n"
    )
    ledger = Ledger(tmp_path / "ledger")

    def rows(found: Traffic) -> set[str]:
        return {row.says for row in nothing_lost(found, ledger) if not row.holds}

    sound = Traffic([done(1, "")], [done(1, "")], [done(1, "")], [SPOKEN])
    assert rows(sound) == set()
    assert rows(replace(sound, gets=[done(1, "", "503")])) == {"GET: failed or wrong responses"}
    assert rows(replace(sound, posts=[done(1, "", id="b")])) == {"POST: executed more than once"}
    assert rows(replace(sound, posts=[done(1, "", id="c")])) == {"POST: successful, but not in the ledger"}
    assert rows(replace(sound, streams=[done(1, "", TRUNCATED)])) == {"streams: failed or wrong responses"}
    for code in ("1006", "1011", "503", "TIMEOUT"):
        assert rows(replace(sound, dialogues=[Dialogue(1, closed=code)])) == {
            "WebSockets: ended without close code 1000, 1001 or 1012"
        }


@pytest.mark.parametrize(
    ("code", "output", "held"), [(2, "rolled back: Error: no", True), (0, "Error: no", False), (2, "Error: yes", False)]
)
def test_a_failing_update_counts_only_if_its_reason_is_reported(code: int, output: str, held: bool) -> None:
    step = Step(Update("raises", "Error: no"), Said(code, output, 0, 1), 1)
    good, bad = taken([GOOD, step])
    assert good.holds
    assert bad.holds is held
    assert bad.saw == ("" if held else "not raises")
