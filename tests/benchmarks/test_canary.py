"""The simulation of canary releases, and what it promises."""

from benchmarks.canary import USUAL, Run, document, drawing, simulate, summary


def test_a_good_candidate_passes_and_bad_ones_return_in_the_first_window() -> None:
    good = summary(USUAL, 1.0, [simulate(USUAL, 1.0, seed) for seed in range(10)])
    assert good.passed == 10
    failing = summary(0.05, 1.0, [simulate(0.05, 1.0, seed) for seed in range(20)])
    assert (failing.returned, failing.returned_in_one_window) == (20, 20)
    slow = summary(USUAL, 2.0, [simulate(USUAL, 2.0, seed) for seed in range(20)])
    assert (slow.returned, slow.returned_in_one_window) == (20, 20)
    assert simulate(0.05, 1.0, 7) == simulate(0.05, 1.0, 7)


def test_the_page_has_a_row_and_a_bar_for_each_candidate() -> None:
    runs = [Run("returned", 100, 150, 1), Run("returned", 400, 250, 2), Run("held", 3_600, 90_000, 3)]
    found = summary(0.02, 1.0, runs)
    assert (found.returned, found.held, found.requests, found.returned_in_one_window) == (2, 1, 200, 1)
    page = document("2026-01-01", [found], [found])
    assert "| 2 % | 0 | 1 | 2 | 1 | 200 | 250 |" in page
    assert "| 1 times |" in page
    assert ">2 %<" in drawing([found], [found])
