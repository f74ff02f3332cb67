"""Routing policies: conversations return to their replica, and functions of users are obeyed or ignored."""

import logging
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from app_toolkit import RoutedCall, RoutedReplica
from app_toolkit.chat.protocol import ChatMessage, ChatRequest
from app_toolkit.core.affinity import Outcome
from app_toolkit.core.balance import SPARE_REQUESTS
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Call, Endpoint
from app_toolkit.router.router import Router
from app_toolkit.router.routing import RoutingPolicy, import_policy, routing_policy
from app_toolkit.router.targets import Permit
from app_toolkit.transport import calls
from app_toolkit.transport.calls import EncodedValue
from app_toolkit.types import Address, ReplicaId
from tests.router import policies

pytestmark = pytest.mark.anyio


def router_of(*names: str, room: int = 100) -> Router:
    router = Router("shop/chat", rng=Random(1))
    router.update(Endpoint(ReplicaId(name), Address(f"unix:/{name}"), room) for name in names)
    return router


def policy_of(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> RoutingPolicy:
    monkeypatch.setattr(policies, "chosen", function, raising=False)
    return routing_policy("tests.router.policies:chosen", "shop/chat")


def turn(*texts: str) -> Call:
    return Call("chat", (ChatRequest(tuple(ChatMessage("user", text) for text in texts)),), {})


def begin(router: Router, policy: RoutingPolicy, call: Call) -> Permit:
    permit = router.try_acquire(affinity=policy.routed(call))
    assert permit is not None
    return permit


def outcome(router: Router, policy: RoutingPolicy, call: Call) -> tuple[str, Outcome | None]:
    """Make a call that ends at once."""
    permit = begin(router, policy, call)
    router.release(permit)
    return permit.endpoint.id, permit.affinity


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING, "app_toolkit.router"):
        yield lambda: [record.getMessage() for record in caplog.records]


# Prefixes


def test_each_turn_of_a_conversation_returns_to_its_replica() -> None:
    router, policy = router_of(*"abcd"), routing_policy("prefix", "chat")
    homes = {name: outcome(router, policy, turn(name)) for name in map(str, range(20))}
    assert {home for home, _ in homes.values()} == set("abcd"), "conversations are spread"
    assert {affinity for _, affinity in homes.values()} == {None}
    for name, (home, _) in homes.items():
        assert outcome(router, policy, turn(name, "more")) == (home, "kept")
        assert outcome(router, policy, turn(name, "more", "and more")) == (home, "kept")
        assert outcome(router, policy, turn(name, "something else")) == (home, "kept"), "it branches"


def test_another_caller_chooses_the_same_replica_for_a_conversation_that_it_does_not_know() -> None:
    one, other = ((router_of(*"abcd"), routing_policy("prefix", "chat")) for _ in range(2))
    for name in map(str, range(20)):
        home, _ = outcome(*one, turn(name))
        assert outcome(*other, turn(name, "more")) == (home, None)


def test_the_first_argument_may_be_a_text_or_a_keyword() -> None:
    router, policy = router_of(*"abcd"), routing_policy("prefix", "chat")
    home, _ = outcome(router, policy, Call("write", ("x" * 1_000,), {}))
    assert outcome(router, policy, Call("write", (), {"prompt": "x" * 1_500})) == (home, "kept")
    assert policy.routed(Call("write", ("short",), {})) is None
    assert policy.routed(Call("write", (), {})) is None


def test_a_conversation_moves_if_its_replica_is_full_or_clearly_busier_or_gone() -> None:
    router, policy = router_of("a", "b", room=SPARE_REQUESTS + 1), routing_policy("prefix", "chat")
    home, _ = outcome(router, policy, turn("hello"))
    other = "b" if home == "a" else "a"
    busy = [begin(router, policy, turn("hello", str(number))) for number in range(SPARE_REQUESTS + 1)]
    assert {permit.endpoint.id for permit in busy} == {home}
    assert outcome(router, policy, turn("hello", "again")) == (other, "spilled")
    assert outcome(router, policy, turn("hello", "again", "and again")) == (other, "kept"), "it has moved"
    router.update([Endpoint(ReplicaId("c"), Address("unix:/c"), 1)])
    assert outcome(router, policy, turn("hello", "again")) == ("c", None)


def test_open_streams_count_as_load_of_a_conversation_s_replica() -> None:
    router, policy = router_of("a", "b"), routing_policy("prefix", "chat")
    home, _ = outcome(router, policy, turn("hello"))
    for number in range(SPARE_REQUESTS + 1):
        router.open(begin(router, policy, turn("hello", str(number))))
    assert outcome(router, policy, turn("hello", "again")) != (home, "kept")


