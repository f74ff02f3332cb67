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
def test_who_listens_knows_each_load_to_its_half_and_after_a_second_to_a_tenth_and_has_news_every_three(looks):
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


def test_without_a_load_nothing_is_told():
    assert loads_to_report(LastReport(), {A: (0, 0, 0, 0)}, 100.0, unserved=True) == {}
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 1.0), {A: (0, 0, 0, 0)}, 100.0) == {}


def test_the_end_of_a_load_is_told_once():
    last = LastReport({A: (0, 3, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 0, 0, 0), B: (0, 0, 0, 0)}, 101.0) == {A: (0, 0, 0, 0)}
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 101.0), {A: (0, 0, 0, 0), B: (0, 0, 0, 0)}, 110.0) == {}


def test_nobody_tells_twice_in_a_second_what_has_not_more_than_doubled():
    last = LastReport({A: (0, 3, 0, 0)}, 100.0)
    for load in (0, 4, 6):
        assert loads_to_report(last, {A: (0, load, 0, 0)}, 100.9) == {}
        assert loads_to_report(last, {A: (0, load, 0, 0)}, 101.0) == {A: (0, load, 0, 0)}


def test_a_load_that_has_more_than_doubled_is_told_at_once():
    last = LastReport({A: (0, 1, 0, 0), B: (0, 7, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 2, 0, 0), B: (0, 7, 0, 0)}, 100.1) == {}
    assert loads_to_report(last, {A: (0, 40, 0, 0), B: (0, 7, 0, 0)}, 100.1) == {A: (0, 40, 0, 0), B: (0, 7, 0, 0)}
    last = LastReport({A: (0, 40, 0, 0), B: (0, 7, 0, 0)}, 100.1)
    assert loads_to_report(last, {A: (41, 39, 0, 0), B: (0, 7, 0, 0)}, 100.2) == {}
    assert loads_to_report(last, {A: (41, 40, 0, 0), B: (0, 7, 0, 0)}, 100.2) == {A: (41, 40, 0, 0), B: (0, 7, 0, 0)}


def test_what_comes_where_nothing_was_is_told_at_once_from_three_requests_on():
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 100.0), {A: (0, 2, 0, 0)}, 100.1) == {}
    assert loads_to_report(LastReport({A: (0, 0, 0, 0)}, 100.0), {A: (0, 3, 0, 0)}, 100.1) == {A: (0, 3, 0, 0)}


def test_a_load_that_comes_and_goes_is_told_at_most_twice_in_a_second():
    last, times = LastReport(), []
    for look in range(400):
        loads = {A: (0, 30 * (look // 2 % 2), 0, 0)}
        if said := loads_to_report(last, loads, look / 4):
            last = LastReport(said, look / 4)
            times.append(look / 4)
    assert all(second - first >= LEAST_S for first, second in zip(times, times[2:], strict=False))


def test_a_load_that_rests_is_told_every_three_seconds():
    last = LastReport({A: (0, 3, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 3, 0, 0)}, 102.9) == {}
    assert loads_to_report(last, {A: (0, 3, 0, 0)}, 103.0) == {A: (0, 3, 0, 0)}


def test_one_more_among_many_has_time():
    last = LastReport({A: (0, 30, 0, 0)}, 100.0)
    assert loads_to_report(last, {A: (1, 31, 0, 0)}, 102.0) == {}
    assert loads_to_report(last, {A: (3, 31, 0, 0)}, 102.0) == {A: (3, 31, 0, 0)}


def test_requests_are_told_as_they_change_however_many_websockets_are_open():
    last = LastReport({A: (0, 10, 900, 0)}, 100.0)
    assert loads_to_report(last, {A: (0, 11, 901, 0)}, 102.0) == {}
    assert loads_to_report(last, {A: (0, 12, 901, 0)}, 102.0) == {A: (0, 12, 901, 0)}
    assert loads_to_report(last, {A: (0, 21, 900, 0)}, 100.1) == {A: (0, 21, 900, 0)}
    assert loads_to_report(last, {A: (0, 10, 1_001, 0)}, 101.0) == {A: (0, 10, 1_001, 0)}
    assert loads_to_report(last, {A: (0, 10, 1_801, 0)}, 100.1) == {A: (0, 10, 1_801, 0)}


def test_streams_are_told_as_they_change_however_many_requests_and_websockets_there_are():
    last = LastReport({A: (0, 500, 900, 10)}, 100.0)
    assert loads_to_report(last, {A: (0, 500, 900, 11)}, 102.0) == {}
    assert loads_to_report(last, {A: (0, 500, 900, 12)}, 102.0) == {A: (0, 500, 900, 12)}
    assert loads_to_report(last, {A: (0, 500, 900, 21)}, 100.1) == {A: (0, 500, 900, 21)}
    assert loads_to_report(last, {A: (0, 500, 900, 0)}, 102.0) == {A: (0, 500, 900, 0)}


def test_what_waits_and_no_replica_is_there_for_is_told_at_once_and_then_as_all_else():
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
