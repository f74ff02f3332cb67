"""Lightweight packages of the FastAPI ecosystem with their own clients: in one process, and with two replicas.

`python -m benchmarks.conformance ecosystem` has all packages, on more servers.
"""

import asyncio
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.conformance.ecosystem import APPS
from benchmarks.conformance.servers import plain
from tests.cluster import Cluster

CLIENTS = 10
STATELESS = {
    "strawberry_app": ("query", "subscription"),
    "sse_app": ("events",),
    "sqladmin_app": ("admin",),
    "telemetry_app": ("traced",),
}
STATEFUL = {"socketio_app": ("polling", "upgrade"), "slowapi_app": ("limit",)}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """The apps can be imported, and write their files to a folder of the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(APPS))
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(APPS)):
            del sys.modules[name]


async def visit(module: str, functions: tuple[str, ...], url: str) -> None:
    """Clients of each kind, all at once; raises what the first of them raises."""
    for function in functions:
        client = getattr(importlib.import_module(module), function)
        await asyncio.gather(*(client(url, number) for number in range(CLIENTS)))


@pytest.mark.parametrize("module", [*STATELESS, *STATEFUL])
def test_a_package_works_in_one_process(module: str) -> None:
    app = importlib.import_module(module).pinned
    with plain(app) as port:
        asyncio.run(visit(module, {**STATELESS, **STATEFUL}[module], f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize("module", ["strawberry_app", "sqladmin_app"])
def test_a_package_without_state_works_with_two_replicas(module: str, cluster: Cluster) -> None:
    served = cluster.deploy(f"{module}:app", APPS, num_replicas=2)
    assert len(served.ingress("app")["replicas"]) == 2
    asyncio.run(visit(module, STATELESS[module], served.url))
    served.delete()


@pytest.mark.parametrize("module", STATEFUL)
def test_a_package_with_state_works_when_it_is_pinned_to_one_replica(module: str, cluster: Cluster) -> None:
    served = cluster.deploy(f"{module}:pinned", APPS, num_replicas=2)
    assert len(served.ingress("app")["replicas"]) == 1
    asyncio.run(visit(module, STATEFUL[module], served.url))
    served.delete()


def test_socketio_works_with_two_replicas_that_keep_its_sessions(cluster: Cluster) -> None:
    served = cluster.deploy("socketio_app:sticky", APPS, num_replicas=2)
    assert len(served.ingress("app")["replicas"]) == 2
    asyncio.run(visit("socketio_app", STATEFUL["socketio_app"], served.url))
    served.delete()