async def test_a_call_that_waited_prefers_the_replica_that_its_conversation_has_by_then() -> None:
    router, policy = router_of("a", "b", room=1), routing_policy("prefix", "chat")
    first = begin(router, policy, turn("hello"))
    second = begin(router, policy, turn("something else"))
    granted: list[Permit] = []
    router.wait(granted.append, 0.0, affinity=policy.routed(turn("hello", "more")))
    router.wait(granted.append, 1.0, affinity=policy.routed(turn("hello", "more", "and more")))
    router.release(second)  # the call does not wait for the replica that it prefers
    router.release(granted[0])
    assert [permit.affinity for permit in granted] == ["spilled", "kept"]
    assert {permit.endpoint.id for permit in granted} == {second.endpoint.id} != {first.endpoint.id}


def test_messages_that_cannot_be_read_are_routed_as_without_a_policy(warnings: Callable[[], list[str]]) -> None:
    class Unreadable:
        @property
        def messages(self) -> object:
            raise ValueError("no messages")

    policy = routing_policy("prefix", "chat")
    assert policy.routed(Call("chat", (Unreadable(),), {})) is None
    assert warnings() == [
        "calls of chat are routed as without a policy: the messages of chat cannot be read: ValueError('no messages')"
    ]


# Functions of users


def test_a_call_goes_to_the_first_replica_of_the_policy_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        return ["c", "a"] if call.kwargs["prompt"] == "long" else []

    router, policy = router_of("a", "b", "c", room=1), policy_of(chosen, monkeypatch)
    long = Call("write", (), {"prompt": "long"})
    assert [begin(router, policy, long).endpoint.id for _ in range(3)] == ["c", "a", "b"]
    router = router_of("a", "b", "c")
    found = {outcome(router, policy, Call("write", (), {"prompt": "short"})) for _ in range(64)}
    assert found == {("a", None), ("b", None), ("c", None)}


def test_a_policy_sees_the_call_and_the_state_of_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[RoutedCall, Sequence[RoutedReplica]]] = []

    def chosen(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        seen.append((call, replicas))
        return ["a"]

    router, policy = router_of("a", "b", room=2), policy_of(chosen, monkeypatch)
    router.open(begin(router, policy, turn("1")))
    begin(router, policy, turn("2"))
    begin(router, policy, turn("3"))
    unread = EncodedValue(calls.Frame("value", b"", []))
    begin(router, policy, Call("write", (1, unread), {"text": unread, "size": 2}, passes_on=True))
    call, replicas = seen[-1]
    assert (call.method, call.args, dict(call.kwargs)) == ("write", (1, None), {"text": None, "size": 2})
    assert list(replicas) == [RoutedReplica("a", 2, 1, False), RoutedReplica("b", 0, 0, True)]
    with pytest.raises(TypeError):
        call.kwargs["size"] = 3  # type: ignore[index]


async def test_a_policy_is_asked_again_when_a_call_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    last = ["a"]
    router, policy = router_of("a", "b", room=1), policy_of(lambda call, replicas: last, monkeypatch)
    held = [begin(router, policy, turn(name)) for name in "12"]
    granted: list[Permit] = []
    router.wait(granted.append, 0.0, affinity=policy.routed(turn("3")))
    last = ["b"]
    router.release(held[1])
    assert [(permit.endpoint.id, permit.affinity) for permit in granted] == [("b", "kept")]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (ZeroDivisionError("oh"), "raised ZeroDivisionError('oh')"),
        (["gone"], "returned 'gone', which is not the id of a replica"),
        (["a", 7], "returned 7, which is not the id of a replica"),
        ("a", "returned 'a', not a list of ids of replicas"),
        (None, "returned None, not a list of ids of replicas"),
    ],
)
def test_a_policy_that_fails_is_ignored_with_one_warning(
    result: Any, why: str, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    def chosen(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    router, policy = router_of("a", "b"), policy_of(chosen, monkeypatch)
    found = {outcome(router, policy, turn("hello")) for _ in range(64)}
    assert found == {("a", None), ("b", None)}, "as without a policy"
    assert warnings() == [f"calls of shop/chat are routed as without a policy: tests.router.policies:chosen {why}"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.at_all:choose", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("tests.router.policies:missing", "cannot be imported: AttributeError: module .* has no attribute 'missing'"),
        ("tests.router.policies:NUMBER", "is not a `def` function: 7"),
        ("tests.router.policies:later", "is not a `def` function: <function later"),
    ],
)
def test_a_policy_that_cannot_be_imported_is_reported_once_and_ignored(
    path: str, why: str, warnings: Callable[[], list[str]]
) -> None:
    with pytest.raises(ConfigError, match=f"^the routing policy '{path}' {why}"):
        import_policy(path)
    router, policy = router_of("a"), routing_policy(path, "chat")
    assert [outcome(router, policy, turn("hello")) for _ in range(3)] == [("a", None)] * 3
    assert len(warnings()) == 1
