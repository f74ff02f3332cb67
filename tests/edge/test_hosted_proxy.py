"""A proxy on a thread of its own, told what to do from others."""

import asyncio
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge.hosted_proxy import HostedProxy
from app_toolkit.edge.server import bind
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import StartupError
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import ROUTES, Snapshot, Version
from tests.patience import PATIENCE_S
from tests.published import routes


def test_a_proxy_that_waits_for_its_first_routes_can_be_stopped() -> None:
    with bind(HTTPOptions(port=0)) as free:
        options = HTTPOptions(port=free.getsockname()[1])
    asked, forgotten = threading.Event(), threading.Event()

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            forgotten.set()
        raise AssertionError

    edge = HostedProxy(lambda: ProxyState(b"secret", Router), options, watch)
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(edge.start)
        assert asked.wait(PATIENCE_S)
        began = time.monotonic()
        edge.stop(60)
        assert time.monotonic() - began < 30
        with pytest.raises(StartupError, match="the proxy was stopped before it received any routes"):
            starting.result(PATIENCE_S)
    assert forgotten.is_set()
    bind(options).close()


def test_a_proxy_accepts_clients_on_a_socket_that_it_was_given_and_leaves_it_open_for_others() -> None:
    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        if seen:
            await asyncio.Event().wait()
        return {ROUTES: Snapshot(Version(1, 1), routes())}

    with bind(HTTPOptions(port=0)) as kept:
        kept.listen()
        edge = HostedProxy(lambda: ProxyState(b"secret", Router), HTTPOptions(port=0), watch, kept.dup())
        url = f"http://127.0.0.1:{kept.getsockname()[1]}"
        assert edge.start() == url.replace("http://", "tcp:")
        assert httpx.get(f"{url}/-/healthz").status_code == 200
        edge.stop(PATIENCE_S)
        socket.create_connection(kept.getsockname(), PATIENCE_S).close()  # for the next process
