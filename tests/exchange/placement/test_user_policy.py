"""Functions of users that rank the replicas are obeyed or ignored."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app_toolkit import RoutedCall, RoutedReplica
from app_toolkit.errors import ConfigError
from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.placement.user_policy import import_policy
from app_toolkit.interfaces import Call
from app_toolkit.wire import calls
from app_toolkit.wire.calls import EncodedValue
from tests.exchange import policies
from tests.exchange.placement.calls import begin, outcome, router_of, turn

pytestmark = pytest.mark.anyio

CHOSEN = "tests.exchange.policies:chosen"


def test_a_call_goes_to_the_first_replica_of_the_policy_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        return ["c", "a"] if call.kwargs["prompt"] == "long" else []

    monkeypatch.setattr(policies, "chosen", chosen, raising=False)
    router = router_of("a", "b", "c", room=1, policy=CHOSEN)
    long = Call("write", (), {"prompt": "long"})
    assert [begin(router, long).endpoint.id for _ in range(3)] == ["c", "a", "b"]
    router = router_of("a", "b", "c", policy=CHOSEN)
    found = {outcome(router, Call("write", (), {"prompt": "short"})) for _ in range(64)}
    assert found == {("a", None), ("b", None), ("c", None)}


def test_a_policy_sees_the_call_and_the_state_of_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[RoutedCall, Sequence[RoutedReplica]]] = []

    def chosen(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        seen.append((call, replicas))
        return ["a"]

    monkeypatch.setattr(policies, "chosen", chosen, raising=False)
    router = router_of("a", "b", room=2, policy=CHOSEN)
    router.open(begin(router, turn("1")))
    begin(router, turn("2"))
    begin(router, turn("3"))
    unread = EncodedValue(calls.Frame("value", b"", []))
    begin(router, Call("write", (1, unread), {"text": unread, "size": 2}, passes_on=True))
    call, replicas = seen[-1]
    assert (call.method, call.args, dict(call.kwargs)) == ("write", (1, None), {"text": None, "size": 2})
    assert list(replicas) == [RoutedReplica("a", 2, 1, False), RoutedReplica("b", 0, 0, True)]
    with pytest.raises(TypeError):
        call.kwargs["size"] = 3  # type: ignore[index]


async def test_a_policy_is_asked_again_when_a_call_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    last = ["a"]
    monkeypatch.setattr(policies, "chosen", lambda call, replicas: last, raising=False)
    router = router_of("a", "b", room=1, policy=CHOSEN)
    held = [begin(router, turn(name)) for name in "12"]
    granted: list[Permit] = []
    router.wait(granted.append, 0.0, preference=router.preference(turn("3")))
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

    monkeypatch.setattr(policies, "chosen", chosen, raising=False)
    router = router_of("a", "b", policy=CHOSEN)
    found = {outcome(router, turn("hello")) for _ in range(64)}
    assert found == {("a", None), ("b", None)}, "as without a policy"
    assert warnings() == [f"calls of shop/chat are routed as without a policy: tests.exchange.policies:chosen {why}"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.at_all:choose", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("tests.exchange.policies:missing", "cannot be imported: AttributeError: module .* has no attribute 'missing'"),
        ("tests.exchange.policies:NUMBER", "is not a `def` function: 7"),
        ("tests.exchange.policies:later", "is not a `def` function: <function later"),
    ],
)
def test_a_policy_that_cannot_be_imported_is_reported_once_and_ignored(
    path: str, why: str, warnings: Callable[[], list[str]]
) -> None:
    with pytest.raises(ConfigError, match=f"^the routing policy '{path}' {why}"):
        import_policy(path)
    router = router_of("a", policy=path)
    assert [outcome(router, turn("hello")) for _ in range(3)] == [("a", None)] * 3
    assert len(warnings()) == 1
