"""The stages of a request at a replica, in random histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.replica.admission.stage import TRANSITIONS, Event, IllegalEvent, Stage

HISTORIES = st.lists(st.sampled_from(Event), max_size=20)


def stages_of(events: list[Event]) -> list[Stage]:
    """The stages of a request to which these events happen, without those that are illegal."""
    stages = [Stage.ARRIVED]
    for event in events:
        if (stages[-1], event) in TRANSITIONS:
            stages.append(TRANSITIONS[stages[-1], event])
    return stages


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", Event)
def test_an_event_that_is_not_listed_is_illegal(stage: Stage, event: Event) -> None:
    if (stage, event) not in TRANSITIONS:
        with pytest.raises(IllegalEvent, match=f"a request that is {stage.name} cannot be {event.name}"):
            TRANSITIONS[stage, event]


def test_every_stage_can_be_reached_and_leads_to_a_complete_response() -> None:
    following = {stage: {after for (before, _), after in TRANSITIONS.items() if before is stage} for stage in Stage}

    def reachable(begin: Stage) -> set[Stage]:
        reached, left = {begin}, [begin]
        while left:
            new = following[left.pop()] - reached
            reached |= new
            left += new
        return reached

    assert reachable(Stage.ARRIVED) == set(Stage)
    assert all(Stage.COMPLETE in reachable(stage) for stage in Stage)


@given(HISTORIES)
def test_a_complete_response_stays_complete(events: list[Event]) -> None:
    stages = stages_of(events)
    if Stage.COMPLETE in stages:
        assert set(stages[stages.index(Stage.COMPLETE) :]) == {Stage.COMPLETE}


@given(HISTORIES)
def test_a_response_that_has_begun_is_never_replaced(events: list[Event]) -> None:
    sent = False
    for before, stage in zip(stages := stages_of(events), stages[1:], strict=False):
        sent = stage is Stage.RESPONDING or (sent and stage is not Stage.HELD)
        assert not (sent and stage is Stage.REPLACED)
        assert stage.begun or not before.begun or stage is Stage.HELD, "only a head that was not sent is taken back"
