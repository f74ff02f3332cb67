"""Count what a GET passes at a replica that accepts clients: files, function calls, and calls from file to file.

The numbers depend on the code alone, so they show on a busy machine what a change removes. Nothing is sent: the bytes
of the request go to the connection of the client, and its transport drops the bytes of the response.

python -m benchmarks.passed                            # the numbers
python -m benchmarks.passed --functions                # also each function of the package, with its number of calls
"""

import argparse
import asyncio
import sys
from collections import Counter
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

import app_toolkit
from app_toolkit.config.models import HTTPOptions, Policy, Route
from app_toolkit.contract.identity import LiveRevisionKey
from app_toolkit.contract.routes import RoutedApplication
from app_toolkit.contract.snapshots import PublishedReplica, ReplicaSetSnapshot, RouteSnapshot, encode
from app_toolkit.contract.targets import Target
from app_toolkit.edge.forwarded import Trust
from app_toolkit.edge.protocol import ClientConnection, Timeouts
from app_toolkit.edge.request_parser import HeadLimits
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.outbound import Outbound
from app_toolkit.exchange.router import Router
from app_toolkit.host.edge import EdgeUpstreams, NearReplica
from app_toolkit.interfaces import REPLICAS, ROUTES, Snapshot, Version
from app_toolkit.observability.access import AccessLog
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.types import Address, NodeId, ReplicaId

PACKAGE = str(Path(app_toolkit.__file__).parent) + "/"
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\nuser-agent: a\r\naccept: */*\r\naccept-encoding: gzip\r\n\r\n"
SECRET = b"s" * 32
WARM = 30
"""Requests before the one that is counted."""

Calls = Counter[tuple[str, str]]
"""The number of calls by file and function. The empty file is everything outside of the package."""


class NoSocket(asyncio.Transport):
    """Notes that the end of a response was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8_000)})
        self.answered = asyncio.Event()

    def write(self, data: Any) -> None:
        if data.endswith(b"}"):
            self.answered.set()

    def is_closing(self) -> bool:
        return False


class Trace:
    """What one request calls. `calls`: by function; `moves`: calls of the package from one of its files to another."""

    def __init__(self) -> None:
        self.calls: Calls = Counter()
        self.moves = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE):
            self.calls["", ""] += path != __file__
            return
        self.calls[path.removeprefix(PACKAGE), frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        self.moves += caller is None or caller.f_code.co_filename != path


def connection() -> ClientConnection:
    """Return the connection of a client at an edge, with a replica of a small app on the same event loop."""
    app = FastAPI(openapi_url=None)
    app.get("/")(hello)
    id, address, key = (
        ReplicaId("replica-1"),
        Address("unix:/nowhere"),
        LiveRevisionKey.parse("shop").replica_set("web"),
    )
    outbound: Outbound[Router] = Outbound(
        SECRET, lambda key, join, unserved: Router(key.name, join, unserved, near=id), NodeId("")
    )
    access = AccessLog(lambda text: None)
    proxy = ProxyState(SECRET, Router, NodeId(""), access, new_upstreams=EdgeUpstreams, outbound=outbound)
    proxy.configure(HTTPOptions())
    config = uvicorn.Config(app, lifespan="off")
    config.load()
    replica = Replica(app, name=id, max_ongoing_requests=100, secret=SECRET)
    assert isinstance(proxy.upstreams, EdgeUpstreams)
    proxy.upstreams.add(NearReplica(address, replica, config, ServerState(), {}))
    published = PublishedReplica(id, address, None, NodeId(""), 100, 1_000, False, None)
    policy = Policy(request_timeout_s=60.0)
    route = Route(kind="http", path="/", pattern="^/$", methods=("GET",), owner="web")
    routed = RoutedApplication("/", Target("shop", key, 1.0, None, 0.0), (route,))
    proxy.registry.update(
        {
            ROUTES: Snapshot(Version(1, 1), encode(RouteSnapshot((routed,)))),
            f"{REPLICAS}{key.name}": Snapshot(
                Version(1, 1), encode(ReplicaSetSnapshot(policy, None, (), True, False, (published,)))
            ),
        }
    )
    state: Any = ServerState()
    return ClientConnection(proxy, state, HeadLimits(), Timeouts(), Trust(()))


async def hello() -> dict[str, str]:
    return {"hello": "world"}


async def traced() -> Trace:
    """Return what one GET calls on a warm connection."""
    client, transport, trace = connection(), NoSocket(), Trace()
    client.connection_made(transport)
    for number in range(WARM + 1):
        if number == WARM:
            sys.setprofile(trace)
        transport.answered.clear()
        asyncio.get_running_loop().call_soon(client.data_received, REQUEST, context=Context())
        await transport.answered.wait()
        await asyncio.sleep(0)  # the task of the app ends
    sys.setprofile(None)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="list the functions")
    arguments = parser.parse_args()
    trace = asyncio.run(traced())
    outside = trace.calls.pop(("", ""))
    files = {path for path, _ in trace.calls}
    print(
        f"files {len(files)}, calls {trace.calls.total()}, moves {trace.moves}; calls outside of the package {outside}"
    )
    if arguments.functions:
        for (path, function), count in sorted(trace.calls.items(), key=lambda item: (-item[1], item[0])):
            print(f"{count:5} {path}: {function}")


if __name__ == "__main__":
    main()
