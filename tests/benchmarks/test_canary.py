"""The simulation of canary releases, and what it promises."""

from benchmarks.canary import MANY, RELATIVE, Candidate, measure, simulate


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
