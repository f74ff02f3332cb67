"""Published endpoints, recovering replica sets, and released replicas."""

import asyncio
from dataclasses import replace

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.control.endpoints import EndpointPublisher
from app_toolkit.control.publisher import Publisher
from app_toolkit.control.replica_state import Phase
from tests.control.specs import HOME, application, replica_set
from tests.keys import key, proxies_of, sets_of

pytestmark = pytest.mark.anyio

WEB, KEY = key("shop/web"), "replicas/shop/web"
SPEC = sets_of(application())[WEB]
RUN, DRAIN, RECOVER = Phase.RUNNING, Phase.DRAINING, Phase.RECOVERING
ENDS = 10.0


def web(*phases):
    return replica_set(WEB, *phases, node=HOME, spec=SPEC)


class Bench:
    def __init__(self):
        self.clock = ManualClock()
        self.publisher = Publisher(1, self.clock)
        self.endpoints = EndpointPublisher(self.publisher, ENDS)

    async def published(self):
        news = await self.publisher.watch("a caller", {}, 0.0, "replicas/")
        return {key: len(snapshot.value["replicas"]) for key, snapshot in news.items()}


async def test_recovering_replica_delays_only_its_own_replica_set():
    b = Bench()
    known = {WEB: web(RUN, RECOVER), key("shop/other"): web(RUN)}
    for name, each in known.items():
        assert not b.endpoints.publish(name, each, 0.0)
    assert b.publisher.version(KEY) is None
    assert b.publisher.version("replicas/shop/other") is not None
    assert b.endpoints.due == ENDS
    assert not b.endpoints.end_recovery(known, ENDS - 1.0)
    assert b.endpoints.end_recovery(known, ENDS)
    assert not b.endpoints.end_recovery(known, ENDS), "it ends once"
    assert b.endpoints.due is None
    b.endpoints.publish(WEB, known[WEB], 0.0)
    assert b.publisher.version(KEY) is not None


async def test_recovery_ends_early_if_all_replicas_have_reported():
    assert Bench().endpoints.end_recovery({WEB: web(RUN)}, 0.0)


async def test_leaving_replica_is_released_once_all_callers_know():
    b = Bench()
    b.endpoints.end_recovery({}, 0.0)
    b.endpoints.publish(WEB, web(RUN, RUN), 0.0)
    seen = {key: s.version for key, s in (await b.publisher.watch("a caller", {}, 0.0)).items()}
    leaving = {WEB: web(RUN, DRAIN)}
    assert b.endpoints.publish(WEB, leaving[WEB], 0.0)
    assert not b.endpoints.publish(WEB, leaving[WEB], 0.0), "it is on its way already"
    assert b.endpoints.is_awaited
    assert b.endpoints.released(leaving) == []
    assert b.endpoints.due == b.publisher.next_expiry()
    news = await b.publisher.watch("a caller", seen, 0.0)
    seen |= {key: s.version for key, s in news.items()}
    again = asyncio.create_task(b.publisher.watch("a caller", seen, 1.0))
    await b.clock.advance(0.1)
    assert b.endpoints.released(leaving) == ["shop.web-1-2"]
    assert b.endpoints.released(leaving) == []
    assert not b.endpoints.is_awaited
    await b.clock.advance(1.0)
    await again


@pytest.mark.parametrize("after", [{}, {WEB: web(RUN)}, {WEB: web(RUN, Phase.STOPPING)}])
async def test_replica_that_ended_is_not_waited_for(after):
    b = Bench()
    b.endpoints.end_recovery({}, 0.0)
    assert b.endpoints.publish(WEB, web(RUN, DRAIN), 0.0)
    assert b.endpoints.released(after) == []
    assert not b.endpoints.is_awaited


async def test_proxies_and_released_replicas_drain_without_waiting():
    b = Bench()
    assert not b.endpoints.publish(proxies_of(HOME), replica_set(proxies_of(HOME), RUN, DRAIN), 0.0)
    known = web(RUN, DRAIN)
    free = replace(known.record.replicas[1], unrouted=True)
    record = replace(known.record, replicas=(known.record.replicas[0], free))
    assert not b.endpoints.publish(WEB, replace(known, record=record), 0.0)
    assert await b.published() == {KEY: 1}


async def test_removed_replica_set_is_no_longer_published():
    b = Bench()
    b.endpoints.publish(WEB, web(RUN), 0.0)
    b.endpoints.remove(WEB)
    assert await b.published() == {}
