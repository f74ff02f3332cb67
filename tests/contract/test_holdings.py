from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.holdings import Holdings

HOLDINGS = st.builds(
    Holdings,
    st.just(1),
    st.lists(st.sampled_from(["k", "l", "m"]), max_size=3, unique=True).map(tuple),
    st.integers(0, 2),
)


@given(HOLDINGS, st.sampled_from(["k", "l"]))
def test_a_key_that_arrives_takes_a_free_place_or_that_of_the_key_that_was_not_used_for_longest(
    report: Holdings, key: str
) -> None:
    after = report.with_key(key)
    assert after.keys[0] == key
    if key in report.keys or report.free:
        assert set(after.keys) == {key, *report.keys}
        assert after.free == report.free - (key not in report.keys)
    else:
        assert after.keys[1:] == report.keys[:-1]
        assert after.free == (0 if report.keys else -1)
