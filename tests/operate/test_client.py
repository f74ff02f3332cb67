"""Waiting for the effect of a command."""

from dataclasses import replace

import pytest

from app_toolkit.control.canary import BeginRelease
from app_toolkit.control.operations import Delete
from app_toolkit.control.promotion import Promote
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus, TrafficStatus
from app_toolkit.errors import InstanceEnded, PlacementError, StartupError, Superseded, WaitTimeout
from tests.operate.scripted import FAILED, PROXY, STARTING, UP, UPDATING, Scripted

NOTHING_YET = InstanceStatus(1, 0, "healthy", (), (), ())


def status(*groups: ReplicaSetStatus, leaving: tuple[ReplicaSetStatus, ...] = ()) -> InstanceStatus:
    shop = ApplicationStatus("shop", "starting", "/shop", groups)
    return InstanceStatus(1, 1, "starting", (shop,), (PROXY,), leaving)


def test_client_waits_until_the_new_revision_is_up_and_the_old_one_is_gone() -> None:
    instance = Scripted(status(STARTING), status(UPDATING), status(UP))
    instance.wait_until_serving({"shop": 1})
    assert list(instance.script) == []


def test_client_waits_until_removed_deployments_are_gone() -> None:
    removed = ReplicaSetStatus("shop/chat", "stopping", 0, "", {"draining": 1}, (), 0, None)
    instance = Scripted(status(UP, leaving=(removed,)), status(UP))
    instance.wait_until_serving({"shop": 1})
    assert list(instance.script) == []
    with pytest.raises(WaitTimeout, match="the rollout is not complete after 0 s: shop/chat: stopping"):
        Scripted(status(UP, leaving=(removed,))).wait_until_serving({"shop": 1}, 0)


def test_error_of_a_failed_deploy_has_the_users_traceback() -> None:
    with pytest.raises(StartupError, match="'app' did not come up: ValueError: no model") as caught:
        Scripted(status(UPDATING), status(FAILED)).wait_until_serving({"shop": 1})
    assert caught.value.__notes__ == ["Traceback\n  line\nValueError: no model"]


def test_rolled_back_revision_is_an_error_of_the_wait() -> None:
    (shop,) = status(UP).applications
    error = "shop/app: Traceback\n  line\nValueError: no model"
    back = replace(shop, status="rolled_back", last_error=error, revision=3, serving_revision=2, next_revision=4)
    said = "revision 3 of 'shop' was rolled back to revision 2: ValueError: no model"
    with pytest.raises(StartupError, match=said) as caught:
        Scripted(replace(status(UP), applications=(back,))).wait_until_serving({"shop": 3})
    assert caught.value.__notes__ == ["shop/app: Traceback\n  line\nValueError: no model"]


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        (3, "revision 2 of 'shop' was superseded by revision 3 before it was up"),
        (1, "'shop' was deleted before its revision 2 was up, and deployed again"),
        (None, "'shop' was deleted before its revision 2 was up"),
    ],
)
def test_a_wait_ends_if_another_client_replaces_or_deletes_the_revision(revision: int | None, said: str) -> None:
    (shop,) = status(UP).applications
    now = (
        ()
        if revision is None
        else (replace(shop, revision=revision, serving_revision=revision, next_revision=revision + 1),)
    )
    with pytest.raises(Superseded, match=f"^{said}$"):
        Scripted(replace(status(UP), applications=now)).wait_until_serving({"shop": 2})


def test_a_wait_for_a_live_revision_ends_when_it_gets_requests() -> None:
    (shop,) = status(UP).applications

    def live(is_ready: bool) -> InstanceStatus:
        other = TrafficStatus(2, 0.1, 0.1, is_ready=is_ready, deployments=(replace(UP, created=2),), created=2)
        found = replace(shop, traffic=(TrafficStatus(1, 0.9, 0.9), other), next_revision=3)
        return replace(status(UP), applications=(found,))

    assert Scripted(live(False), live(True)).wait_until_serving({"shop": 2}).change == 1
    with pytest.raises(WaitTimeout, match="shop: revision 2 gets no requests yet"):
        Scripted(live(False)).wait_until_serving({"shop": 2}, timeout_s=0)


