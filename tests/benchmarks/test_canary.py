"""The simulation of canary releases, and what it promises."""

from benchmarks.canary import MANY, RELATIVE, SERIES, Candidate, Run, document, drawing, measure, simulate, summary


def test_a_good_candidate_passes_and_bad_ones_return_in_the_first_window() -> None:
    assert measure(Candidate("good"), 10).passed == 10
    for bad in (
        Candidate("fails", error_rate=0.05),
        Candidate("fails more often", error_rate=0.1, baseline=MANY, plan=RELATIVE),
        Candidate("slow", ratio=2.0),
    ):
        found = measure(bad, 20)
        assert (found.returned, found.returned_in_one_window) == (20, 20)
        assert simulate(bad, 7) == simulate(bad, 7)


def test_the_page_has_a_row_and_a_bar_for_each_candidate() -> None:
    runs = [Run("returned", 100, 150), Run("returned", 400, 250), Run("held", 3_600, 90_000)]
    found = {name: [summary(each.label, runs) for each in candidates] for name, candidates in SERIES.items()}
    page, svg = document("2026-01-01", found), drawing(found)
    for candidates in SERIES.values():
        for each in candidates:
            assert f"| {each.label} | 0 | 1 | 2 | 1 | 200 | 250 |" in page
            assert f">{each.label}<" in svg
