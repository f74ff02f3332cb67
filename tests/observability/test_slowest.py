"""Which of the slowest requests are kept, and what is shown of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.observability.slowest import (
    KEPT,
    PERIOD_S,
    PERIODS,
    SKEW_S,
    Slowest,
    SlowRequest,
    is_selected,
    slowest,
    with_calls,
)

REQUEST = SlowRequest(
    1_000.0, 3.0, "http", "shop/web", "shop.web-1-1", "GET", "/", 200, "ok", "a", 0.0, 1.0, (), 1.5, 0.5
)
CALL = replace(REQUEST, kind="call", deployment="shop/model", method="predict", path="")


@given(st.lists(st.floats(0, 100), max_size=100))
def test_the_slowest_items_of_a_period_are_kept(durations: list[float]) -> None:
    found: Slowest[float] = Slowest()
    for seconds in durations:
        found.add(seconds, 10.0, seconds)
    assert sorted(found.items(10.0)) == sorted(durations)[-KEPT:]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, PERIOD_S)), max_size=200))
def test_all_kept_items_are_recent_and_their_number_is_bounded(added: list[tuple[float, float]]) -> None:
    now, found = 0.0, Slowest[float]()
    for seconds, later in added:
        now += later
        found.add(seconds, now, now)
        kept = found.items(now)
        assert len(kept) <= KEPT * PERIODS
        assert all(now - at <= (PERIODS + 1) * PERIOD_S for at in kept)
        assert now in kept or len(kept) >= KEPT, "an item is dropped only for slower ones"


def test_an_item_is_dropped_when_it_is_too_old_even_if_none_follows() -> None:
    found: Slowest[str] = Slowest()
    found.add(1.0, 0.0, "old")
    assert found.items((PERIODS + 1) * PERIOD_S - 1) == ["old"]
    assert found.items((PERIODS + 1) * PERIOD_S) == []


def test_a_request_is_as_slow_as_the_time_until_its_response_began() -> None:
    stream = replace(REQUEST, seconds=100.0, response_s=99.0)
    assert slowest([stream, REQUEST], 1) == [REQUEST]


@pytest.mark.parametrize(
    ("request_or_call", "name", "selected"),
    [
        (REQUEST, None, True),
        (REQUEST, "shop", True),
        (REQUEST, "shop/web", True),
        (REQUEST, "bank", False),
        (REQUEST, "shop/model", False),
        (replace(REQUEST, deployment="shop@13/web"), "shop", True),
        (CALL, None, False),
        (CALL, "shop", False),
        (CALL, "shop/model", True),
    ],
)
def test_a_name_selects_requests_and_that_of_a_deployment_also_calls(
    request_or_call: SlowRequest, name: str | None, selected: bool
) -> None:
    assert is_selected(request_or_call, name) is selected


def test_a_request_is_shown_with_the_calls_that_were_made_for_it() -> None:
    second, first = replace(CALL, at=1_001.0), replace(CALL, at=1_000.5)
    others = [replace(CALL, request_id="b"), replace(CALL, at=1_003.0 + 2 * SKEW_S)]
    assert with_calls([REQUEST], [second, *others, first]) == [replace(REQUEST, calls=(first, second))]
