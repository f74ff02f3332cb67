"""The table of streams, over random histories with a manual time, against a simple model."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app_toolkit.core.stream_log import PAGE, Outcome, Page, Renewal, StreamLimits, StreamTable
from app_toolkit.errors import StreamActive, StreamLogFull, StreamUnknown

LIMITS = StreamLimits(max_streams=4, max_events=6, max_bytes=24, max_total_bytes=40, keep_s=5.0, lease_s=2.0)
MANY = 20
"""More events of one stream than the state machine appends."""

EVENTS = st.lists(st.binary(max_size=9), max_size=8)
OUTCOMES = st.sampled_from(("finished", "stopped", "failed", "lost"))


def begun(limits: StreamLimits | None = None, *ids: str, key: str | None = None) -> StreamTable:
    table = StreamTable(limits)
    for id in ids or ("s",):
        table.begin(id, "owner", "text/event-stream", key, 0.0)
    return table


# The state machine


@dataclass
class ModelStream:
    """What a stream should be: all events that it has ever had, and how many of them were evicted."""

    owner: str
    key: str | None
    renewed_at: float
    unread_since: float
    events: list[bytes] = field(default_factory=list)
    evicted: int = 0
    readers: int = 0
    stop: bool = False
    outcome: Outcome | None = None
    ended: tuple[float, int] | None = None
    """The time of the end, and how many streams ended before."""

    @property
    def kept(self) -> list[bytes]:
        return self.events[self.evicted :]

    @property
    def size(self) -> int:
        return sum(map(len, self.kept))


@dataclass
class ModelReader:
    """One reader, with every page that it got."""

    stream: str
    began_after: int
    after: int
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

    def make_room_in_model(self, streams: int) -> None:
        for id in sorted(self.model, key=lambda id: self.model[id].ended or (0.0, 0)):
            if len(self.model) <= streams and sum(each.size for each in self.model.values()) <= LIMITS.max_total_bytes:
                return
            if self.model[id].outcome is not None and not self.model[id].readers:
                self.remove_model(id)
        while sum(each.size for each in self.model.values()) > LIMITS.max_total_bytes:
            largest = max(self.model.values(), key=lambda stream: stream.size)
            over = sum(each.size for each in self.model.values()) - LIMITS.max_total_bytes
            while over > 0 and largest.kept:
                over -= len(largest.kept[0])
                largest.evicted += 1

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
        self.make_room_in_model(LIMITS.max_streams - 1)
        if len(self.model) >= LIMITS.max_streams:
            with pytest.raises(StreamLogFull):
                self.table.begin(id, "owner", "text/event-stream", key, self.now)
            return
        self.table.begin(id, "owner", "text/event-stream", key, self.now)
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
        renewal = self.table.append(id, self.owner(id, former), len(stream.events) - again + 1, sent, self.now)
        if former or stream.outcome is not None:
            assert renewal == Renewal(stop=True, unread_s=0.0)
            return
        unread_s = 0.0 if stream.readers else self.now - stream.unread_since
        assert renewal == Renewal(stream.stop, unread_s)
        stream.events += events
        stream.renewed_at = self.now
        while len(stream.kept) > LIMITS.max_events or stream.size > LIMITS.max_bytes:
            stream.evicted += 1
        self.make_room_in_model(LIMITS.max_streams)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), former=st.booleans())
    def renew(self, data: st.DataObject, former: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.model)))
        stream = self.model[id]
        active = not former and stream.outcome is None
        assert self.table.renew(id, self.owner(id, former), self.now).stop is (stream.stop or not active)
        if active:
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
        after = min(after, len(self.model[id].events))
        self.table.enter(id)
        self.model[id].readers += 1
        self.readers.append(ModelReader(id, after, after))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read one page, as `follow` does. A reader that got the outcome leaves."""
        reader = data.draw(st.sampled_from(self.readers))
        stream = self.model[reader.stream]
        page = self.table.get(reader.stream).page(reader.after)
        first = max(reader.after, stream.evicted)
        assert page.first == first + 1
        assert page.evicted is (stream.evicted > reader.after)
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
        self.table.leave(reader.stream, self.now)
        self.model[reader.stream].readers -= 1
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
            assert (found.owner, found.outcome, found.readers) == (stream.owner, stream.outcome, stream.readers)
            assert (found.stop, found.renewed_at) == (stream.stop, stream.renewed_at)
        for key in ("red", "blue"):
            assert self.table.find(key) == self.keys.get(key)

    @invariant()
    def the_limits_hold_and_the_size_is_that_of_the_kept_events(self) -> None:
        found = [self.table.get(id) for id in self.model]
        assert all(len(stream.events) <= LIMITS.max_events for stream in found)
        assert all(stream.size == sum(map(len, stream.events)) <= LIMITS.max_bytes for stream in found)
        assert self.table.size == sum(stream.size for stream in found) <= LIMITS.max_total_bytes
        assert len(self.table) <= LIMITS.max_streams

    @invariant()
    def readers_keep_their_streams(self) -> None:
        for reader in self.readers:
            assert self.table.get(reader.stream).readers >= 1


