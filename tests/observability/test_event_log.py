from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.clock import ManualClock
from app_toolkit.observability.event_log import LONGEST_CAUSE, EventLog
from app_toolkit.observability.records import ControllerRecord


def test_a_story_can_be_asked_by_group_application_and_replica():
    clock = ManualClock(5.0)
    event_log = EventLog(clock.now)
    event_log.append("shop/chat", "Start", replica="a", cause="revision v1")
    event_log.append("shop/shop", "Start", replica="b")
    event_log.append("shopping/chat", "Start", replica="c")
    assert [entry.replica for entry in event_log.entries(subject="shop")] == ["a", "b"]
    assert [entry.replica for entry in event_log.entries(subject="shop/chat")] == ["a"]
    assert [entry.subject for entry in event_log.entries(replica="c")] == ["shopping/chat"]
    assert [entry.replica for entry in event_log.entries(last=2)] == ["b", "c"]
    assert event_log.entries(last=0) == []
    [entry] = event_log.entries(replica="a")
    assert (entry.at, entry.name, entry.cause) == (5.0, "Start", "revision v1")


def test_another_subscriber_receives_each_record_of_the_controller():
    event_log, received = EventLog(lambda: 5.0), []
    event_log.records.subscribe(received.append)
    event_log.append("shop", "Applied", cause="revision 3")
    assert received == [ControllerRecord(5.0, "shop", "Applied", None, "revision 3")] == event_log.entries()


def test_the_oldest_entries_give_way():
    event_log = EventLog(lambda: 0.0, size=3)
    for number in range(5):
        event_log.append("g", str(number))
    assert [entry.name for entry in event_log.entries()] == ["2", "3", "4"]
    assert len(event_log) == 3


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5))
def test_the_entries_after_those_that_a_client_has_seen_are_the_new_ones_that_are_kept(seen, new, size):
    event_log = EventLog(lambda: 0.0, size=size)
    for number in range(seen + new):
        event_log.append("g", str(number))
    kept = range(max(seen, seen + new - size), seen + new)
    assert [entry.name for entry in event_log.entries(after=seen)] == [str(number) for number in kept]


def test_of_a_long_cause_the_end_is_kept():
    event_log = EventLog(lambda: 0.0)
    event_log.append("g", "Exited", cause="x" * 10_000 + "ImportError")
    [entry] = event_log.entries()
    assert entry.cause.endswith("ImportError")
    assert len(entry.cause) <= LONGEST_CAUSE + 2
