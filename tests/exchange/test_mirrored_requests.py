"""`exchange.mirrored_requests`: which requests are mirrored, what they hold, and what is counted."""

from math import sqrt
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.mirror_counts import MOST_DIFFERENCES, MirrorCounts
from app_toolkit.exchange.attempts import Result
from app_toolkit.exchange.mirrored_requests import (
    LONGEST_S,
    MOST_BODY,
    MOST_RESPONSE,
    MirroredRequest,
    Mirrors,
    Primary,
)
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId

pytestmark = pytest.mark.anyio

MIRROR = "shop@13/web"


def router_of(slots: int, **policy: Any) -> Router:
    router = Router("web")
    router.policy = router.policy.model_copy(update=policy)
    if slots:
        router.update([Endpoint(ReplicaId("a"), Address("unix:/a"), slots)])
    return router


def primary(now: float = 0.0) -> Primary:
    return Primary("it", "GET /", now)


def begin(
    mirrors: Mirrors, router: Router, of: Primary | None = None, *, size: int | None = 0, now: float = 0.0
) -> MirroredRequest[Any] | None:
    return mirrors.begin(MIRROR, of or primary(), size, router, router_of(1), now)


def begun(mirrors: Mirrors, router: Router, of: Primary | None = None, now: float = 0.0) -> MirroredRequest[Any]:
    found = begin(mirrors, router, of, now=now)
    assert found is not None
    return found


def counts(mirrors: Mirrors) -> MirrorCounts:
    return mirrors.counts().get(MIRROR, MirrorCounts())


def test_a_mirror_gets_its_share_of_the_requests() -> None:
    mirrors = Mirrors()
    mirrors.draw = Random(1).random
    sampled = sum(mirrors.is_sampled(0.3) for _ in range(5_000))
    assert abs(sampled - 1_500) < 3 * sqrt(5_000 * 0.3 * 0.7)
    assert not any(mirrors.is_sampled(0.0) for _ in range(100))
    assert all(mirrors.is_sampled(1.0) for _ in range(100))


def test_two_mirrors_are_sampled_independently() -> None:
    mirrors = Mirrors()
    mirrors.draw = Random(1).random
    both = sum(mirrors.is_sampled(0.5) and mirrors.is_sampled(0.5) for _ in range(5_000))
    assert abs(both - 1_250) < 3 * sqrt(5_000 * 0.25 * 0.75)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.none() | st.integers(0, 2 * MOST_BODY)),
        st.tuples(st.sampled_from(["completed", "cut", "busy", "draining", "lost", "late"]), st.integers(0, 10)),
    ),
    max_size=40,
)


@given(steps=STEPS, slots=st.integers(0, 4), most=st.integers(1, 5), most_bytes=st.integers(0, 4 * MOST_BODY))
async def test_bounds_hold_and_each_request_is_counted_once(
    steps: list[tuple[str, Any]], slots: int, most: int, most_bytes: int
) -> None:
    mirrors, router = Mirrors(most_requests=most, most_bytes=most_bytes), router_of(slots)
    live: list[MirroredRequest[Any]] = []
    asked = 0
    for step, value in steps:
        if step == "begin":
            asked += 1
            found = begin(mirrors, router, size=value)
            live += [] if found is None else [found]
        elif live:
            one = live.pop(value % len(live))
            for _ in range(2):  # an event that comes late changes nothing
                end(one, step)
        assert mirrors.live == set(live)
        assert len(live) <= min(most, slots)
        assert sum(each.size for each in live) == mirrors.kept_bytes <= most_bytes
        assert router.ongoing == len(live)
        assert router.waiting == router.positions == 0
        found_counts = counts(mirrors)
        ended = found_counts.completed + found_counts.failed + found_counts.dropped + found_counts.too_large
        assert ended + len(live) == asked
    router.close()


def end(one: MirroredRequest[Any], how: str) -> None:
    match how:
        case "completed" | "cut":
            one.completed("200", 1.0, whole=how == "completed")
        case "busy" | "draining":
            one.refused(how)
        case "lost":
            one.failed(Result.LOST)
        case _:
            one.failed()


@pytest.mark.parametrize("full", ["mirror", "primary"])
async def test_it_is_dropped_while_a_request_of_a_client_waits(full: str) -> None:
    mirrors = Mirrors()
    routers = {"mirror": router_of(1), "primary": router_of(1)}
    held = routers[full].try_acquire()
    assert held is not None
    granted: list[Any] = []
    routers[full].wait(granted.append, 0.0)
    assert mirrors.begin(MIRROR, primary(), 0, routers["mirror"], routers["primary"], 0.0) is None
    assert counts(mirrors) == MirrorCounts(dropped=1)
    routers[full].release(held)
    routers[full].release(granted[0])
    assert mirrors.begin(MIRROR, primary(), 0, routers["mirror"], routers["primary"], 0.0) is not None
    for router in routers.values():
        router.close()