TestTheStreamLogInARandomHistory = RandomStreamLog.TestCase
TestTheStreamLogInARandomHistory.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


# Readers


@given(
    appends=st.lists(st.lists(st.binary(max_size=2), max_size=2 * PAGE + 3), max_size=4),
    after=st.integers(0, 3 * PAGE),
    outcome=OUTCOMES,
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_a_reader_gets_each_event_once_and_in_order_and_the_outcome_last(
    appends: list[list[bytes]], after: int, outcome: Outcome, data: st.DataObject
) -> None:
    table, all_events, seen, begin = begun(), [], [], after
    for events in appends:
        table.append("s", "owner", len(all_events) + 1, events, 0.0)
        all_events += events
        for _ in range(data.draw(st.integers(0, 3))):
            page = table.get("s").page(after)
            assert page.outcome is None
            assert len(page.events) <= PAGE
            seen += page.events
            after = page.first + len(page.events) - 1
    table.end("s", "owner", outcome, 0.0)
    while (page := table.get("s").page(after)).outcome is None:
        assert page.events
        seen += page.events
        after = page.first + len(page.events) - 1
    assert [*seen, *page.events] == all_events[begin:]
    assert page.outcome == outcome


def test_a_reader_ahead_of_the_stream_gets_only_what_follows_its_number() -> None:
    table = begun()
    table.append("s", "owner", 1, [b"1", b"2"], 0.0)
    assert table.get("s").page(3) == Page(4, ())
    table.append("s", "owner", 3, [b"3", b"4"], 0.0)
    assert table.get("s").page(3) == Page(4, (b"4",))


def test_a_page_tells_a_late_reader_that_events_are_evicted() -> None:
    table = begun(replace(LIMITS, max_events=2))
    table.append("s", "owner", 1, [b"1", b"2", b"3"], 0.0)
    assert table.get("s").page(0) == Page(2, (b"2", b"3"), evicted=True)
    assert table.get("s").page(1) == Page(2, (b"2", b"3"))


def test_an_event_larger_than_max_bytes_is_evicted_and_counted() -> None:
    table = begun(replace(LIMITS, max_bytes=2))
    table.append("s", "owner", 1, [b"123"], 0.0)
    assert table.get("s").page(0) == Page(2, (), evicted=True)
    table.append("s", "owner", 2, [b"4"], 0.0)
    assert table.get("s").page(1) == Page(2, (b"4",))
    assert table.size == 1


def test_readers_keep_an_ended_stream_until_the_last_one_leaves() -> None:
    table = begun()
    table.enter("s")
    table.enter("s")
    table.end("s", "owner", "finished", 0.0)
    table.look(10_000.0)
    table.leave("s", 10_000.0)
    table.look(10_000.0)
    assert table.get("s").readers == 1
    table.leave("s", 10_000.0)
    table.look(10_000.0)
    with pytest.raises(StreamUnknown, match="there is no stream 's'"):
        table.get("s")
    table.leave("s", 10_000.0)


def test_the_owner_learns_for_how_long_its_stream_has_had_no_reader() -> None:
    table = begun()
    assert table.renew("s", "owner", 3.0).unread_s == 3.0
    table.enter("s")
    assert table.renew("s", "owner", 5.0).unread_s == 0.0
    table.leave("s", 7.0)
    assert table.renew("s", "owner", 8.0).unread_s == 1.0


# Appends


@given(events=EVENTS.filter(bool), first=st.integers(1, 8), data=st.data())
def test_a_repeated_append_changes_nothing(events: list[bytes], first: int, data: st.DataObject) -> None:
    table = begun(LIMITS)
    table.append("s", "owner", 1, events, 0.0)
    before = replace(table.get("s"), events=table.get("s").events.copy())
    first = min(first, len(events))
    last = data.draw(st.integers(first, len(events)))
    assert not table.append("s", "owner", first, events[first - 1 : last], 0.0).stop
    assert table.get("s") == before
    assert table.size == before.size


def test_an_append_that_leaves_out_events_is_an_error_and_changes_nothing() -> None:
    table = begun()
    table.append("s", "owner", 1, [b"1"], 0.0)
    with pytest.raises(ValueError, match="event 3 of stream 's' cannot follow event 1"):
        table.append("s", "owner", 3, [b"3"], 1.0)
    assert table.get("s").page(0) == Page(1, (b"1",))
    assert table.get("s").renewed_at == 0.0


def test_a_former_owner_changes_nothing_after_adopt() -> None:
    table = begun()
    table.append("s", "owner", 1, [b"1"], 0.0)
    assert table.look(11.0) == ["s"]
    assert table.adopt("s", "heir", table.get("s").last, 12.0)
    before = replace(table.get("s"), events=table.get("s").events.copy())
    stop = Renewal(stop=True, unread_s=0.0)
    assert table.append("s", "owner", 2, [b"2"], 13.0) == stop
    assert table.renew("s", "owner", 13.0) == stop
    table.end("s", "owner", "finished", 13.0)
    assert table.get("s") == before
    assert not table.adopt("s", "owner", table.get("s").last, 13.0)
    assert not table.append("s", "heir", 2, [b"2"], 13.0).stop


@pytest.mark.parametrize("method", ["append", "renew", "stop", "adopt", "enter", "get"])
def test_a_stream_that_the_log_does_not_have_is_unknown(method: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {
        "append": ("o", 1, [b"1"], 0.0),
        "renew": ("o", 0.0),
        "adopt": ("o", 0, 0.0),
    }
    with pytest.raises(StreamUnknown):
        getattr(StreamTable(), method)("s", *arguments.get(method, ()))


# Ends


@pytest.mark.parametrize(
    ("stopped", "outcome", "found"),
    [
        (False, "finished", "finished"),
        (False, "lost", "lost"),
        (True, "finished", "stopped"),
        (True, "lost", "stopped"),
        (True, "failed", "failed"),
    ],
)
def test_a_stream_that_was_stopped_ends_as_stopped_unless_it_failed(
    stopped: bool, outcome: Outcome, found: Outcome
) -> None:
    table = begun()
    if stopped:
        assert table.stop("s")
        assert table.renew("s", "owner", 0.0).stop
    table.end("s", "owner", outcome, 1.0)
    table.end("s", "owner", "failed", 2.0)
    assert table.get("s").outcome == found
    assert not table.stop("s")


def test_a_lease_expires_after_lease_s_and_not_before() -> None:
    table = begun(LIMITS)
    assert table.look(LIMITS.lease_s) == []
    table.renew("s", "owner", 1.0)
    assert table.look(1.0 + LIMITS.lease_s) == []
    assert table.look(1.25 + LIMITS.lease_s) == ["s"]
    assert table.look(1.25 + LIMITS.lease_s) == []
    assert table.get("s").outcome == "lost"


def test_an_ended_stream_is_kept_for_keep_s_and_no_longer() -> None:
    table = begun(LIMITS)
    table.end("s", "owner", "finished", 1.0)
    table.look(1.0 + LIMITS.keep_s)
    assert len(table) == 1
    table.look(1.25 + LIMITS.keep_s)
    assert len(table) == 0
    table.end("s", "owner", "finished", 9.0)


def test_an_adopted_stream_is_kept_as_an_active_one() -> None:
    table = begun(replace(LIMITS, max_streams=1))
    assert table.look(3.0) == ["s"]
    assert table.adopt("s", "heir", table.get("s").last, 4.0)
    table.look(6.0)
    with pytest.raises(StreamLogFull):
        table.begin("t", "owner", "text/event-stream", None, 6.0)
    assert table.get("s").outcome is None


# Limits


def test_the_streams_that_ended_first_make_room_for_a_new_one() -> None:
    table = begun(LIMITS, "a", "b", "c", "d")
    for number, id in enumerate("cad"):
        table.end(id, "owner", "finished", float(number))
    table.enter("c")
    table.begin("e", "owner", "text/event-stream", None, 3.0)
    with pytest.raises(StreamUnknown):
        table.get("a")
    table.begin("f", "owner", "text/event-stream", None, 3.0)
    with pytest.raises(StreamUnknown):
        table.get("d")
    with pytest.raises(StreamLogFull, match="has 4 streams that are active or have readers"):
        table.begin("g", "owner", "text/event-stream", None, 3.0)


def test_active_streams_lose_the_oldest_events_of_the_largest_one_beyond_max_total_bytes() -> None:
    table = begun(replace(LIMITS, max_total_bytes=10), "large", "small")
    table.append("large", "owner", 1, [b"12", b"34", b"56", b"78"], 0.0)
    table.append("small", "owner", 1, [b"abc"], 0.0)
    assert table.get("large").page(0) == Page(2, (b"34", b"56", b"78"), evicted=True)
    assert table.get("small").page(0) == Page(1, (b"abc",))
    assert table.size == 9


# Keys


def test_one_stream_with_a_key_is_active_at_a_time() -> None:
    table = begun(key="k")
    with pytest.raises(StreamActive, match="the stream of 'k' has not ended"):
        table.begin("t", "owner", "text/event-stream", "k", 0.0)
    table.end("s", "owner", "finished", 0.0)
    table.begin("t", "owner", "text/event-stream", "k", 0.0)
    assert table.find("k") == "t"
    table.look(10_000.0)
    assert table.find("k") == "t"


def test_a_key_is_free_when_its_stream_is_removed() -> None:
    table = begun(LIMITS, key="k")
    table.end("s", "owner", "finished", 0.0)
    table.look(LIMITS.keep_s + 1)
    assert table.find("k") is None


def test_a_key_stays_with_the_newest_stream_when_an_older_one_is_adopted() -> None:
    table = begun(key="k")
    table.end("s", "owner", "lost", 0.0)
    table.begin("t", "owner", "text/event-stream", "k", 0.0)
    assert table.adopt("s", "heir", table.get("s").last, 0.0)
    assert table.find("k") == "t"


def test_an_id_is_used_once() -> None:
    table = begun()
    table.append("s", "owner", 1, [b"1"], 0.0)
    with pytest.raises(StreamActive, match="there is a stream 's' already"):
        table.begin("s", "other", "text/event-stream", None, 0.0)
    assert table.size == 1


def test_an_heir_that_has_not_seen_all_events_does_not_adopt() -> None:
    table = StreamTable()
    table.begin("s", "owner", "text/event-stream", None, 0.0)
    table.append("s", "owner", 1, [b"a", b"b"], 0.0)
    table.end("s", "owner", "lost", 0.0)
    assert not table.adopt("s", "heir", 1, 0.0)
    assert table.adopt("s", "heir", 2, 0.0)
