"""The comparison of two builds that were measured alternately."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ab import ratios, table

FIGURES = st.floats(0.001, 1e6)


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=40))
def test_the_median_lies_between_the_quartiles_and_they_lie_within_the_rounds(
    rounds: list[tuple[float, float]],
) -> None:
    new, old = zip(*rounds, strict=True)
    each = [one / other for one, other in rounds]
    found = ratios(new, old)
    slack = 1 + 1e-9
    assert min(each) / slack <= found.low <= found.middle * slack <= found.high * slack * slack <= max(each) * slack**3


def test_a_round_on_a_slower_machine_does_not_change_the_ratios() -> None:
    fast, slow = [100.0, 50.0, 100.0], [80.0, 40.0, 80.0]
    assert ratios(slow, fast).middle == ratios(slow, fast).low == ratios(slow, fast).high == pytest.approx(0.8)


def test_rounds_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        ratios([1.0], [1.0, 2.0])


def test_the_table_has_a_row_per_measure_and_bare_if_it_was_measured() -> None:
    shown = table(
        {
            "get_32": {"bare": [50.0, 50.0], "old": [80.0, 80.0], "new": [100.0, 100.0]},
            "calls": {"old": [10.0, 10.0], "new": [5.0, 5.0]},
        }
    )
    _, _, requests, calls = shown.splitlines()
    assert requests.endswith("| 50 | 80 | 100 | 1.250 (1.250 to 1.250) | 2.000 (2.000 to 2.000) |")
    assert calls.endswith("|  | 10 | 5 | 0.500 (0.500 to 0.500) |  |")