async def test_it_waits_for_no_replica_and_starts_none() -> None:
    asked: list[str] = []
    mirrors, router = Mirrors(), Router("web", unserved=lambda: asked.append("start"))
    assert begin(mirrors, router) is None
    assert (router.waiting, asked, counts(mirrors)) == (0, [], MirrorCounts(dropped=1))


@pytest.mark.parametrize("size", [None, MOST_BODY + 1])
def test_a_larger_body_is_counted_and_not_sent(size: int | None) -> None:
    mirrors, router = Mirrors(), router_of(1)
    assert begin(mirrors, router, size=size) is None
    assert counts(mirrors) == MirrorCounts(too_large=1)
    assert begin(mirrors, router, size=MOST_BODY) is not None


def test_a_body_that_the_mirror_does_not_accept_is_counted_and_not_sent() -> None:
    mirrors, router = Mirrors(), router_of(1, max_body_size=2)
    assert begin(mirrors, router, size=3) is None
    assert counts(mirrors) == MirrorCounts(too_large=1)
    assert begin(mirrors, router, size=2) is not None


@pytest.mark.parametrize(("timeout", "until"), [(None, LONGEST_S), (2.0, 2.0), (3_600.0, LONGEST_S)])
def test_its_deadline_is_bounded(timeout: float | None, until: float) -> None:
    assert begun(Mirrors(), router_of(1, request_timeout_s=timeout), now=5.0).deadline == 5.0 + until


@pytest.mark.parametrize("first", ["primary", "mirror"])
@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        ("200", b"one", {"same": 1}),
        ("200", b"two", {"different_body": 1}),
        ("500", b"one", {"different_status": 1}),
    ],
)
def test_responses_are_compared_whichever_ends_first(
    first: str, status: str, body: bytes, found: dict[str, int]
) -> None:
    mirrors, of = Mirrors(), primary(now=10.0)
    copy = begun(mirrors, router_of(1), of, now=10.5)
    of.received(b"o")
    copy.response.received(body)
    of.received(b"ne")
    if first == "primary":
        of.end("200", 11.0)
    copy.completed(status, 13.0)
    if first == "mirror":
        of.end("200", 11.0)
    seen = counts(mirrors)
    assert seen == MirrorCounts(completed=1, primary_s=1.0, mirror_s=2.5, differences=seen.differences, **found)
    assert len(seen.differences) == seen.different
    for each in seen.differences:
        assert (each.request_id, each.request) == ("it", "GET /")
        assert (each.primary_status, each.mirror_status) == ("200", status)
        assert (each.primary_bytes, each.mirror_bytes) == (3, 3)


def test_a_response_without_an_end_is_not_compared() -> None:
    mirrors = Mirrors()
    left, cut = primary(), primary()
    copies = [begun(mirrors, router_of(1), of) for of in (left, left, cut)]
    copies[0].completed("200", 1.0)
    left.abandon()
    copies[1].completed("200", 1.0)
    copies[2].completed("200", 1.0, whole=False)
    cut.end("200", 1.0)
    assert counts(mirrors) == MirrorCounts(completed=3)


@pytest.mark.parametrize("why", ["framing", "size"])
def test_bodies_are_not_compared_if_they_cannot_be(why: str) -> None:
    mirrors, of = Mirrors(), primary()
    copy = begun(mirrors, router_of(1), of)
    if why == "framing":
        of.response.comparable = False
    of.received(b"x" * (MOST_RESPONSE + (why == "size")))
    copy.response.received(b"y")
    copy.completed("200", 1.0)
    of.end("200", 1.0)
    assert counts(mirrors).same == 1


def test_the_last_differences_are_kept() -> None:
    mirrors, router = Mirrors(), router_of(1)
    for number in range(MOST_DIFFERENCES + 5):
        of = Primary(f"{number}", "GET /", 0.0)
        begun(mirrors, router, of).completed("500", 1.0)
        of.end("200", 1.0)
    kept = counts(mirrors).differences
    assert [each.request_id for each in kept] == [f"{number}" for number in range(5, MOST_DIFFERENCES + 5)]


def test_counts_of_a_mirror_that_is_gone_are_removed() -> None:
    mirrors, router = Mirrors(), router_of(2)
    copy = begun(mirrors, router)
    mirrors.forget(MIRROR)
    copy.completed("200", 1.0)
    assert mirrors.counts() == {}
    assert router.ongoing == 0


def test_counts_of_two_processes_are_added() -> None:
    mirrors, of = Mirrors(), primary()
    begun(mirrors, router_of(1), of).completed("500", 2.0)
    of.end("200", 1.0)
    one = counts(mirrors)
    both = one + MirrorCounts(same=2, dropped=1)
    assert (both.different, both.compared, both.dropped, both.mirror_s) == (1, 3, 1, 2.0)
    assert both.differences == one.differences


async def test_stream_that_is_lost_is_not_counted_as_open_any_more() -> None:
    mirrors, router = Mirrors(), router_of(1)
    one = begun(mirrors, router)
    router.open(one.permit)
    assert (router.ongoing, router.opened) == (0, 1)
    one.failed(Result.LOST)
    assert (router.ongoing, router.opened) == (0, 0)
    router.close()
