"""The results of the simulation that the page about traffic shows."""

import pytest

from benchmarks.routing import Simulation


@pytest.mark.parametrize(("replicas", "callers", "least"), [(2, 1, 0.9), (4, 1, 0.85), (2, 2, 0.8), (4, 2, 0.75)])
def test_most_turns_find_their_prefix_at_half_load_and_the_replicas_stay_balanced(
    replicas: int, callers: int, least: float
) -> None:
    by_prefix = Simulation(replicas, callers, 0.5, "prefix").run(300)
    assert by_prefix.share > least
    assert by_prefix.busiest < 1.15
    assert Simulation(replicas, callers, 0.5, None).run(300).share < 1 / replicas + 0.1
