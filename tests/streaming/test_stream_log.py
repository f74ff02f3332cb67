"""The table of streams, over random histories with a manual time, against a simple model."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app_toolkit.errors import StreamActive, StreamLogFull, StreamUnknown
from app_toolkit.streaming.stream_log import (
    EVENT_BYTES,
    GROUP,
    PAGE_BYTES,
    PAUSE_S,
    SPARE_BYTES,
    STALLED_S,
    Append,
    Outcome,
    Page,
    Renewal,
    StreamLimits,
    StreamTable,
    cost,
)

LIMITS = StreamLimits(
    max_streams=4, max_unread_streams=2, max_bytes=800, max_total_bytes=1_300, keep_s=5.0, lease_s=2.0
)
"""Room for six events of a stream, three of them ahead of its readers, and nine events of all."""
MANY = 20
"""More events of one stream than the state machine appends."""

EVENTS = st.lists(st.binary(max_size=9), max_size=8)
OUTCOMES = st.sampled_from(("finished", "stopped", "failed", "full", "lost"))


def begun(limits: StreamLimits | None = None, *ids: str, key: str | None = None) -> StreamTable:
    table = StreamTable(limits)
    for id in ids or ("s",):
        table.begin(id, "owner", "text/event-stream", key, 0.0)
    return table


def append(table: StreamTable, first: int, events: list[bytes], now: float = 0.0, stream: str = "s") -> Renewal:
    renewal = table.append(Append(stream, "owner", first, tuple(events)), now)
    assert renewal is not None
    return renewal


def sizes(*events: bytes) -> int:
    return sum(map(cost, events))


# The state machine


@dataclass
class ModelStream:
    """What a stream should be, with all events that it has ever had."""

    owner: str
    key: str | None
    renewed_at: float
    unread_since: float
    events: list[bytes] = field(default_factory=list)
    evicted: int = 0
    """How many of the events are no longer kept."""
    readers: int = 0
    left: bool = False
    """Whether it has had readers, and has none."""
    stop: bool = False
    outcome: Outcome | None = None
    ended: tuple[float, int] | None = None
    """The time of the end, and how many streams ended before."""

    @property
    def kept(self) -> list[bytes]:
        return self.events[self.evicted :]

    @property
    def size(self) -> int:
        return sizes(*self.kept)


@dataclass
class ModelReader:
    """One reader, with every page that it got."""

    id: int
    stream: str
    began_after: int
    after: int
    """The last event that it was given."""
    had: int
    """The last event that it has had."""
    had_at: float
    may_miss: bool
    """Whether the log need not keep events for it: it began too late, or it was too slow."""
    pages: list[Page] = field(default_factory=list)


class RandomStreamLog(RuleBasedStateMachine):
    """Owners, readers and a clock do anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = StreamTable(LIMITS)
        self.model: dict[str, ModelStream] = {}
        self.keys: dict[str, str] = {}
        self.readers: list[ModelReader] = []
        self.now = 100.0
        self.begun = self.ended = 0
        self.adopters = 0

    def owner(self, id: str, former: bool) -> str:
        return "a former owner" if former else self.model[id].owner

    def end_model(self, id: str, outcome: Outcome) -> None:
        self.ended += 1
        stream = self.model[id]
        stream.outcome, stream.ended = outcome, (self.now, self.ended)

    def remove_model(self, id: str) -> None:
        assert self.model[id].outcome is not None
        assert not self.model[id].readers
        del self.model[id]
        self.keys = {key: found for key, found in self.keys.items() if found != id}

    def note_slow_readers(self) -> None:
        for reader in self.readers:
            fastest = max(each.had for each in self.readers if each.stream == reader.stream)
            if reader.had != fastest and self.now - reader.had_at > STALLED_S:
                reader.may_miss = True

    def forget_what_the_table_removed(self) -> None:
        """Only streams that have ended and have no readers are removed, those that ended first."""
        removed = [id for id in self.model if id not in self.table]
        kept = [each.ended for id, each in self.model.items() if id not in removed and not each.readers and each.ended]
        for id in removed:
            ended = self.model[id].ended
            assert ended is not None
            assert all(ended < each for each in kept)
            self.remove_model(id)

    def note_evictions(self) -> None:
        for id, stream in self.model.items():
            evicted = self.table.get(id).first - 1
            assert stream.evicted <= evicted <= len(stream.events)
            stream.evicted = evicted

    @rule(seconds=st.sampled_from((0.25, 1.0, LIMITS.lease_s, LIMITS.keep_s)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=st.sampled_from((None, "red", "blue")))
    def begin(self, key: str | None) -> None:
        self.begun += 1
        id = f"s{self.begun}"
        before = self.model.get(self.keys.get(key or "", ""))
        if before is not None and before.outcome is None:
            with pytest.raises(StreamActive):
                self.table.begin(id, "owner", "text/event-stream", key, self.now)
            return
        active = [each for each in self.model.values() if each.outcome is None]
        self.note_slow_readers()
        if sum(each.left for each in active) >= LIMITS.max_unread_streams:
            with pytest.raises(StreamLogFull, match="its max_unread_streams is 2"):
                self.table.begin(id, "owner", "text/event-stream", key, self.now)
            return
        if sum(each.outcome is None or each.readers > 0 for each in self.model.values()) >= LIMITS.max_streams:
            with pytest.raises(StreamLogFull, match="has 4 streams"):
                self.table.begin(id, "owner", "text/event-stream", key, self.now)
            self.forget_what_the_table_removed()
            return
        try:
            self.table.begin(id, "owner", "text/event-stream", key, self.now)
        except StreamLogFull:
            assert sum(each.size for each in self.model.values() if each.readers) > LIMITS.max_total_bytes - EVENT_BYTES
            return
        finally:
            self.forget_what_the_table_removed()
            self.note_evictions()
        self.model[id] = ModelStream("owner", key, self.now, self.now)
        if key is not None:
            self.keys[key] = id

    @precondition(lambda self: self.model)
    @rule(data=st.data(), events=EVENTS, former=st.booleans(), again=st.integers(0, 3))
    def append(self, data: st.DataObject, events: list[bytes], former: bool, again: int) -> None:
        """Append events, of which the first `again` are not new."""
        id = data.draw(st.sampled_from(sorted(self.model)))
        stream = self.model[id]
        again = min(again, len(stream.events))
        sent = [*stream.events[len(stream.events) - again :], *events]
        new = Append(id, self.owner(id, former), len(stream.events) - again + 1, tuple(sent))
        self.note_slow_readers()
        readers = [each for each in self.readers if each.stream == id]
        ahead = sizes(*stream.events[min((each.had for each in readers), default=0) :])
        others = sum(each.size for each in self.model.values() if each.readers and each is not stream)
        renewal = self.table.append(new, self.now)
        if former or stream.outcome is not None:
            assert renewal is None
            return
        assert renewal is not None
        assert (renewal.stop, renewal.unread_s) == (
            stream.stop,
            0.0 if stream.readers else self.now - stream.unread_since,
        )
        accepted = events[: renewal.last - len(stream.events)]
        for reader in readers:
            if accepted and reader.had == len(stream.events):
                reader.had_at = self.now
        self.forget_what_the_table_removed()
        if readers and not ahead and others + stream.size + sizes(*events[:1]) <= LIMITS.max_total_bytes:
            assert accepted or not events, "the readers have had everything, and there is room"
        stream.events += accepted
        stream.renewed_at = self.now
        self.note_evictions()
        assert not renewal.full or len(accepted) < len(events)
        if not readers:
            assert renewal.room == LIMITS.max_bytes - stream.size

    @precondition(lambda self: self.model)
    @rule(data=st.data(), former=st.booleans())
    def renew(self, data: st.DataObject, former: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        stream = self.model[id]
        active = not former and stream.outcome is None
        renewal = self.table.append(Append(id, self.owner(id, former)), self.now)
        assert (renewal is not None) is active
        if renewal is not None:
            assert renewal.stop is stream.stop
            assert (renewal.last, renewal.full) == (len(stream.events), False)
            stream.renewed_at = self.now

    @precondition(lambda self: self.model)
    @rule(data=st.data(), outcome=OUTCOMES, former=st.booleans())
    def end(self, data: st.DataObject, outcome: Outcome, former: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        stream = self.model[id]
        self.table.end(id, self.owner(id, former), outcome, self.now)
        if not former and stream.outcome is None:
            self.end_model(id, "stopped" if stream.stop and outcome != "failed" else outcome)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        active = self.model[id].outcome is None
        assert self.table.stop(id) is active
        self.model[id].stop |= active

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        assert self.table.remove(id)
        assert not self.table.remove(id)
        self.readers = [reader for reader in self.readers if reader.stream != id]
        del self.model[id]
        self.keys = {key: found for key, found in self.keys.items() if found != id}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        stream = self.model[id]
        self.adopters += 1
        owner = f"adopter {self.adopters}"
        lost = stream.outcome == "lost"
        assert self.table.adopt(id, owner, self.table.get(id).last, self.now) is lost
        if lost:
            stream.owner, stream.outcome, stream.ended, stream.renewed_at = owner, None, None, self.now

    @precondition(lambda self: self.model)
    @rule(data=st.data(), after=st.integers(0, MANY))
    def enter(self, data: st.DataObject, after: int) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        stream = self.model[id]
        after = min(after, len(stream.events))
        reader = self.table.enter(id, after, self.now)
        stream.readers += 1
        stream.left = False
        had = max(after, stream.evicted)
        self.readers.append(ModelReader(reader, id, after, after, had, self.now, may_miss=after < stream.evicted))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read one page, as `follow` does. A reader that got the outcome leaves."""
        reader = data.draw(st.sampled_from(self.readers))
        stream = self.model[reader.stream]
        if reader.after > reader.had:
            reader.had, reader.had_at = reader.after, self.now
        page = self.table.read(reader.stream, reader.id, self.now)
        first = max(reader.after, stream.evicted)
        assert page.first == first + 1
        assert page.evicted is (stream.evicted > reader.after)
        assert reader.may_miss or not page.evicted
        assert list(page.events) == stream.events[first:]
        assert page.outcome == stream.outcome
        reader.pages.append(page)
        reader.after = page.first + len(page.events) - 1
        if page.outcome is not None:
            self.leave_as(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.leave_as(data.draw(st.sampled_from(self.readers)))

    def leave_as(self, reader: ModelReader) -> None:
        self.readers.remove(reader)
        self.table.leave(reader.stream, reader.id, self.now)
        self.model[reader.stream].readers -= 1
        self.model[reader.stream].left = not self.model[reader.stream].readers
        self.model[reader.stream].unread_since = self.now
        seen = [(number, event) for page in reader.pages for number, event in enumerate(page.events, page.first)]
        assert all(before < number for (before, _), (number, _) in pairwise([(reader.began_after, b""), *seen]))
        assert all(event == self.model[reader.stream].events[number - 1] for number, event in seen)
        missed = sum(1 for page in reader.pages if page.evicted)
        gaps = sum(
            1 for (before, _), (number, _) in pairwise([(reader.began_after, b""), *seen]) if number > before + 1
        )
        assert gaps <= missed

    @rule()
    def look(self) -> None:
        expected = {
            id
            for id, stream in self.model.items()
            if stream.outcome is None and self.now - stream.renewed_at > LIMITS.lease_s
        }
        lost = self.table.look(self.now)
        assert set(lost) == expected
        for id in lost:
            self.end_model(id, "lost")
        for id, stream in list(self.model.items()):
            if stream.ended is not None and self.now - stream.ended[0] > LIMITS.keep_s and not stream.readers:
                self.remove_model(id)

    @invariant()
    def the_table_is_as_the_model(self) -> None:
        assert len(self.table) == len(self.model)
        for id, stream in self.model.items():
            found = self.table.get(id)
            assert list(found.events) == stream.kept
            assert (found.first, found.last) == (stream.evicted + 1, len(stream.events))
            assert (found.owner, found.outcome, len(found.readers)) == (stream.owner, stream.outcome, stream.readers)
            assert (found.stop, found.renewed_at) == (stream.stop, stream.renewed_at)
        for key in ("red", "blue"):
            assert self.table.find(key) == self.keys.get(key)

    @invariant()
    def the_limits_hold_and_the_size_is_that_of_the_kept_events(self) -> None:
        found = [self.table.get(id) for id in self.model]
        assert all(stream.size == sizes(*stream.events) <= LIMITS.max_bytes for stream in found)
        assert self.table.size == sum(stream.size for stream in found) <= LIMITS.max_total_bytes
        assert len(self.table) <= LIMITS.max_streams

    @invariant()
    def readers_keep_their_streams(self) -> None:
        for reader in self.readers:
            assert reader.id in self.table.get(reader.stream).readers


TestTheStreamLogInARandomHistory = RandomStreamLog.TestCase
TestTheStreamLogInARandomHistory.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


# Readers


def test_reader_ahead_of_the_stream_gets_only_later_events() -> None:
    table = begun()
    append(table, 1, [b"1", b"2"])
    assert table.get("s").page(3) == Page(4, ())
    append(table, 3, [b"3", b"4"])
    assert table.get("s").page(3) == Page(4, (b"4",))


def test_a_page_has_page_bytes_at_most_or_a_single_event() -> None:
    table = begun()
    small, large = b"s" * (PAGE_BYTES // 4), b"l" * (2 * PAGE_BYTES)
    append(table, 1, [*[small] * 5, large, small])
    found = [table.get("s").page(after).events for after in (0, 4, 5, 6)]
    assert found == [(small,) * 4, (small,), (large,), (small,)]


# Backpressure

BIG = b"b" * (100 - EVENT_BYTES % 100)
WINDOW = StreamLimits(max_bytes=8 * cost(BIG))
"""Room for eight events, four of them ahead of the readers."""


def test_a_stream_without_a_reader_keeps_everything_until_its_limit_and_accepts_no_more() -> None:
    table = begun(WINDOW)
    assert append(table, 1, [BIG] * 6).room == 2 * cost(BIG)
    assert append(table, 7, [BIG] * 6) == Renewal(stop=False, unread_s=0.0, last=8, room=0)
    assert append(table, 9, [BIG] * 6).last == 8
    assert not table.get("s").page(0).evicted


def test_a_stream_is_at_most_half_its_limit_ahead_of_its_reader_and_keeps_the_rest_for_one_that_comes_back() -> None:
    table = begun(WINDOW)
    reader = table.enter("s", 0, 0.0)
    assert append(table, 1, [BIG] * 9) == Renewal(stop=False, unread_s=0.0, last=4, room=0)
    table.read("s", reader, 0.0)
    assert append(table, 5, [BIG] * 9).last == 4, "the reader has been given the events, but has not had them"
    table.read("s", reader, 0.0)
    assert append(table, 5, [BIG] * 9).last == 8
    for last in range(8, 40, 4):
        assert not table.read("s", reader, 0.0).evicted
        assert not table.read("s", reader, 0.0).evicted
        assert append(table, last + 1, [BIG] * 9).last == last + 4
        assert len(table.get("s").events) == 8
        assert not table.get("s").page(last - 4).evicted, "it can come back to what it has just had"


def test_the_slowest_reader_is_waited_for_until_it_has_made_no_progress_for_stalled_s() -> None:
    table = begun(WINDOW)
    slow, fast = table.enter("s", 0, 0.0), table.enter("s", 0, 0.0)
    append(table, 1, [BIG] * 4, 0.0)
    table.read("s", slow, 0.0)
    for _ in range(2):
        table.read("s", fast, 0.0)
    assert append(table, 5, [BIG] * 4, STALLED_S).last == 4
    assert append(table, 5, [BIG] * 4, STALLED_S + 1).last == 8
    for _ in range(2):
        table.read("s", fast, STALLED_S + 1)
    assert append(table, 9, [BIG] * 4, STALLED_S + 1).last == 12
    assert not table.read("s", fast, STALLED_S + 1).evicted
    assert table.read("s", slow, STALLED_S + 1).events, "it still gets what is kept"


def test_readers_that_have_waited_for_events_for_long_are_not_stalled() -> None:
    table = begun(WINDOW)
    readers = [table.enter("s", 0, 0.0) for _ in range(2)]
    now = 100 * STALLED_S
    append(table, 1, [BIG] * 4, now)
    for _ in range(2):
        table.read("s", readers[0], now)
    assert append(table, 5, [BIG] * 4, now + 1).last == 4


def test_a_reader_in_the_process_of_the_owner_counts_as_one_until_the_owner_says_that_it_has_left() -> None:
    table = begun(replace(WINDOW, max_unread_streams=1))

    def renewal(first: int, events: int, read: int | None, now: float) -> Renewal:
        renewal = table.append(Append("s", "owner", first, (BIG,) * events, read), now)
        assert renewal is not None
        return renewal

    assert renewal(1, 4, 0, 1.0).unread_s == 0.0
    assert renewal(5, 1, 0, 1.0).last == 4
    assert renewal(5, 0, 4, 1.0).room == WINDOW.max_bytes
    assert renewal(5, 1, 4, 1.0).last == 5
    renewal(6, 0, None, 2.0)
    assert renewal(6, 0, None, 5.0).unread_s == 3.0
    with pytest.raises(StreamLogFull):
        table.begin("t", "owner", "text/event-stream", None, 5.0)
    renewal(6, 0, 5, 5.0)
    table.begin("t", "owner", "text/event-stream", None, 5.0)
    table.end("s", "owner", "finished", 6.0)
    table.look(6.0 + WINDOW.keep_s + 1)
    assert "s" not in table


def test_an_adopted_stream_whose_readers_have_left_is_unread() -> None:
    table = begun(replace(WINDOW, max_unread_streams=1))
    table.leave("s", table.enter("s", 0, 0.0), 0.0)
    assert table.look(WINDOW.lease_s + 1) == ["s"]
    assert table.adopt("s", "adopter", 0, WINDOW.lease_s + 1)
    with pytest.raises(StreamLogFull):
        table.begin("t", "owner", "text/event-stream", None, WINDOW.lease_s + 1)


def test_a_stalled_reader_is_waited_for_if_it_is_the_only_one() -> None:
    table = begun(WINDOW)
    table.enter("s", 0, 0.0)
    append(table, 1, [BIG] * 4, 0.0)
    assert append(table, 5, [BIG], 100 * STALLED_S).last == 4


def test_an_event_larger_than_the_room_is_accepted_when_the_readers_have_had_all_others() -> None:
    table = begun(WINDOW)
    reader = table.enter("s", 0, 0.0)
    large = b"l" * (6 * cost(BIG) - EVENT_BYTES)
    assert append(table, 1, [BIG, large]).last == 1
    for _ in range(2):
        table.read("s", reader, 0.0)
    assert append(table, 2, [large]) == Renewal(stop=False, unread_s=0.0, last=2, room=0)


def test_an_event_larger_than_max_bytes_is_never_accepted_and_the_owner_learns_it() -> None:
    table = begun(WINDOW)
    too_large = b"l" * (8 * cost(BIG) - EVENT_BYTES + 1)
    assert append(table, 1, [too_large]) == Renewal(stop=False, unread_s=0.0, last=0, room=WINDOW.max_bytes, full=True)


# Appends


def test_an_append_that_leaves_out_events_changes_nothing_and_the_owner_learns_it() -> None:
    table = begun()
    append(table, 1, [b"1"])
    assert append(table, 3, [b"3"], 1.0).last == 1
    assert table.get("s").page(0) == Page(1, (b"1",))


@pytest.mark.parametrize("method", ["stop", "adopt", "enter", "read", "get"])
def test_a_stream_that_the_log_does_not_have_is_unknown(method: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {"adopt": ("o", 0, 0.0), "enter": (0, 0.0), "read": (1, 0.0)}
    with pytest.raises(StreamUnknown):
        getattr(StreamTable(), method)("s", *arguments.get(method, ()))


def test_nothing_is_appended_to_a_stream_that_the_log_does_not_have() -> None:
    assert StreamTable().append(Append("s", "owner", 1, (b"1",)), 0.0) is None


def test_a_reader_of_a_removed_stream_does_not_read_another_one_with_its_id() -> None:
    table = begun()
    reader = table.enter("s", 0, 0.0)
    table.remove("s")
    table.begin("s", "owner", "text/event-stream", None, 0.0)
    with pytest.raises(StreamUnknown):
        table.read("s", reader, 0.0)


# Ends


# Limits


def full(max_events: int, *ids: str) -> StreamTable:
    """A table with room for so many big events."""
    return begun(StreamLimits(max_bytes=8 * cost(BIG), max_total_bytes=max_events * cost(BIG)), *ids)


def test_beyond_max_total_bytes_ended_streams_are_removed_and_then_events_evicted_that_readers_have_had() -> None:
    table = full(10, "ended", "read", "s")
    append(table, 1, [BIG] * 4, stream="ended")
    table.end("ended", "owner", "finished", 0.0)
    reader = table.enter("read", 0, 0.0)
    table.enter("s", 0, 0.0)
    append(table, 1, [BIG] * 4, stream="read")
    for _ in range(2):
        table.read("read", reader, 0.0)
    append(table, 5, [BIG] * 2, stream="read")
    assert append(table, 1, [BIG] * 4).last == 4
    assert "ended" not in table
    assert not table.get("read").page(0).evicted
    table.begin("other", "owner", "text/event-stream", None, 0.0)
    assert append(table, 1, [BIG] * 6, stream="other").last == 4, "as many as the reader of the other stream has had"
    assert table.get("read").first == 5
    assert table.size == 10 * cost(BIG)


def test_full_log_of_many_streams_frees_more_than_it_needs_and_seldom_searches_in_vain() -> None:
    ids = [f"s{number}" for number in range(10 * GROUP)]
    table = begun(StreamLimits(max_streams=100, max_total_bytes=10 * len(ids) * cost(BIG)), *ids)
    readers = {id: table.enter(id, 0, 0.0) for id in ids}
    for id in ids:
        append(table, 1, [BIG] * 10, stream=id)
    assert append(table, 11, [BIG], stream="s0").last == 10, "no reader has had an event"
    for id in ids:
        for _ in range(2):
            table.read(id, readers[id], 0.0)
    assert append(table, 11, [BIG], 5 * PAUSE_S, "s0").last == 10
    assert append(table, 11, [BIG], 10 * PAUSE_S, "s0").last == 11
    spare = table.limits.max_total_bytes - table.size
    assert spare >= min(10 * SPARE_BYTES, table.limits.max_total_bytes // 64)


def test_a_stream_with_a_reader_takes_room_from_one_without_and_not_the_other_way_round() -> None:
    table = full(8, "unread", "s")
    append(table, 1, [BIG] * 8, stream="unread")
    refused = append(table, 1, [BIG])
    assert (refused.last, refused.full) == (0, True)
    table.enter("s", 0, 0.0)
    accepted = append(table, 1, [BIG] * 2)
    assert (accepted.last, accepted.full) == (2, False)
    assert table.get("unread").first == 3


def test_full_log_accepts_events_that_have_room_and_says_that_it_is_full() -> None:
    table = full(6, "other", "s")
    table.enter("other", 0, 0.0)
    table.enter("s", 0, 0.0)
    append(table, 1, [BIG] * 4, stream="other")
    renewal = append(table, 1, [BIG] * 3)
    assert (renewal.last, renewal.full) == (2, True)
    with pytest.raises(StreamLogFull, match="the events of active streams fill the stream log: its max_total_bytes is"):
        table.begin("t", "owner", "text/event-stream", None, 0.0)


# Keys


def test_an_id_is_used_once() -> None:
    table = begun()
    append(table, 1, [b"1"])
    with pytest.raises(StreamActive, match="there is a stream 's' already"):
        table.begin("s", "other", "text/event-stream", None, 0.0)
    assert table.size == cost(b"1")


def test_an_heir_that_has_not_seen_all_events_does_not_adopt() -> None:
    table = StreamTable()
    table.begin("s", "owner", "text/event-stream", None, 0.0)
    append(table, 1, [b"a", b"b"])
    table.end("s", "owner", "lost", 0.0)
    assert not table.adopt("s", "heir", 1, 0.0)
    assert table.adopt("s", "heir", 2, 0.0)
