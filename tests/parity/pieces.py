"""The data plane by hand: a proxy, and every ingress in processes of its own; no Ray and no controller.

`python -m parity.pieces` serves until it is interrupted. What differs here differs in the proxy or
in the replica; what differs on Ray alone does so in the engine.
"""

import asyncio
import multiprocessing
import signal
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from app_toolkit.config.models import ApplicationSpec, HTTPOptions, IngressSpec
from app_toolkit.core.publication import LiveRevision, encode, route_snapshot
from app_toolkit.interfaces import ReplicaSpec, Snapshot, Version
from app_toolkit.planning import plan
from app_toolkit.proxy.hosted_proxy import HostedProxy
from app_toolkit.proxy.state import ProxyState
from app_toolkit.replica.server import ReplicaServer
from app_toolkit.replica.signals import Signals
from app_toolkit.router.router import Router
from app_toolkit.types import Address, ReplicaId
from tests import published

SECRET = b"the-secret-of-this-run"


def replica(spec: ReplicaSpec, folder: str, pipe: Connection) -> None:
    """One replica process: it says where it serves, and ends when the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ReplicaServer(Signals())

    def live() -> None:
        pipe.send(server.start(spec, SECRET, Address(f"unix:{folder}/{spec.id}.sock")))
        pipe.poll(None)
        server.stop(5)

    living = threading.Thread(target=live)
    living.start()
    # The main thread lets Python run now and then, as Ray's does: that is when signal handlers are installed.
    while living.is_alive():
        living.join(0.005)


def replica_specs(spec: ApplicationSpec, ingress: IngressSpec) -> list[ReplicaSpec]:
    return [
        ReplicaSpec(
            id=ReplicaId(f"{ingress.config.name}-{number}"),
            application=spec.name,
            deployment=ingress.config.name,
            template_hash="1",
            target=spec.target,
            app_dir=spec.app_dir,
            root_path="",
            live=ingress.config.reloadable_options,
            graceful_shutdown_timeout_s=5,
        )
        for number in range(2)
    ]


def serve() -> None:
    from .served import app

    spec = plan(app, target="parity.served:app", app_dir=str(Path(__file__).parents[1]))
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    spawn = multiprocessing.get_context("spawn")
    snapshots: dict[str, Snapshot] = {}
    processes, pipes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for ingress in spec.deployments:
            started = []
            for replica_spec in replica_specs(spec, ingress):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=replica, args=(replica_spec, folder, theirs))
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
                started.append((replica_spec, ours))
            snapshots[f"replicas/{spec.name}/{ingress.config.name}"] = Snapshot(
                Version(1, 1),
                published.replica_set(
                    *(
                        published.replica(replica_spec.id, pipe.recv(), replica_spec.live.max_ongoing_requests)
                        for replica_spec, pipe in started
                    ),
                    **ingress.config.policy.model_dump(),
                ),
            )
        snapshots["routes"] = Snapshot(Version(1, 1), encode(route_snapshot([LiveRevision(spec)])))

        async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
            if seen:
                await asyncio.Event().wait()
            return snapshots

        edge = HostedProxy(lambda: ProxyState(SECRET, Router), HTTPOptions(port=0), watch)
        print(f"serving on http://{edge.start().removeprefix('tcp:')}", flush=True)
        stop.wait()
        edge.stop(5)
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)


if __name__ == "__main__":
    serve()
