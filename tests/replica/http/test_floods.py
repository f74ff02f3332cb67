"""When the frames of a WebSocket are a flood."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.replica.http.floods import BURST, MOST_PER_S, FrameBudget

#: Seconds until a slice is read, and frames in it.
SLICES = st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5_000)), max_size=100)


@given(st.floats(0, 1e6), st.integers(0, int(BURST)))
def test_the_frames_of_ten_seconds_may_come_at_once(now: float, frames: int) -> None:
    assert FrameBudget(now).spend(frames, now)


@given(st.floats(0, 1e6), st.lists(st.floats(0.001, 10), max_size=100), st.floats(0, 0.99))
def test_a_client_that_keeps_below_the_limit_is_never_refused(now: float, gaps: list[float], share: float) -> None:
    budget = FrameBudget(now)
    owed = 0.0
    for gap in gaps:
        now += gap
        owed += min(gap, 1.0) * MOST_PER_S * share
        frames = int(owed)
        owed -= frames
        assert budget.spend(frames, now)


@given(SLICES)
def test_client_sends_at_most_the_limit_and_one_burst(slices: list[tuple[float, int]]) -> None:
    budget, now, sent = FrameBudget(0), 0.0, 0
    for gap, frames in slices:
        now += gap
        if not budget.spend(frames, now):
            return
        sent += frames
        assert sent <= BURST + MOST_PER_S * now + 1e-6 * len(slices)


@given(st.integers(1, 200_000))
def test_flood_is_refused_after_its_burst(per_s: int) -> None:
    budget, every_s = FrameBudget(0.0), 0.01
    frames = round(per_s * every_s)
    surplus = frames - MOST_PER_S * every_s
    if surplus <= 0:
        assert all(budget.spend(frames, (number + 1) * every_s) for number in range(1_000))
    else:
        slices = int(BURST / surplus) + 2
        assert not all(budget.spend(frames, (number + 1) * every_s) for number in range(slices))
