"""The events that an owner appends, and the times at which it asks the log again."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.streaming.outbox import FIRST_RETRY_S, FULL_S, LAST_RETRY_S, Outbox
from app_toolkit.streaming.stream_log import Append, Renewal, StreamLimits, StreamTable, cost

EVENT = b"e" * 72
SIZE = cost(EVENT)

LIMITS = StreamLimits(max_bytes=2_000, max_total_bytes=3_000)


def filled(events: int) -> Outbox:
    outbox = Outbox()
    for _ in range(events):
        outbox.put(EVENT)
    return outbox


def renewal(last: int, room: int, *, full: bool = False) -> Renewal:
    return Renewal(stop=False, unread_s=0.0, last=last, room=room, full=full)


@given(
    events=st.lists(st.binary(max_size=1_000), max_size=60),
    most=st.integers(1, 3_000),
    steps=st.lists(st.sampled_from(("put", "append", "lose the reply", "read")), max_size=60),
)
def test_every_event_arrives_once_and_in_order(events: list[bytes], most: int, steps: list[str]) -> None:
    table, outbox, now = StreamTable(LIMITS), Outbox(), 0.0
    table.begin("s", "owner", "text/event-stream", None, now)
    reader = table.enter("s", 0, now)
    left, seen = iter(events), []

    def do(step: str) -> None:
        if step == "put":
            if (event := next(left, None)) is not None:
                outbox.put(event)
        elif step == "read":
            page = table.read("s", reader, now)
            assert not page.evicted
            seen.extend(page.events)
        else:
            batch = outbox.next(most)
            assert len(batch) <= 1 or sum(map(cost, batch)) <= most
            found = table.append(Append("s", "owner", outbox.last + 1, batch), now)
            assert found is not None
            if step == "append":
                assert outbox.renewed(found, now) is not None
        assert outbox.size == sum(map(cost, outbox.events))

    for step in steps:
        do(step)
    for _ in range(4 * len(events) + 1):
        for step in ("put", "append", "read"):
            do(step)
    assert seen == events
    assert not outbox


def test_nothing_is_appended_that_has_no_room() -> None:
    outbox = filled(4)
    assert outbox.renewed(renewal(1, 2 * SIZE), 0.0) == [EVENT]
    assert outbox.next(10 * SIZE) == (EVENT, EVENT)
    outbox.renewed(renewal(3, SIZE - 1), 0.0)
    assert outbox.next(10 * SIZE) == ()


def test_the_owner_asks_again_in_growing_intervals_until_there_is_room() -> None:
    outbox = filled(2)
    outbox.renewed(renewal(1, 0), 0.0)
    waits = []
    for _ in range(9):
        waits.append(outbox.retry_s)
        outbox.renewed(renewal(1, 0), 0.0)
    assert waits == [min(FIRST_RETRY_S * 2**number, LAST_RETRY_S) for number in range(9)]
    outbox.renewed(renewal(1, SIZE), 0.0)
    assert outbox.retry_s == 0.0


def test_a_log_that_has_lost_events_is_noticed() -> None:
    outbox = filled(2)
    outbox.renewed(renewal(2, SIZE), 0.0)
    assert outbox.renewed(renewal(1, SIZE), 0.0) is None


def test_an_owner_is_refused_when_a_full_log_has_accepted_nothing_for_full_s() -> None:
    outbox = filled(3)
    outbox.renewed(renewal(0, SIZE, full=True), 1.0)
    assert outbox.retry_s > 0
    assert outbox.next(SIZE), "the log is asked again"
    outbox.renewed(renewal(0, SIZE), FULL_S)
    assert not outbox.is_refused(FULL_S)
    assert outbox.is_refused(1.0 + FULL_S)
    outbox.renewed(renewal(1, SIZE, full=True), 1.0 + FULL_S)
    assert not outbox.is_refused(1.0 + FULL_S), "it has accepted one"
    outbox.renewed(renewal(3, SIZE), 2.0 + FULL_S)
    assert not outbox.is_refused(1_000.0), "nothing waits"


def test_an_event_that_is_larger_than_all_room_so_far_is_offered_so_that_the_log_refuses_it() -> None:
    table, outbox = StreamTable(LIMITS), filled(1)
    table.begin("s", "owner", "text/event-stream", None, 0.0)
    for _ in range(3):
        found = table.append(Append("s", "owner", outbox.last + 1, outbox.next(10_000)), 0.0)
        assert found is not None
        outbox.renewed(found, 0.0)
        if outbox.last and not outbox:
            outbox.put(b"x" * LIMITS.max_bytes)
    assert outbox.is_refused(FULL_S)
