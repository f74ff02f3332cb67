"""`place`: the replicas for a key. `tests/exchange/test_holders.py` has the router with replicas that load models."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.holdings import Holdings
from app_toolkit.exchange.placement.hashed import preferred
from app_toolkit.exchange.placement.holders import DISPLACEMENT_S, HOLDER_WAIT_S, PREFERENCE_S, place
from app_toolkit.types import ReplicaId
from tests.contract.test_holdings import HOLDINGS

IDS = [ReplicaId(name) for name in "abcd"]
REPORTS = st.dictionaries(st.sampled_from(IDS), st.none() | HOLDINGS)
WAITED = st.sampled_from([0.0, PREFERENCE_S / 2, PREFERENCE_S, HOLDER_WAIT_S])


Situation = tuple[dict[ReplicaId, Holdings | None], list[ReplicaId]]
"""The reports of the replicas, and those that have room."""


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    reports = draw(REPORTS)
    return reports, draw(st.lists(st.sampled_from(sorted(reports)), unique=True)) if reports else []


def holders(reports: dict[ReplicaId, Holdings | None]) -> set[ReplicaId]:
    return {id for id, report in reports.items() if report is not None and "k" in report.keys}


AGO = st.dictionaries(st.sampled_from(IDS), st.sampled_from([0.0, DISPLACEMENT_S / 2, DISPLACEMENT_S]))


@given(situations(), AGO, WAITED)
def test_a_request_waits_only_for_a_holder_of_its_key_or_after_a_displacement_and_for_a_bounded_time(
    situation: Situation, displaced_s: dict[ReplicaId, float], waited_s: float
) -> None:
    reports, with_room = situation
    placement = place("k", reports, with_room, displaced_s=displaced_s, waited_s=waited_s)
    if placement is None:
        recently = all(displaced_s.get(id, DISPLACEMENT_S) < DISPLACEMENT_S for id in with_room)
        assert not with_room or (waited_s < PREFERENCE_S and (holders(reports) or recently))
    else:
        assert placement.replicas
        assert set(placement.replicas) <= set(with_room)
        assert placement.replicas == preferred("k", placement.replicas, len(placement.replicas))


@given(situations(), AGO, WAITED)
def test_a_request_goes_to_a_holder_with_room_and_displaces_nothing_if_there_is_another_way(
    situation: Situation, displaced_s: dict[ReplicaId, float], waited_s: float
) -> None:
    reports, with_room = situation
    placement = place("k", reports, with_room, displaced_s=displaced_s, waited_s=waited_s)
    if placement is None:
        return
    at_home = holders(reports) & set(with_room)
    assert placement.holds_key == bool(at_home)
    if at_home:
        assert set(placement.replicas) == at_home
    full = {id for id in with_room if (report := reports[id]) is not None and not report.free}
    assert placement.displaces == (not at_home and full == set(with_room))
    if not placement.displaces:
        assert at_home or not full & set(placement.replicas)


@given(situations(), AGO, WAITED)
def test_request_gives_way_if_the_replica_displaced_a_key_recently_or_others_hold_the_key(
    situation: Situation, displaced_s: dict[ReplicaId, float], waited_s: float
) -> None:
    reports, with_room = situation
    placement = place("k", reports, with_room, displaced_s=displaced_s, waited_s=waited_s)
    if placement is not None and placement.displaces:
        recently = [id for id in placement.replicas if displaced_s.get(id, DISPLACEMENT_S) < DISPLACEMENT_S]
        held_elsewhere = bool(holders(reports)) and waited_s < HOLDER_WAIT_S
        assert placement.gives_way == (bool(recently) or held_elsewhere)
        assert not recently or waited_s >= PREFERENCE_S


@given(situations())
def test_without_reports_every_replica_with_room_is_in_the_order_of_the_hash(situation: Situation) -> None:
    reports, with_room = situation
    placement = place("k", dict.fromkeys(reports), with_room, displaced_s={}, waited_s=0.0)
    if with_room:
        assert placement is not None
        assert placement.replicas == preferred("k", with_room, len(with_room))
        assert (placement.holds_key, placement.displaces, placement.gives_way) == (False, False, False)
    else:
        assert placement is None
