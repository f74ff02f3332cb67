from collections import Counter
from random import Random

from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.router import Router
from app_toolkit.exchange.session_pins import digest
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId


def router_of(*names: str, room: int = 100) -> Router:
    router = Router("shop/chat", rng=Random(1))
    router.update(Endpoint(ReplicaId(name), Address(f"unix:/{name}"), room) for name in names)
    return router


def session_at(replica: str) -> Preference:
    return Preference(session=digest(ReplicaId(replica)), stays=True)


def test_a_request_waits_for_the_replica_of_its_session_even_if_that_has_failed_for_it() -> None:
    router = router_of("a", "b", room=1)
    first = router.try_acquire({ReplicaId("a")}, session_at("a"))
    assert first is not None
    assert (first.endpoint.id, first.holds_key, first.affinity) == ("a", True, "kept")
    assert router.try_acquire(preference=session_at("a")) is None, "b has room"
    granted: list[Permit] = []
    router.wait(granted.append, 0.0, preference=session_at("a"), again=True)
    router.release(first)
    assert [permit.endpoint.id for permit in granted] == ["a"]


def test_the_clients_of_a_replica_that_is_gone_are_divided_evenly() -> None:
    router = router_of("a", "b")
    met = Counter[tuple[str, str | None]]()
    for _ in range(10):
        permit = router.try_acquire(preference=session_at("gone"))
        assert permit is not None
        met[permit.endpoint.id, permit.affinity] += 1
        router.release(permit)
    assert met == {("a", "gone"): 5, ("b", "gone"): 5}
