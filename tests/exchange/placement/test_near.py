"""A request stays in the process that accepted its client."""

from app_toolkit.exchange.preference import NEW_CLIENT, NO_PREFERENCE, Preference, keyed, served_by
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId

NEAR, FAR = ReplicaId("near"), ReplicaId("far")
ROOM = 20


def router(*ids: ReplicaId) -> Router:
    router = Router("shop/web", near=NEAR)
    router.update(Endpoint(id, Address(f"unix:/{id}"), ROOM) for id in ids)
    return router


def place(router: Router, preference: Preference) -> ReplicaId:
    permit = router.try_acquire(preference=preference)
    assert permit is not None
    return permit.endpoint.id


def test_requests_get_the_replica_of_this_process_until_it_is_full() -> None:
    placed = router(NEAR, FAR)
    preferences = [NEW_CLIENT, NO_PREFERENCE, served_by(FAR), served_by(NEAR)]
    assert {place(placed, preferences[number % 4]) for number in range(ROOM)} == {NEAR}
    assert place(placed, NEW_CLIENT) == FAR


def test_a_request_that_has_failed_here_gets_another_replica() -> None:
    permit = router(NEAR, FAR).try_acquire({NEAR})
    assert permit is not None
    assert permit.endpoint.id == FAR


def test_requests_for_another_deployment_get_one_of_its_replicas() -> None:
    assert place(router(FAR), NEW_CLIENT) == FAR


def test_the_key_of_a_request_decides_first() -> None:
    keys = [str(number) for number in range(ROOM)]
    alone = Router("shop/web")
    alone.update(Endpoint(id, Address(f"unix:/{id}"), ROOM) for id in (NEAR, FAR))
    assert [place(router(NEAR, FAR), keyed(key)) for key in keys] == [place(alone, keyed(key)) for key in keys]
