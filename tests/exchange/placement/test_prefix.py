"""The prefixes of conversations and texts, and calls that return to the replica that knows theirs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, ToolCall
from app_toolkit.exchange.permits import Load, Permit
from app_toolkit.exchange.placement.hashed import most_preferred
from app_toolkit.exchange.placement.least_loaded import SPARE_REQUESTS, is_clearly_less
from app_toolkit.exchange.placement.prefix import LONGEST_CHAIN, PIECE, Prefixes, keeps_prefix, prefixes
from app_toolkit.exchange.preference import NO_PREFERENCE
from app_toolkit.interfaces import Call, Endpoint
from app_toolkit.types import Address, ReplicaId
from tests.exchange.placement.calls import begin, outcome, router_of, turn

pytestmark = pytest.mark.anyio

IDS = [ReplicaId(name) for name in "abcd"]
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
MESSAGES = st.lists(st.tuples(st.sampled_from([USER, ASSISTANT]), st.text(max_size=4)), max_size=6)
LOAD = st.tuples(st.integers(0, 30), st.integers(0, 30))


def chat(*messages: tuple[str, str]) -> ChatRequest:
    return ChatRequest(tuple(ChatMessage(role, text) for role, text in messages))  # type: ignore[arg-type]


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


@given(home=LOAD, loads=st.lists(LOAD))
def test_a_conversation_moves_only_to_a_replica_with_clearly_less_load(home: Load, loads: list[Load]) -> None:
    less = [load for load in loads if is_clearly_less(load, home, streamed=True)]
    assert keeps_prefix(home, loads) == (not less)


def test_conversations_with_the_same_beginning_spread_over_the_replicas_under_load() -> None:
    known, loads = Prefixes(), dict.fromkeys(IDS, (0, 0))
    for number in range(100):  # all of them at the same time
        digests = prefixes(chat((USER, "Hello!"), (USER, str(number))))
        home = known.longest(digests, IDS) or most_preferred(digests[0].hex(), tuple(IDS))
        if not keeps_prefix(loads[home], loads.values()):
            home = min(IDS, key=lambda id: loads[id])
        known.note(digests, home)
        loads[home] = (loads[home][0] + 1, 0)
    assert max(loads.values())[0] - min(loads.values())[0] < 10


# Calls


def test_each_turn_of_a_conversation_returns_to_its_replica() -> None:
    router = router_of(*"abcd", policy="prefix")
    homes = {name: outcome(router, turn(name)) for name in map(str, range(20))}
    assert {home for home, _ in homes.values()} == set("abcd"), "conversations are spread"
    assert {affinity for _, affinity in homes.values()} == {None}
    for name, (home, _) in homes.items():
        assert outcome(router, turn(name, "more")) == (home, "kept")
        assert outcome(router, turn(name, "more", "and more")) == (home, "kept")
        assert outcome(router, turn(name, "something else")) == (home, "kept"), "it branches"


def test_another_caller_chooses_the_same_replica_for_a_conversation_that_it_does_not_know() -> None:
    one, other = (router_of(*"abcd", policy="prefix") for _ in range(2))
    for name in map(str, range(20)):
        home, _ = outcome(one, turn(name))
        assert outcome(other, turn(name, "more")) == (home, None)


def test_the_first_argument_may_be_a_text_or_a_keyword() -> None:
    router = router_of(*"abcd", policy="prefix")
    home, _ = outcome(router, Call("write", ("x" * 1_000,), {}))
    assert outcome(router, Call("write", (), {"prompt": "x" * 1_500})) == (home, "kept")
    assert router.preference(Call("write", ("short",), {})) is NO_PREFERENCE
    assert router.preference(Call("write", (), {})) is NO_PREFERENCE


def test_a_conversation_moves_if_its_replica_is_full_or_clearly_busier_or_gone() -> None:
    router = router_of("a", "b", room=SPARE_REQUESTS + 1, policy="prefix")
    home, _ = outcome(router, turn("hello"))
    other = "b" if home == "a" else "a"
    busy = [begin(router, turn("hello", str(number))) for number in range(SPARE_REQUESTS + 1)]
    assert {permit.endpoint.id for permit in busy} == {home}
    assert outcome(router, turn("hello", "again")) == (other, "spilled")
    assert outcome(router, turn("hello", "again", "and again")) == (other, "kept"), "it has moved"
    router.update([Endpoint(ReplicaId("c"), Address("unix:/c"), 1)])
    assert outcome(router, turn("hello", "again")) == ("c", None)


def test_a_conversation_does_not_move_because_of_a_replica_that_is_full() -> None:
    router = router_of("a", "b", "c", policy="prefix")
    home, _ = outcome(router, turn("hello"))
    full, busy = (ReplicaId(name) for name in "abc" if name != home)
    room = {home: 100, full: 1, busy: 100}
    router.update(Endpoint(ReplicaId(name), Address(f"unix:/{name}"), most) for name, most in room.items())
    for other, load in ((full, 1), (busy, 8)):
        for _ in range(load):
            assert router.try_acquire({ReplicaId(name) for name in room if name != other}) is not None
    for number in range(8 + SPARE_REQUESTS):
        assert begin(router, turn("hello", str(number))).endpoint.id == home


def test_open_streams_count_as_load_of_a_conversation_s_replica() -> None:
    router = router_of("a", "b", policy="prefix")
    home, _ = outcome(router, turn("hello"))
    for number in range(SPARE_REQUESTS + 1):
        router.open(begin(router, turn("hello", str(number))))
    assert outcome(router, turn("hello", "again")) != (home, "kept")


async def test_a_call_that_waited_prefers_the_replica_that_its_conversation_has_by_then() -> None:
    router = router_of("a", "b", room=1, policy="prefix")
    first = begin(router, turn("hello"))
    second = begin(router, turn("something else"))
    granted: list[Permit] = []
    router.wait(granted.append, 0.0, preference=router.preference(turn("hello", "more")))
    router.wait(granted.append, 1.0, preference=router.preference(turn("hello", "more", "and more")))
    router.release(second)  # the call does not wait for the replica that it prefers
    router.release(granted[0])
    assert [permit.affinity for permit in granted] == ["spilled", "kept"]
    assert {permit.endpoint.id for permit in granted} == {second.endpoint.id} != {first.endpoint.id}


def test_messages_that_cannot_be_read_are_routed_as_without_a_policy(warnings: Callable[[], list[str]]) -> None:
    class Unreadable:
        @property
        def messages(self) -> object:
            raise ValueError("no messages")

    router = router_of("a", policy="prefix")
    assert router.preference(Call("chat", (Unreadable(),), {})) is NO_PREFERENCE
    assert warnings() == [
        "calls of shop/chat are routed as without a policy: "
        "the messages of chat cannot be read: ValueError('no messages')"
    ]
