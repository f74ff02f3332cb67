"""The internal fields of the hop whose values come from users."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.holdings import MOST_KEYS, Holdings
from app_toolkit.wire.hop import LONGEST_HOLDINGS, decode_holdings, decode_key, encode_holdings, encode_key

KEYS = st.text(st.characters(), min_size=1, max_size=512)


@given(KEYS)
def test_a_key_of_any_characters_is_a_field_value_and_arrives_as_it_was(key: str) -> None:
    value = encode_key(key)
    assert value.isascii()
    assert not set(value) & set(b" \r\n\0")
    assert decode_key(value) == key


@given(st.integers(0, 1 << 40), st.integers(0, 1_000), st.lists(KEYS, max_size=2 * MOST_KEYS, unique=True))
def test_a_report_has_the_first_keys_as_many_as_fit(version: int, free: int, keys: list[str]) -> None:
    value = encode_holdings(version, free, keys)
    assert len(value) <= LONGEST_HOLDINGS
    report = decode_holdings(value)
    assert report == Holdings(version, tuple(keys[: len(report.keys)]), free)
    if sum(len(encode_key(key)) + 1 for key in keys) < LONGEST_HOLDINGS - 40:
        assert len(report.keys) == min(len(keys), MOST_KEYS)
