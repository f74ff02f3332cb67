"""The stages of a request: the table of transitions, and what becomes of one that is not listed."""

import pytest

from app_toolkit.proxy.stages import TRANSITIONS, IllegalStage, Stage, following


def reachable(begin: Stage) -> set[Stage]:
    found, left = {begin}, [begin]
    while left:
        for stage in TRANSITIONS[left.pop()]:
            if stage not in found:
                found.add(stage)
                left.append(stage)
    return found


def test_every_stage_is_listed_and_comes_after_new() -> None:
    assert set(TRANSITIONS) == reachable(Stage.NEW) == set(Stage)


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_may_end_at_once_and_the_end_is_final(stage: Stage) -> None:
    assert (Stage.DONE in TRANSITIONS[stage]) is (stage is not Stage.DONE)


@pytest.mark.parametrize("stage", [Stage.ANSWERED, Stage.TUNNEL])
def test_a_response_that_has_begun_is_never_begun_again(stage: Stage) -> None:
    assert reachable(stage) == {stage, Stage.DONE}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("next", Stage)
def test_a_transition_is_taken_if_it_is_listed_and_raises_if_not(stage: Stage, next: Stage) -> None:
    if next in TRANSITIONS[stage]:
        assert following(stage, next) is next
    else:
        with pytest.raises(IllegalStage, match=f"{stage.name} cannot become {next.name}"):
            following(stage, next)
