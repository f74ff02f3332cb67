"""The trace of W3C Trace Context, and the part of it that is forwarded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.observability.trace_context import LONGEST_STATE, MOST_MEMBERS, trace_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def read(*parents: str, states: tuple[str, ...] = ()) -> str | None:
    fields = [(b"traceparent", each.encode("latin-1")) for each in parents]
    return trace_of([(b"host", b"here"), *fields, *((b"tracestate", each.encode("latin-1")) for each in states)])


@pytest.mark.parametrize(
    "parent", [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-the.future-brings"]
)
def test_well_formed_traceparent_is_forwarded_unchanged(parent: str) -> None:
    assert read(parent) == parent
    assert read(f" {parent}\t") == parent


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"{PARENT}-more",
        f"{PARENT}, {PARENT}",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 73}",
        f"cc-{TRACE}-{SPAN}-01-a b",
    ],
)
def test_malformed_traceparent_is_ignored_with_its_state(parent: str) -> None:
    assert read(parent, states=("a=1",)) is None


def test_one_that_comes_twice_is_none() -> None:
    assert read(PARENT, PARENT) is None
    assert read() is None


def test_tracestate_is_joined_without_blank_members() -> None:
    assert read(PARENT, states=("a=1 , b@c=x y", "", " d/e*f_-=!~ ,")) == f"{PARENT} a=1,b@c=x y,d/e*f_-=!~"


@pytest.mark.parametrize(
    "state",
    ["a", "=1", "a=", "A=1", "a=1=2", "a=\x7f", "a=\xe4", "a b=1", f"{'a' * 257}=1", f"a={'1' * 257}", "a=1;b=2,c"],
)
def test_a_malformed_state_is_left_out(state: str) -> None:
    assert read(PARENT, states=(state,)) == PARENT


def test_a_state_has_so_many_members_and_characters() -> None:
    many = ",".join(f"k{number}=1" for number in range(MOST_MEMBERS))
    assert read(PARENT, states=(many,)) == f"{PARENT} {many}"
    assert read(PARENT, states=(many, "more=1")) == PARENT
    long = f"a={'1' * 253},b={'1' * (LONGEST_STATE - 258)}"
    assert len(long) == LONGEST_STATE
    assert read(PARENT, states=(long,)) == f"{PARENT} {long}"
    assert read(PARENT, states=(f"{long}1",)) == PARENT


@given(st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate", b"x"]), st.binary(max_size=80))))
def test_forwarded_trace_is_a_bounded_field_value(fields: list[tuple[bytes, bytes]]) -> None:
    found = trace_of([(b"traceparent", PARENT.encode()), *fields])
    if found is not None:
        assert found.isascii()
        assert found.isprintable()
        assert len(found) <= 128 + 1 + LONGEST_STATE