def test_a_revision_that_was_rolled_back_and_then_superseded_was_superseded() -> None:
    (shop,) = status(UP).applications
    later = replace(shop, last_error="it died", revision=3, serving_revision=1, next_revision=4)
    with pytest.raises(Superseded, match="superseded by revision 3"):
        Scripted(replace(status(UP), applications=(later,))).wait_until_serving({"shop": 2})


def test_a_wait_ends_if_the_instance_is_shut_down() -> None:
    down = replace(status(replace(UP, target=0, counts={})), stopping=True)
    with pytest.raises(InstanceEnded, match="the instance was shut down before revision 1 of 'shop' was up"):
        Scripted(status(STARTING), down).wait_until_serving({"shop": 1})


def test_timeout_names_the_missing_replicas() -> None:
    with pytest.raises(WaitTimeout, match="the rollout is not complete after 0 s: app: starting, 0 of 1 running"):
        Scripted(status(STARTING)).wait_until_serving({"shop": 1}, 0)


def test_client_waits_only_for_the_deleted_application() -> None:
    other = ReplicaSetStatus("shopping/app", "stopping", 0, "", {"draining": 1}, (), 0, None)
    instance = Scripted(status(UP, leaving=(STARTING, other)), status(UP, leaving=(other,)))
    instance.wait_until_gone(Delete("shop").removes)
    assert list(instance.script) == []
    chat = ReplicaSetStatus("shop/chat", "stopping", 0, "", {"draining": 1}, (), 0, None)
    instance = Scripted(status(UP, leaving=(chat, STARTING)), status(UP, leaving=(STARTING,)))
    instance.wait_until_gone(Delete("shop/chat").removes)
    assert list(instance.script) == []


def test_wait_for_a_delete_ends_if_the_instance_ends() -> None:
    Scripted(status(UP, leaving=(STARTING,)), InstanceEnded("the instance was shut down")).wait_until_gone(
        Delete("shop").removes
    )


def test_wait_ends_if_a_replica_can_never_be_placed() -> None:
    lacking = ReplicaStatus("shop.app-1-1", "starting", 1.0, "r", None, 0, "1 GPU", "0 GPU")
    waits = replace(STARTING, status="waiting_for_resources", replicas=(lacking,))
    never = replace(waits, status="failed", last_error="shop.app-1-1 asks for 1 GPU; the instance has 0 GPU")
    with pytest.raises(PlacementError, match=r"'app' cannot be placed: shop\.app-1-1 asks for 1 GPU; the instance has"):
        Scripted(status(waits), status(never)).wait_until_serving({"shop": 1})


def test_each_state_on_the_way_is_shown_and_the_last_one_is_given_back() -> None:
    shown: list[list[str]] = []
    client = Scripted(status(STARTING), status(UP))
    serving = client.wait_until_serving({"shop": 1}, show=lambda rows: shown.append([str(row) for row in rows]))
    proxy = "proxy: healthy, 1 of 1 running"
    assert shown == [
        [proxy, "app: starting, 0 of 1 running"],
        [proxy, "app: healthy, 1 of 1 running"],
    ]
    assert (serving.change, serving.url) == (1, "http://127.0.0.1:8000")


def test_a_watch_ends_when_its_condition_is_false() -> None:
    client = Scripted(NOTHING_YET, status(UP), status(UP))
    answers = iter([True, True, False])
    assert [each.change for each in client.watch(lambda: next(answers))] == [0, 1]


def test_a_rollback_expects_the_revision_that_it_found() -> None:
    client = Scripted()
    client.change(Rollback("shop"))
    assert client.did == [Rollback("shop", 3)]


@pytest.mark.parametrize("operation", [Promote, BeginRelease])
@pytest.mark.parametrize(("live", "revision"), [((), None), ((2,), 2), ((2, 3), None)])
def test_an_operation_names_the_only_revision_beside_the_main_one(
    operation: type[Promote] | type[BeginRelease], live: tuple[int, ...], revision: int | None
) -> None:
    removed = TrafficStatus(7, 0.0, 0.0, is_removed=True)
    traffic = (TrafficStatus(1, 1.0, 1.0), *(TrafficStatus(number, 0.0, 0.0) for number in live), removed)
    found = replace(status(UP).applications[0], traffic=traffic)
    instance = Scripted(replace(status(UP), applications=(found,)))
    assert operation("shop").expecting(instance) == operation("shop", revision)
    assert operation("shop", 7).expecting(instance) == operation("shop", 7)
