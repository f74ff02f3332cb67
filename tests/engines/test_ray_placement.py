"""Placement of replicas, and the reason if there are no resources."""

from operator import and_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.engines.amounts import Lack
from app_toolkit.engines.ray.placement import Node, lack, may_be_granted

TWO = {"CPU": 2.0}


@pytest.mark.parametrize(
    ("why", "free", "nodes", "most", "expected"),
    [
        ("there is room", 1.0, [Node(TWO, 5)], None, None),
        ("all is taken", 0.5, [Node(TWO, 5)], None, Lack("1 CPU", "0.5 of 2 CPU", for_ever=False)),
        ("no node is large enough", 1.0, [Node({"CPU": 0.5}, 0)] * 2, None, Lack("1 CPU", "1 CPU", for_ever=True)),
        ("there is no node", 0.0, [], 1, Lack("1 CPU", "0 CPU", for_ever=True)),
        ("nodes have room for more of it", 1.0, [Node(TWO, 1)] * 2, 2, None),
        (
            "every node has as many as it may",
            3.0,
            [Node(TWO, 1)] * 2,
            1,
            Lack("1 CPU on a node with fewer than 1 of its replicas (0 of 2 are such)", "3 of 4 CPU", for_ever=False),
        ),
        (
            "what is free may be where none may run",
            1.5,
            [Node(TWO, 1), Node(TWO, 0), Node({}, 0)],
            1,
            Lack("1 CPU on a node with fewer than 1 of its replicas (1 of 2 are such)", "1.5 of 4 CPU", for_ever=False),
        ),
        ("so much cannot be free where none may run", 2.0, [Node(TWO, 1), Node(TWO, 0), Node({}, 0)], 1, None),
        (
            "so much may be free where it would not fit",
            2.0,
            [Node(TWO, 1), Node(TWO, 0), Node({"CPU": 0.5}, 0)],
            1,
            Lack("1 CPU on a node with fewer than 1 of its replicas (1 of 2 are such)", "2 of 4.5 CPU", for_ever=False),
        ),
    ],
)
def test_waiting_replica_names_the_missing_resources(
    why: str, free: float, nodes: list[Node], most: int | None, expected: Lack | None
) -> None:
    assert lack({"CPU": 1.0}, {"CPU": free}, nodes, most) == expected, why


amounts = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.integers(0, 3).map(float))
node = st.builds(Node, amounts, st.integers(0, 3))


@given(asks=amounts, nodes=st.lists(node, max_size=4), most=st.none() | st.integers(1, 3), data=st.data())
def test_replica_is_unplaceable_for_ever_only_if_no_node_of_a_cluster_fits(
    asks: dict[str, float], nodes: list[Node], most: int | None, data: st.DataObject
) -> None:
    left = [
        {
            name: data.draw(st.floats(0, max(0.0, total - node.mine * asks.get(name, 0.0))))
            for name, total in has.items()
        }
        for node in nodes
        for has in [node.total]
    ]
    free = {name: sum(each.get(name, 0.0) for each in left) for name in ("CPU", "GPU")}

    def fits(there: dict[str, float]) -> bool:
        return all(there.get(name, 0.0) >= amount for name, amount in asks.items())

    lacking = lack(asks, free, nodes, most)
    assert (lacking is not None and lacking.for_ever) == (not any(fits(dict(node.total)) for node in nodes))
    full = [most is not None and node.mine >= most for node in nodes]
    if all(full):
        assert lacking is not None, "no node may have one more"
    suits = [fits(dict(node.total)) for node in nodes]
    if lacking is None and any(map(and_, suits, full)):
        there = [each for each, is_full, suit in zip(left, full, suits, strict=True) if suit and not is_full]
        known = {name: sum(each.get(name, 0.0) for each in there) + 1e-9 for name in asks}
        assert fits(known), "what is free is free where it may run"


@pytest.mark.parametrize(
    ("why", "free", "held", "granted"),
    [
        ("it has taken the CPU that is missing", 0.9, {"CPU": 0.1}, True),
        ("another replica that runs has taken it", 0.9, {"CPU": 1.1}, False),
        ("Ray's amounts are rounded", 0.90004, {"CPU": 0.1}, True),
        ("it takes longer than others to be known", 0.0, {"CPU": 0.5}, True),
    ],
)
def test_unaccounted_resources_may_belong_to_the_replica(
    why: str, free: float, held: dict[str, float], granted: bool
) -> None:
    assert may_be_granted({"CPU": 1.0}, {"CPU": free}, [Node(TWO, 0)], held) is granted, why


def test_a_replica_that_asks_for_nothing_is_granted_nothing() -> None:
    assert not may_be_granted({}, {"CPU": 2.0}, [Node(TWO, 0)], {})


@given(amounts, amounts, amounts)
def test_with_all_of_the_cluster_held_by_others_nothing_is_granted(
    asks: dict[str, float], free: dict[str, float], total: dict[str, float]
) -> None:
    held = {name: total.get(name, 0.0) - free.get(name, 0.0) for name in asks}
    granted = may_be_granted(asks, free, [Node(total, 0)], held)
    assert granted == (bool(asks) and not any(asks.values()))
