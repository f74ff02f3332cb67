"""An instance on simulated processes, which an admin server of this process serves."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from app_toolkit.clock import SystemClock
from app_toolkit.config.models import AdminOptions, ApplicationSpec
from app_toolkit.control.command import Command
from app_toolkit.control.controller import Controller
from app_toolkit.control.status import Load
from app_toolkit.observability.log_query import MOST_RECORDS, LoggedRecord, LogPage, LogQuery
from app_toolkit.observability.slowest import SlowAttempt, SlowRequest
from app_toolkit.operate.admin.app import create_app
from app_toolkit.operate.admin.server import AdminServer
from app_toolkit.operate.admin_host import AdminHost
from app_toolkit.operate.aggregate import MetricsAggregate
from app_toolkit.operate.client import Client
from tests.memory import MemoryStore
from tests.simulated import SimulatedLauncher, World

R = TypeVar("R")


class QuickClock(SystemClock):
    """Runs ten times as fast as the clock of the system, because the controller waits for seconds in each update."""

    def now(self) -> float:
        return 10 * super().now()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 10)


class Instance(Client):
    """A controller on a thread of its own, and the client that sends it commands."""

    def __init__(self, *, with_admin: bool = False) -> None:
        """`with_admin`: it also serves its admin API as the controller desires. False: only `serving` does."""
        self.store = MemoryStore()
        self.admin = AdminHost(self)
        self._with_admin = with_admin
        self._controller: Future[Controller] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._life = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    async def _run(self) -> None:
        clock = QuickClock()
        world = World(clock)
        world.start_s = world.drain_s = world.exit_s = world.answer_s = 0.001
        controller = Controller(self.store, SimulatedLauncher(world), clock)
        await controller.start()
        self._controller.set_result(controller)
        serving = [asyncio.create_task(self.admin.run(controller))] if self._with_admin else []
        await controller.run()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await world.aclose()

    def execute(self, command: Command[R]) -> R:
        done = asyncio.run_coroutine_threadsafe(command.perform(self._controller.result()), self._loop)
        return done.result()

    def deployed(self, name: str) -> ApplicationSpec:
        """The application as it runs, with the values of its references."""
        return self._controller.result().desired.state().application(name).main.spec

    def load(self) -> Mapping[str, Load]:
        return {"shop/web": Load(proxies=1, handles=2, ongoing=3, buffered=4)}

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        return LogPage((LoggedRecord("now", "INFO", "shop", f"{query.level} {last} {after}"),), {"node": {"web": "9"}})

    def slow(self, name: str | None, last: int) -> Sequence[SlowRequest]:
        attempts = (SlowAttempt("shop.web-1-2", 0.1, "lost"),)
        return [
            SlowRequest(1.0, 2.0, "http", f"{name}", "r", "GET", "/", 200, "ok", "id", 0.0, 0.1, attempts, 1.5, 0.3)
        ]

    def push(self, process: str, snapshot: bytes) -> tuple[bool, float]:
        return asyncio.run_coroutine_threadsafe(self.admin.push(process, snapshot), self._loop).result()

    def acquire_lease(self) -> None: ...

    def leave(self) -> None: ...

    def shutdown(self) -> None:
        asyncio.run_coroutine_threadsafe(self._controller.result().shutdown(), self._loop).result()

    def wait(self) -> None:
        """Wait until the instance has shut down."""
        self._life.result()

    def close(self) -> None:
        if not self._life.done():
            self.shutdown()
        self.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def serving(client: Client, token: str | None = None, **options: object) -> Iterator[str]:
    """Serve the admin API of this client, and give its URL."""
    chosen = AdminOptions(**{"admin_port": 0, **options})
    server = AdminServer(lambda: create_app(client, MetricsAggregate(), chosen, token), chosen, 0)
    address = server.start()
    try:
        yield f"http://{address.partition(':')[2]}"
    finally:
        server.stop(10.0)
