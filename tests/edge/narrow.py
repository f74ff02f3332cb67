"""A proxy in a process that may open few files."""

import asyncio
import resource
import sys

import uvloop

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge.server import ProxyServer
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Snapshot, Version
from tests import published
from tests.edge.app import SECRET


async def serve(replica: str, clients: int | None) -> None:
    proxy = ProxyState(SECRET, Router)
    values = {
        "routes": published.routes(published.application()),
        "replicas/shop/web": published.replica_set(published.replica("replica", replica, 1_000), max_queue_wait_s=60.0),
    }
    proxy.registry.update({key: Snapshot(Version(1, 1), value) for key, value in values.items()})
    # The crowd takes its time: who came first must still be there when the last one has come.
    options = HTTPOptions(port=0, max_connections=clients, keep_alive_timeout_s=60.0, head_timeout_s=60.0)
    async with ProxyServer(proxy, options, drain_timeout_s=0) as server:
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    descriptors, clients, replica = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors) // 2, int(descriptors)))
    uvloop.run(serve(replica, int(clients) or None))
