"""How long a client gives its request."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.deadlines import parse_timeout, shortest
from app_toolkit.errors import BadRequest


@pytest.mark.parametrize(("value", "seconds"), [(b"2", 2.0), (b"0.5", 0.5), (b"999999.999999", 999_999.999999)])
def test_a_number_of_seconds_is_taken(value: bytes, seconds: float) -> None:
    assert parse_timeout(value) == seconds


@pytest.mark.parametrize(
    "value",
    [b"", b"0", b"0.000000", b"-1", b"+1", b"1e3", b"nan", b"inf", b".5", b"1.", b"1234567", b"1 ", b"1_0", b"\xb2"],
)
def test_what_is_no_such_number_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest, match="X-Request-Timeout-Seconds is "):
        parse_timeout(value)


@given(st.binary(max_size=20))
def test_whatever_a_client_sends_is_a_time_above_zero_or_refused(value: bytes) -> None:
    with suppress(BadRequest):
        assert 0 < parse_timeout(value) < 1_000_000


def test_the_shortest_time_counts() -> None:
    assert shortest(None, 3.0, 2.0) == 2.0
    assert shortest(None) is None
