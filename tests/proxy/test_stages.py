"""The stages of a request: the table of transitions, and what becomes of one that is not listed."""

import pytest

from app_toolkit.errors import NoReplica
from app_toolkit.proxy.exchange import Exchange
from app_toolkit.proxy.stages import TRANSITIONS, IllegalStage, Stage

from .world import World


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


@pytest.mark.parametrize("stage", [Stage.RESPONDING, Stage.TUNNEL])
def test_a_response_that_has_begun_is_never_begun_again(stage: Stage) -> None:
    assert reachable(stage) == {stage, Stage.DONE}


def test_an_exchange_that_has_ended_cannot_end_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Exchange] = []
    begin = Exchange.begin

    def remembered(exchange: Exchange) -> None:
        begun.append(exchange)
        begin(exchange)

    monkeypatch.setattr(Exchange, "begin", remembered)
    world.one()
    with world.raw() as raw:
        assert raw.send(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").answer().status == 200
    (exchange,) = begun
    with pytest.raises(IllegalStage, match="a request that is DONE cannot become DONE"):
        world.edge.call(lambda: exchange.fail(NoReplica("too late")))
