"""Which replicas the resources of one machine suffice for."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import ResourceOptions
from app_toolkit.engines.amounts import Lack
from app_toolkit.engines.processes.capacity import UNIT, Capacity, Grant, grant
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Resources

TWO_GPUS = Capacity({"memory": 1000.0}, ("0", "1"))

resources = st.builds(
    Resources,
    num_cpus=st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    num_gpus=st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 2.0, 3.0]),
    memory=st.none() | st.integers(1, 1200),
    custom=st.dictionaries(st.sampled_from(["NPU", "LICENSE"]), st.sampled_from([0.5, 1.0, 2.0])),
)
capacities = st.builds(
    Capacity,
    st.dictionaries(st.sampled_from(["CPU", "memory", "NPU"]), st.sampled_from([0.5, 1.0, 2.0, 1000.0])),
    st.sampled_from([(), ("0",), ("0", "1"), ("GPU-a", "GPU-b", "GPU-c")]),
)


@given(capacities, st.lists(st.tuples(resources, st.integers(0, 5)), max_size=12))
def test_replicas_never_reserve_more_than_the_machine_has(
    capacity: Capacity, history: list[tuple[Resources, int]]
) -> None:
    granted: list[Grant] = []
    for asked, ending in history:
        outcome = grant(capacity, granted, asked)
        if isinstance(outcome, Grant):
            granted.append(outcome)
        used, gpus = Counter[str](), Counter[str]()
        for other in granted:
            used.update(other.amounts)
            gpus.update(other.gpus)
        assert all(amount <= round(capacity.amounts[name] * UNIT) for name, amount in used.items())
        assert all(gpu in capacity.gpus and share <= UNIT for gpu, share in gpus.items())
        if ending < len(granted):
            del granted[ending]


@given(capacities, st.lists(resources, max_size=8), resources)
def test_a_replica_waits_only_for_what_others_use(
    capacity: Capacity, others: list[Resources], asked: Resources
) -> None:
    granted: list[Grant] = []
    for other in others:
        if isinstance(outcome := grant(capacity, granted, other), Grant):
            granted.append(outcome)
    on_empty = grant(capacity, [], asked)
    outcome = grant(capacity, granted, asked)
    if isinstance(outcome, Lack):
        assert outcome.for_ever == isinstance(on_empty, Lack)
    else:
        assert isinstance(on_empty, Grant)
        assert sum(outcome.gpus.values()) == round(asked.num_gpus * UNIT)


def test_parts_of_a_gpu_fill_it_before_another_one_is_begun() -> None:
    granted: list[Grant] = []
    for share in (0.5, 0.25, 0.25, 1.0):
        outcome = grant(TWO_GPUS, granted, Resources(num_gpus=share))
        assert isinstance(outcome, Grant)
        granted.append(outcome)
    assert [list(each.gpus) for each in granted] == [["0"], ["0"], ["0"], ["1"]]


@pytest.mark.parametrize(
    ("asked", "granted", "expected"),
    [
        (Resources(num_gpus=3), [], Lack("3 GPU", "2 GPU", for_ever=True)),
        (Resources(num_gpus=2), [Grant(gpus={"0": UNIT // 2})], Lack("2 GPU", "1.5 of 2 GPU", for_ever=False)),
        (Resources(1.0, custom={"NPU": 1}), [], Lack("1 NPU", "0 NPU", for_ever=True)),
        (
            Resources(memory=700),
            [Grant({"memory": 600 * UNIT})],
            Lack("700 memory", "400 of 1000 memory", for_ever=False),
        ),
    ],
)
def test_a_replica_that_waits_names_what_it_lacks(asked: Resources, granted: list[Grant], expected: Lack) -> None:
    assert grant(TWO_GPUS, granted, asked) == expected


def test_replicas_wait_for_cpus_only_if_the_instance_states_their_number() -> None:
    four = [Resources(1.0)] * 4
    for capacity, number in ((Capacity({}), 4), (Capacity({"CPU": 2.0}), 2)):
        granted: list[Grant] = []
        for asked in four:
            if isinstance(outcome := grant(capacity, granted, asked), Grant):
                granted.append(outcome)
        assert len(granted) == number


@pytest.mark.parametrize("number", [1.5, 2.25])
def test_more_than_one_gpu_is_a_whole_number(number: Any) -> None:
    with pytest.raises(ConfigError, match=f"num_gpus = {number}: it should be a whole number, or less than 1"):
        ResourceOptions(num_gpus=number)
