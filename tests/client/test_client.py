"""Waiting for what a command brings."""

from dataclasses import replace

import pytest

from app_toolkit.client.commands import Delete, Rollback
from app_toolkit.core.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus
from app_toolkit.errors import InstanceEnded, PlacementError, StartupError, Superseded, WaitTimeout
from tests.client.scripted import FAILED, PROXY, STARTING, UP, UPDATING, Scripted

NOTHING_YET = InstanceStatus(1, 0, "healthy", (), (), ())


def status(*groups: ReplicaSetStatus, leaving: tuple[ReplicaSetStatus, ...] = ()) -> InstanceStatus:
    shop = ApplicationStatus("shop", "starting", "/shop", groups)
    return InstanceStatus(1, 1, "starting", (shop,), (PROXY,), leaving)


def test_somebody_waits_until_all_is_up_and_nothing_of_before_answers() -> None:
    instance = Scripted(status(STARTING), status(UPDATING), status(UP))
    instance.wait_until_serving({"shop": 1})
    assert list(instance.script) == []


def test_somebody_waits_until_what_was_removed_is_gone() -> None:
    removed = ReplicaSetStatus("shop/chat", "stopping", 0, "", {"draining": 1}, (), 0, None)
    instance = Scripted(status(UP, leaving=(removed,)), status(UP))
    instance.wait_until_serving({"shop": 1})
    assert list(instance.script) == []
    with pytest.raises(WaitTimeout, match="the rollout is not complete after 0 s: shop/chat: stopping"):
        Scripted(status(UP, leaving=(removed,))).wait_until_serving({"shop": 1}, 0)


def test_what_does_not_come_up_is_told_with_the_users_traceback() -> None:
    with pytest.raises(StartupError, match="'app' did not come up: ValueError: no model") as told:
        Scripted(status(UPDATING), status(FAILED)).wait_until_serving({"shop": 1})
    assert told.value.__notes__ == ["Traceback\n  line\nValueError: no model"]


def test_what_was_rolled_back_is_told_though_all_is_well() -> None:
    (shop,) = status(UP).applications
    error = "shop/app: Traceback\n  line\nValueError: no model"
    back = replace(shop, status="rolled_back", last_error=error, revision=3, serving_revision=2)
    said = "revision 3 of 'shop' was rolled back to revision 2: ValueError: no model"
    with pytest.raises(StartupError, match=said) as told:
        Scripted(replace(status(UP), applications=(back,))).wait_until_serving({"shop": 3})
    assert told.value.__notes__ == ["shop/app: Traceback\n  line\nValueError: no model"]


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
    now = () if revision is None else (replace(shop, revision=revision, serving_revision=revision),)
    with pytest.raises(Superseded, match=f"^{said}$"):
        Scripted(replace(status(UP), applications=now)).wait_until_serving({"shop": 2})


def test_a_revision_that_was_rolled_back_and_then_superseded_was_superseded() -> None:
    (shop,) = status(UP).applications
    later = replace(shop, last_error="it died", revision=3, serving_revision=1)
    with pytest.raises(Superseded, match="superseded by revision 3"):
        Scripted(replace(status(UP), applications=(later,))).wait_until_serving({"shop": 2})


def test_a_wait_ends_if_the_instance_is_shut_down() -> None:
    down = replace(status(replace(UP, target=0, counts={})), stopping=True)
    with pytest.raises(InstanceEnded, match="the instance was shut down before revision 1 of 'shop' was up"):
        Scripted(status(STARTING), down).wait_until_serving({"shop": 1})


def test_what_takes_too_long_is_told_with_what_is_missing() -> None:
    with pytest.raises(WaitTimeout, match="the rollout is not complete after 0 s: app: starting, 0 of 1 running"):
        Scripted(status(STARTING)).wait_until_serving({"shop": 1}, 0)


def test_what_is_deleted_is_waited_for_and_no_other() -> None:
    other = ReplicaSetStatus("shopping/app", "stopping", 0, "", {"draining": 1}, (), 0, None)
    instance = Scripted(status(UP, leaving=(STARTING, other)), status(UP, leaving=(other,)))
    instance.wait_until_gone(Delete("shop"))
    assert list(instance.script) == []
    chat = ReplicaSetStatus("shop/chat", "stopping", 0, "", {"draining": 1}, (), 0, None)
    instance = Scripted(status(UP, leaving=(chat, STARTING)), status(UP, leaving=(STARTING,)))
    instance.wait_until_gone(Delete("shop", "chat"))
    assert list(instance.script) == []


def test_an_instance_that_ends_has_nothing_left_of_what_was_deleted() -> None:
    Scripted(status(UP, leaving=(STARTING,)), InstanceEnded("the instance was shut down")).wait_until_gone(
        Delete("shop")
    )


def test_what_can_never_be_placed_is_told_and_what_waits_for_room_is_waited_for() -> None:
    lacking = ReplicaStatus("shop.app-1-1", "starting", 1.0, "r", None, 0, "1 GPU", "0 GPU")
    waits = replace(STARTING, status="waiting_for_resources", replicas=(lacking,))
    never = replace(waits, status="failed", last_error="shop.app-1-1 asks for 1 GPU; the cluster has 0 GPU")
    with pytest.raises(PlacementError, match=r"'app' cannot be placed: shop\.app-1-1 asks for 1 GPU; the cluster has"):
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


def test_a_watch_goes_on_until_it_is_not_wanted() -> None:
    client = Scripted(NOTHING_YET, status(UP), status(UP))
    wanted = iter([True, True, False])
    assert [each.change for each in client.watch(lambda: next(wanted))] == [0, 1]


def test_a_rollback_expects_the_revision_that_it_found() -> None:
    client = Scripted()
    client.rollback("shop")
    assert client.did == [Rollback("shop", 3)]
