"""When a caller tells its loads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.loads import (
    JUMP,
    LEAST_S,
    LONGEST_S,
    NONE,
    SIGNIFICANT_CHANGE,
    LastReport,
    loads_to_report,
    lost_sentence,
)
from app_toolkit.control.autoscale import FORGOTTEN_S
from tests.keys import key

A, B = key("shop/a"), key("shop/b")
LOADS = st.dictionaries(st.sampled_from([A, B]), st.tuples(*[st.integers(0, 30)] * 4))
LOOKS = st.lists(st.tuples(st.floats(0.01, 2), LOADS, st.booleans()), max_size=40)


def sizes(load):
    """Requests, WebSockets and streams."""
    waiting, ongoing, websockets, streams = load
    return waiting + ongoing, websockets, streams


def pairs(before, loads):
    """How many are known of, and how many there are: of requests, of WebSockets, and of streams."""
    for name in (A, B):
        yield from zip(sizes(before.get(name, NONE)), sizes(loads.get(name, NONE)), strict=True)


def jumped(before, loads):
    return any(now > JUMP * max(then, 1) for then, now in pairs(before, loads))


@given(LOOKS)
def test_reported_loads_are_accurate_to_a_half_at_once_and_to_a_tenth_after_a_second(looks):
    last, heard, now = LastReport(), {}, 100.0
    for passed, loads, unserved in looks:
        now += passed
        said = loads_to_report(last, loads, now, unserved=unserved)
        if said:
            unknown = unserved and any(any(load) and not any(heard.get(name, NONE)) for name, load in loads.items())
            assert unknown or jumped(heard, loads) or now - last.at >= LEAST_S
            last = LastReport(said, now)
            heard |= said
        elif now - last.at >= LEAST_S:
            assert all(
                abs(there - then) <= SIGNIFICANT_CHANGE * max(there, then) for then, there in pairs(heard, loads)
            )
            assert not any(map(sum, loads.values())) or now - last.at < LONGEST_S < FORGOTTEN_S
        assert not jumped(heard, loads)


# The loads of the last report, those now and those that are reported, by deployment: waiting, ongoing, WebSockets and
# streams.
IDLE = (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("why", "before", "after_s", "now", "reported"),
    [
        ("a load that is still 0", {A: IDLE}, 99.0, {A: IDLE}, False),
        ("a load that has ended", {A: (0, 3, 0, 0)}, 1.0, {A: IDLE}, True),
        ("it doubles", {A: (0, 40, 0, 0)}, 0.1, {A: (41, 39, 0, 0)}, False),
        ("it more than doubles", {A: (0, 40, 0, 0)}, 0.1, {A: (41, 40, 0, 0)}, True),
        ("the same for less than three seconds", {A: (0, 3, 0, 0)}, 2.9, {A: (0, 3, 0, 0)}, False),
        ("the same for three seconds", {A: (0, 3, 0, 0)}, 3.0, {A: (0, 3, 0, 0)}, True),
        ("two requests after none", {A: IDLE}, 0.1, {A: (0, 2, 0, 0)}, False),
        ("three requests after none", {A: IDLE}, 0.1, {A: (0, 3, 0, 0)}, True),
        ("a tenth more requests", {A: (0, 10, 900, 0)}, 2.0, {A: (0, 11, 901, 0)}, False),
        ("a fifth more requests", {A: (0, 10, 900, 0)}, 2.0, {A: (0, 12, 901, 0)}, True),
        ("twice the requests, with many WebSockets", {A: (0, 10, 900, 0)}, 0.1, {A: (0, 21, 900, 0)}, True),
        ("a ninth more WebSockets", {A: (0, 10, 900, 0)}, 1.0, {A: (0, 10, 1_001, 0)}, True),
        ("twice the WebSockets", {A: (0, 10, 900, 0)}, 0.1, {A: (0, 10, 1_801, 0)}, True),
    ],
)
def test_a_load_is_reported_if_it_has_changed_enough_or_the_last_report_is_old(why, before, after_s, now, reported):
    assert loads_to_report(LastReport(before, 100.0), now, 100.0 + after_s) == (now if reported else {}), why


def test_a_report_has_the_loads_of_all_deployments_but_those_that_stay_idle():
    last = LastReport({A: (0, 3, 0, 0), B: IDLE}, 100.0)
    assert loads_to_report(last, {A: IDLE, B: IDLE}, 101.0) == {A: IDLE}
    assert loads_to_report(last, {A: IDLE, B: (0, 7, 0, 0)}, 101.0) == {A: IDLE, B: (0, 7, 0, 0)}


def test_waiting_requests_without_a_replica_are_reported_at_once():
    last = LastReport({A: IDLE}, 100.0)
    assert loads_to_report(last, {A: IDLE}, 100.0, unserved=True) == {}
    assert loads_to_report(last, {A: (1, 0, 0, 0)}, 100.0, unserved=True) == {A: (1, 0, 0, 0)}
    last = LastReport({A: (1, 0, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (2, 0, 0, 0)}, 100.5, unserved=True) == {}
    assert loads_to_report(last, {A: (2, 0, 0, 0)}, 101.0, unserved=True) == {A: (2, 0, 0, 0)}


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        ({"GET /die": 1}, "1 request ran in it: GET /die"),
        ({"GET /a": 1, "GET /die": 2}, "3 requests ran in it: GET /die (2), GET /a"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 1}, "11 requests ran in it: d (4), c (3), b (2) and 2 others"),
    ],
)
def test_requests_that_were_lost_are_a_sentence_with_the_most_frequent_names(requests, sentence):
    assert lost_sentence(requests) == sentence
