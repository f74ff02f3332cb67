"""`core.affinity`: the replicas that a key prefers."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.affinity import DISPLACEMENT_S, HOLDER_WAIT_S, PREFERENCE_S, Holdings, place, preferred
from app_toolkit.types import ReplicaId

KEYS = st.text(min_size=1, max_size=20)
REPLICAS = st.sets(st.text("ab1-", min_size=1, max_size=12).map(ReplicaId), max_size=8)


@given(key=KEYS, replicas=REPLICAS, count=st.integers(1, 3))
def test_the_preferred_replicas_are_different_and_do_not_depend_on_the_order(
    key: str, replicas: set[ReplicaId], count: int
) -> None:
    found = preferred(key, sorted(replicas), count)
    assert len(found) == len(set(found)) == min(count, len(replicas))
    assert set(found) <= replicas
    assert found == preferred(key, sorted(replicas, reverse=True), count)


@given(key=KEYS, replicas=REPLICAS, data=st.data())
def test_the_loss_of_a_replica_moves_only_the_keys_that_preferred_it(
    key: str, replicas: set[ReplicaId], data: st.DataObject
) -> None:
    every = preferred(key, replicas, len(replicas))
    if every:
        lost = data.draw(st.sampled_from(every))
        assert preferred(key, replicas - {lost}, len(replicas)) == [each for each in every if each != lost]


def test_keys_are_spread_over_all_replicas() -> None:
    replicas = [ReplicaId(f"model-{number}") for number in range(4)]
    counts = Counter(preferred(f"key-{number}", replicas, 1)[0] for number in range(4_000))
    assert counts.keys() == set(replicas)
    assert all(850 < count < 1_150 for count in counts.values())


# Replicas that report which keys they hold

IDS = [ReplicaId(name) for name in "abcd"]
HOLDINGS = st.builds(
    Holdings,
    st.just(1),
    st.lists(st.sampled_from(["k", "l", "m"]), max_size=3, unique=True).map(tuple),
    st.integers(0, 2),
)
REPORTS = st.dictionaries(st.sampled_from(IDS), st.none() | HOLDINGS)
WAITED = st.sampled_from([0.0, PREFERENCE_S / 2, PREFERENCE_S, HOLDER_WAIT_S])


Situation = tuple[dict[ReplicaId, Holdings | None], list[ReplicaId]]
"""The reports of the replicas, and those that have room."""


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    reports = draw(REPORTS)
    return reports, draw(st.lists(st.sampled_from(sorted(reports)), unique=True)) if reports else []


def holders(reports: dict[ReplicaId, Holdings | None]) -> set[ReplicaId]:
    return {id for id, report in reports.items() if report is not None and "k" in report.held}


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
    assert placement.held == bool(at_home)
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
        assert (placement.held, placement.displaces, placement.gives_way) == (False, False, False)
    else:
        assert placement is None


@given(HOLDINGS, st.sampled_from(["k", "l"]))
def test_a_key_that_arrives_takes_a_free_place_or_that_of_the_key_that_was_not_used_for_longest(
    report: Holdings, key: str
) -> None:
    after = report.with_key(key)
    assert after.held[0] == key
    if key in report.held or report.free:
        assert set(after.held) == {key, *report.held}
        assert after.free == report.free - (key not in report.held)
    else:
        assert after.held[1:] == report.held[:-1]
        assert after.free == (0 if report.held else -1)
