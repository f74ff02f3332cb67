"""When a caller tells its loads."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.autoscale import FORGOTTEN_S
from app_toolkit.core.reports import JUMP, LEAST_S, LONGEST_S, NONE, SIGNIFICANT_CHANGE, LastReport, loads_to_report

A, B = "shop/a", "shop/b"
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


def test_no_load_is_not_reported():
    assert loads_to_report(LastReport(), {A: (0, 0, 0, 0)}, 100.0, unserved=True) == {}
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 1.0), {A: (0, 0, 0, 0)}, 100.0) == {}


def test_end_of_a_load_is_reported_once():
    last = LastReport({A: (0, 3, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 0, 0, 0), B: (0, 0, 0, 0)}, 101.0) == {A: (0, 0, 0, 0)}
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 101.0), {A: (0, 0, 0, 0), B: (0, 0, 0, 0)}, 110.0) == {}


def test_load_is_reported_at_once_if_it_more_than_doubles():
    last = LastReport({A: (0, 1, 0, 0), B: (0, 7, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 2, 0, 0), B: (0, 7, 0, 0)}, 100.1) == {}
    assert loads_to_report(last, {A: (0, 40, 0, 0), B: (0, 7, 0, 0)}, 100.1) == {A: (0, 40, 0, 0), B: (0, 7, 0, 0)}
    last = LastReport({A: (0, 40, 0, 0), B: (0, 7, 0, 0)}, 100.1)
    assert loads_to_report(last, {A: (41, 39, 0, 0), B: (0, 7, 0, 0)}, 100.2) == {}
    assert loads_to_report(last, {A: (41, 40, 0, 0), B: (0, 7, 0, 0)}, 100.2) == {A: (41, 40, 0, 0), B: (0, 7, 0, 0)}


def test_new_load_is_reported_at_once_from_three_requests_on():
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 100.0), {A: (0, 2, 0, 0)}, 100.1) == {}
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 100.0), {A: (0, 3, 0, 0)}, 100.1) == {A: (0, 3, 0, 0)}


def test_changed_requests_are_reported_with_any_number_of_websockets():
    last = LastReport({A: (0, 10, 900, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 11, 901, 0)}, 102.0) == {}
    assert loads_to_report(last, {A: (0, 12, 901, 0)}, 102.0) == {A: (0, 12, 901, 0)}
    assert loads_to_report(last, {A: (0, 21, 900, 0)}, 100.1) == {A: (0, 21, 900, 0)}
    assert loads_to_report(last, {A: (0, 10, 1_001, 0)}, 101.0) == {A: (0, 10, 1_001, 0)}
    assert loads_to_report(last, {A: (0, 10, 1_801, 0)}, 100.1) == {A: (0, 10, 1_801, 0)}


def test_waiting_requests_without_a_replica_are_reported_at_once():
    last = LastReport({B: (0, 7, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (1, 0, 0, 0), B: (0, 7, 0, 0)}, 100.0, unserved=True) == {
        A: (1, 0, 0, 0),
        B: (0, 7, 0, 0),
    }
    last = LastReport({A: (1, 0, 0, 0), B: (0, 7, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (2, 0, 0, 0), B: (0, 7, 0, 0)}, 100.5, unserved=True) == {}
    assert loads_to_report(last, {A: (2, 0, 0, 0), B: (0, 7, 0, 0)}, 101.0, unserved=True) == {
        A: (2, 0, 0, 0),
        B: (0, 7, 0, 0),
    }
