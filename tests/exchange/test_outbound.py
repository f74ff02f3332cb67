"""One process that both serves clients and calls deployments."""

import asyncio
from collections.abc import Mapping

import pytest

from app_toolkit.calls.remote import RemoteDataPlane
from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.outbound import Outbound
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import REPLICAS, ROUTES, Snapshot, Version
from app_toolkit.observability import reports
from tests import published
from tests.keys import key
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_process_that_serves_and_calls_has_one_watch_and_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "LOAD_CHECK_S", 0.0)
    outbound = Outbound(b"secret", lambda key, join, unserved: Router(key.name, join, unserved))
    proxy = ProxyState(b"secret", Router, outbound=outbound)
    plane = RemoteDataPlane(b"secret", "shop", ("model",), outbound=outbound)
    replicas = published.replica_set(published.replica("r", "tcp:127.0.0.1:1"), reported=True)
    news = {
        ROUTES: Snapshot(Version(1, 1), published.routes(published.application())),
        f"{REPLICAS}shop/web": Snapshot(Version(1, 2), replicas),
        f"{REPLICAS}shop/model": Snapshot(Version(1, 3), replicas),
    }
    watches: asyncio.Queue[set[str]] = asyncio.Queue()
    reported: asyncio.Queue[Loads] = asyncio.Queue()

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        watches.put_nowait(set(seen))
        if seen:
            await asyncio.Event().wait()
        return news

    async def report(loads: Loads, compared: Compared, lost: Lost) -> bool:
        reported.put_nowait(loads)
        return True

    life = asyncio.create_task(outbound.run(watch, report))
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert [await watches.get(), await watches.get()] == [set(), set(news)]
            assert proxy.registry.find("http", "GET", "/", published.no_choice)[0] == key("shop/web")
            ingress, model = proxy.registry.routers[key("shop/web")], plane.router(key("shop/model"))
            assert (ingress.try_acquire(), model.try_acquire()).count(None) == 0
            while set(loads := await reported.get()) != {key("shop/web"), key("shop/model")}:
                pass
            assert [load[1] for load in loads.values()] == [1, 1]
        assert proxy.registry.queues == {"shop/web": 0}, "the calls of handles are no requests of the proxy"
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await plane.aclose()
        await proxy.aclose()
        await outbound.aclose()
