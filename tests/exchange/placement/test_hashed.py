from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.exchange.placement.hashed import preferred
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
