"""`core.affinity`: the replicas that a key prefers."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, ToolCall
from app_toolkit.core.affinity import (
    DISPLACEMENT_S,
    HOLDER_WAIT_S,
    LONGEST_CHAIN,
    PIECE,
    PREFERENCE_S,
    Holdings,
    Prefixes,
    RoutedReplica,
    keeps_prefix,
    most_preferred,
    place,
    preferred,
    prefixes,
)
from app_toolkit.core.balance import is_clearly_less
from app_toolkit.types import ReplicaId

KEYS = st.text(min_size=1, max_size=20)
REPLICAS = st.sets(st.text("ab1-", min_size=1, max_size=12).map(ReplicaId), max_size=8)


@given(key=KEYS, replicas=REPLICAS, count=st.integers(1, 3))
def test_the_preferred_replicas_are_different_and_do_not_depend_on_the_order(
    key: str, replicas: set[ReplicaId], count: int
) -> None:
    found = preferred(key, sorted(replicas), count)
    assert len(found) == len(set(found)) == min(count, len(replicas))
    assert set(found) <= replicas
    assert found == preferred(key, sorted(replicas, reverse=True), count)


@given(key=KEYS, replicas=REPLICAS, data=st.data())
def test_the_loss_of_a_replica_moves_only_the_keys_that_preferred_it(
    key: str, replicas: set[ReplicaId], data: st.DataObject
) -> None:
    every = preferred(key, replicas, len(replicas))
    if every:
        lost = data.draw(st.sampled_from(every))
        assert preferred(key, replicas - {lost}, len(replicas)) == [each for each in every if each != lost]


def test_keys_are_spread_over_all_replicas() -> None:
    replicas = [ReplicaId(f"model-{number}") for number in range(4)]
    counts = Counter(preferred(f"key-{number}", replicas, 1)[0] for number in range(4_000))
    assert counts.keys() == set(replicas)
    assert all(850 < count < 1_150 for count in counts.values())


# Replicas that report which keys they hold

IDS = [ReplicaId(name) for name in "abcd"]
HOLDINGS = st.builds(
    Holdings,
    st.just(1),
    st.lists(st.sampled_from(["k", "l", "m"]), max_size=3, unique=True).map(tuple),
    st.integers(0, 2),
)
REPORTS = st.dictionaries(st.sampled_from(IDS), st.none() | HOLDINGS)
WAITED = st.sampled_from([0.0, PREFERENCE_S / 2, PREFERENCE_S, HOLDER_WAIT_S])


Situation = tuple[dict[ReplicaId, Holdings | None], list[ReplicaId]]
"""The reports of the replicas, and those that have room."""


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    reports = draw(REPORTS)
    return reports, draw(st.lists(st.sampled_from(sorted(reports)), unique=True)) if reports else []


def holders(reports: dict[ReplicaId, Holdings | None]) -> set[ReplicaId]:
    return {id for id, report in reports.items() if report is not None and "k" in report.held}


AGO = st.dictionaries(st.sampled_from(IDS), st.sampled_from([0.0, DISPLACEMENT_S / 2, DISPLACEMENT_S]))


@given(situations(), AGO, WAITED)
def test_a_request_waits_only_for_a_holder_of_its_key_or_after_a_displacement_and_for_a_bounded_time(
    situation: Situation, displaced_s: dict[ReplicaId, float], waited_s: float
) -> None:
    reports, with_room = situation
    placement = place("k", reports, with_room, displaced_s=displaced_s, waited_s=waited_s)
    if placement is None:
        recently = all(displaced_s.get(id, DISPLACEMENT_S) < DISPLACEMENT_S for id in with_room)
        assert not with_room or (waited_s < PREFERENCE_S and (holders(reports) or recently))
    else:
        assert placement.replicas
        assert set(placement.replicas) <= set(with_room)
        assert placement.replicas == preferred("k", placement.replicas, len(placement.replicas))


@given(situations(), AGO, WAITED)
def test_a_request_goes_to_a_holder_with_room_and_displaces_nothing_if_there_is_another_way(
    situation: Situation, displaced_s: dict[ReplicaId, float], waited_s: float
) -> None:
    reports, with_room = situation
    placement = place("k", reports, with_room, displaced_s=displaced_s, waited_s=waited_s)
    if placement is None:
        return
    at_home = holders(reports) & set(with_room)
    assert placement.held == bool(at_home)
    if at_home:
        assert set(placement.replicas) == at_home
    full = {id for id in with_room if (report := reports[id]) is not None and not report.free}
    assert placement.displaces == (not at_home and full == set(with_room))
    if not placement.displaces:
        assert at_home or not full & set(placement.replicas)


@given(situations(), AGO, WAITED)
def test_request_gives_way_if_the_replica_displaced_a_key_recently_or_others_hold_the_key(
    situation: Situation, displaced_s: dict[ReplicaId, float], waited_s: float
) -> None:
    reports, with_room = situation
    placement = place("k", reports, with_room, displaced_s=displaced_s, waited_s=waited_s)
    if placement is not None and placement.displaces:
        recently = [id for id in placement.replicas if displaced_s.get(id, DISPLACEMENT_S) < DISPLACEMENT_S]
        held_elsewhere = bool(holders(reports)) and waited_s < HOLDER_WAIT_S
        assert placement.gives_way == (bool(recently) or held_elsewhere)
        assert not recently or waited_s >= PREFERENCE_S


@given(situations())
def test_without_reports_every_replica_with_room_is_in_the_order_of_the_hash(situation: Situation) -> None:
    reports, with_room = situation
    placement = place("k", dict.fromkeys(reports), with_room, displaced_s={}, waited_s=0.0)
    if with_room:
        assert placement is not None
        assert placement.replicas == preferred("k", with_room, len(with_room))
        assert (placement.held, placement.displaces, placement.gives_way) == (False, False, False)
    else:
        assert placement is None


@given(HOLDINGS, st.sampled_from(["k", "l"]))
def test_a_key_that_arrives_takes_a_free_place_or_that_of_the_key_that_was_not_used_for_longest(
    report: Holdings, key: str
) -> None:
    after = report.with_key(key)
    assert after.held[0] == key
    if key in report.held or report.free:
        assert set(after.held) == {key, *report.held}
        assert after.free == report.free - (key not in report.held)
    else:
        assert after.held[1:] == report.held[:-1]
        assert after.free == (0 if report.held else -1)


# The replicas that know a conversation

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
MESSAGES = st.lists(st.tuples(st.sampled_from([USER, ASSISTANT]), st.text(max_size=4)), max_size=6)
LOADS = st.dictionaries(st.sampled_from(IDS), st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1)


def chat(*messages: tuple[str, str]) -> ChatRequest:
    return ChatRequest(tuple(ChatMessage(role, text) for role, text in messages))  # type: ignore[arg-type]


def replicas_with(loads: Mapping[ReplicaId, tuple[int, int]], full: Collection[ReplicaId] = ()) -> list[RoutedReplica]:
    return [RoutedReplica(id, *load, id not in full) for id, load in loads.items()]


@given(messages=MESSAGES, following=MESSAGES)
def test_a_later_turn_extends_the_prefixes_of_a_conversation(
    messages: list[tuple[str, str]], following: list[tuple[str, str]]
) -> None:
    before, after = prefixes(chat(*messages)), prefixes(chat(*messages, *following))
    assert after[: len(before)] == before
    assert len(set(after)) == len(after) == len(messages) + len(following)


@given(one=MESSAGES, other=MESSAGES)
def test_two_conversations_have_the_prefixes_in_common_that_they_begin_with(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    assert len(set(prefixes(chat(*one))) & set(prefixes(chat(*other)))) == len(same)


@given(messages=MESSAGES)
def test_a_conversation_is_the_same_in_a_request_a_dict_and_a_list(messages: list[tuple[str, str]]) -> None:
    as_list = [{"role": role, "content": text} for role, text in messages]
    assert prefixes(chat(*messages)) == prefixes(as_list) == prefixes({"model": "small", "messages": as_list})


def test_what_a_tool_or_an_attachment_says_is_a_part_of_the_conversation_and_reasoning_is_not() -> None:
    def of(message: ChatMessage) -> tuple[bytes, ...]:
        return prefixes(ChatRequest((message,)))

    plain = ChatMessage("assistant", "yes")
    assert of(replace(plain, reasoning="because")) == of(plain)
    assert of(replace(plain, tool_calls=(ToolCall("1", "add", "{}"),))) != of(plain)
    assert of(replace(plain, attachments=(Attachment("image/png", "https://shop/1.png"),))) != of(plain)


def test_system_messages_alone_are_no_conversation() -> None:
    assert prefixes(chat((SYSTEM, "Be brief."))) == ()
    one, other = prefixes(chat((SYSTEM, "Be brief."), (USER, "a"))), prefixes(chat((SYSTEM, "Be brief."), (USER, "b")))
    assert len(one) == len(other) == 1
    assert one != other
    assert one != prefixes(chat((SYSTEM, "Be rude."), (USER, "a"))), "the system message is a part of the prefix"


@given(text=st.text("ab", max_size=3 * PIECE), more=st.text("ab", max_size=2 * PIECE))
def test_a_text_has_a_prefix_for_each_complete_piece(text: str, more: str) -> None:
    before, after = prefixes(text), prefixes(text + more)
    assert after[: len(before)] == before
    assert len(before) == len(text) // PIECE
    assert len(after) == len(text + more) // PIECE


@pytest.mark.parametrize("value", [None, 7, "short", b"bytes", [], [1, 2], {"messages": "none"}, [{"text": "a"}]])
def test_other_values_have_no_prefixes(value: object) -> None:
    assert prefixes(value) == ()


def test_a_long_conversation_is_known_by_its_beginning() -> None:
    messages = [(USER, str(number)) for number in range(2 * LONGEST_CHAIN)]
    assert prefixes(chat(*messages)) == prefixes(chat(*messages[:LONGEST_CHAIN]))


@given(
    noted=st.lists(st.tuples(st.lists(st.binary(min_size=1, max_size=1), max_size=6), st.sampled_from(IDS))),
    asked=st.lists(st.binary(min_size=1, max_size=1), max_size=6),
    there=st.sets(st.sampled_from(IDS)),
    most=st.integers(1, 8),
)
def test_the_longest_known_prefix_of_a_present_replica_wins_and_the_table_is_bounded(
    noted: list[tuple[list[bytes], ReplicaId]], asked: list[bytes], there: set[ReplicaId], most: int
) -> None:
    bounded, unbounded = Prefixes(most), Prefixes(1_000)
    last: dict[bytes, ReplicaId] = {}
    for digests, replica in noted:
        bounded.note(digests, replica)
        unbounded.note(digests, replica)
        last.update(dict.fromkeys(digests, replica))
        assert len(bounded) <= most
        assert not digests or bounded.longest(digests, IDS) is not None, "what was noted last is never forgotten"
    known = [last[digest] for digest in asked if last.get(digest) in there]
    assert unbounded.longest(asked, there) == (known[-1] if known else None)


def test_a_conversation_that_goes_on_is_remembered_longer_than_those_that_do_not() -> None:
    known = Prefixes(20)
    kept = [b"kept"]
    for number in range(100):
        assert number == 0 or known.longest(kept, "a") == "a"
        known.note(kept, ReplicaId("a"))
        kept.append(b"kept %d" % number)
        known.note([b"other %d" % number], ReplicaId("b"))


@given(loads=LOADS, data=st.data())
def test_a_conversation_moves_only_to_a_replica_with_room_and_clearly_less_load(
    loads: dict[ReplicaId, tuple[int, int]], data: st.DataObject
) -> None:
    home = data.draw(st.sampled_from(sorted(loads)))
    full = data.draw(st.sets(st.sampled_from(sorted(loads))))
    less = [id for id, load in loads.items() if is_clearly_less(load, loads[home], streamed=True) and id not in full]
    assert keeps_prefix(home, replicas_with(loads, full)) == (not less)


def test_conversations_with_the_same_beginning_spread_over_the_replicas_under_load() -> None:
    known, loads = Prefixes(), dict.fromkeys(IDS, (0, 0))
    for number in range(100):  # all of them at the same time
        digests = prefixes(chat((USER, "Hello!"), (USER, str(number))))
        home = known.longest(digests, IDS) or most_preferred(digests[0].hex(), tuple(IDS))
        if not keeps_prefix(home, replicas_with(loads)):
            home = min(IDS, key=lambda id: loads[id])
        known.note(digests, home)
        loads[home] = (loads[home][0] + 1, 0)
    assert max(loads.values())[0] - min(loads.values())[0] < 10
