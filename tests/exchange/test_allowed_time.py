"""How long a request may take, by its own word and by its deployment's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.errors import BadRequest
from app_toolkit.exchange.allowed_time import timeout_s

LIMITS = st.none() | st.floats(0.001, 86_400)


@pytest.mark.parametrize(("asked", "limit", "given"), [(None, None, None), (None, 3.0, 3.0), (b"2.5", None, 2.5)])
def test_only_given_timeout_is_used(asked, limit, given):
    assert timeout_s(asked, limit) == given


@given(st.integers(1, 999_999_999_999), LIMITS)
def test_a_request_can_only_ask_for_less(millionths, limit):
    asked = f"{millionths // 1_000_000}.{millionths % 1_000_000:06}".encode()
    got = timeout_s(asked, limit)
    assert got is not None
    assert 0 < got <= millionths / 1e6 or math.isclose(got, millionths / 1e6)
    assert limit is None or got <= limit


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"0",
        b"0.0",
        b"-1",
        b"+1",
        b"nan",
        b"inf",
        b"1e3",
        b"1.",
        b".5",
        b"1,5",
        b" ",
        b"1 2",
        b"1\n",
        b"1_0",
        b"0x1",
        b"1234567",
        b"1.1234567",
        b"1, 2",
        b"\xb2",
        b"1\x00",
        "١".encode(),
    ],
)
def test_anything_but_a_plain_number_above_0_is_refused_with_a_sentence(asked):
    with pytest.raises(BadRequest, match=r"X-Request-Timeout-Seconds is .*, it must be a decimal number above 0"):
        timeout_s(asked, 5.0)


def test_whitespace_around_the_value_is_no_part_of_it():
    assert timeout_s(b" \t1.5 \t", 5.0) == 1.5


@given(st.binary(max_size=80), LIMITS)
def test_no_bytes_lengthen_a_deadline_or_break_anything(asked, limit):
    try:
        got = timeout_s(asked, limit)
    except BadRequest as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert got is not None
        assert 0 < got <= (limit or 1e6)
