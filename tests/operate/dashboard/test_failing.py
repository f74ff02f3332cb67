"""Which deployments fail, decided from the requests and calls of the last minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.operate.aggregate import DeploymentNumbers
from app_toolkit.operate.dashboard.failing import WINDOW_S, Failing, failure

COUNTS = st.dictionaries(
    st.sampled_from(["GET /", "GET /items/{item}", "rank"]),
    st.tuples(st.integers(0, 1_000), st.floats(0, 1)).map(lambda each: (each[0], int(each[0] * each[1]))),
)


def numbers(**routes: tuple[int, int]) -> dict[str, DeploymentNumbers]:
    return {"shop/web": DeploymentNumbers(routes=dict(routes))}


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((1, 1), None),
        ((2, 1), None),
        ((2, 2), "rank: 2 of 2 failed in the last minute"),
        ((4, 2), "rank: 2 of 4 failed in the last minute"),
        ((5, 2), None),
        ((10, 1), None),
        ((60, 3), "rank: 3 of 60 failed in the last minute"),
        ((61, 3), None),
        ((1_000, 0), None),
        ((0, 0), None),
    ],
)
def test_method_fails_if_most_or_several_of_its_calls_fail(counts: tuple[int, int], sentence: str | None) -> None:
    assert failure({}, {"rank": counts}) == sentence


def test_worst_routes_are_named_first_and_the_others_are_counted() -> None:
    before = {"GET /a": (100, 0)}
    after = {"GET /a": (110, 10), "GET /b": (5, 4), "GET /c": (500, 0), "PUT /d": (3, 3), "PUT /e": (2, 2)}
    assert (
        failure(before, after)
        == "GET /a: 10 of 10, GET /b: 4 of 5, PUT /d: 3 of 3, and 1 more failed in the last minute"
    )


@given(COUNTS)
def test_nothing_fails_without_new_requests(counts: dict[str, tuple[int, int]]) -> None:
    assert failure(counts, counts) is None


@given(COUNTS)
def test_deployment_whose_requests_are_all_served_does_not_fail(counts: dict[str, tuple[int, int]]) -> None:
    assert failure({}, {name: (ended, 0) for name, (ended, _) in counts.items()}) is None
    always = {name: (ended, ended) for name, (ended, _) in counts.items()}
    assert (failure({}, always) is None) == all(ended < 2 for ended, _ in counts.values())


@given(COUNTS)
def test_one_failed_request_of_a_route_does_not_count(counts: dict[str, tuple[int, int]]) -> None:
    assert failure({}, {name: (ended + 1, 1) for name, (ended, _) in counts.items()}) is None


def test_failures_count_for_a_minute() -> None:
    failing = Failing()
    assert failing.add(0.0, numbers(rank=(7, 7))) == {}, "what happened before is not known to be recent"
    assert failing.add(2.0, numbers(rank=(9, 9))) == {"shop/web": "rank: 2 of 2 failed in the last minute"}
    assert failing.add(2.0 + WINDOW_S - 1, numbers(rank=(9, 9))) != {}
    assert failing.add(2.0 + WINDOW_S, numbers(rank=(9, 9))) == {}
