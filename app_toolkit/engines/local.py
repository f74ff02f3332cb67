"""Deployments of classes in one process: a router in front of one replica, a function call away."""

import asyncio
import atexit
import logging
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop

from app_toolkit.config import settings
from app_toolkit.config.models import ClassConfig, DeploymentConfig
from app_toolkit.core import deadlines
from app_toolkit.core.attempts import Attempt, Attempts, Reason, Result
from app_toolkit.errors import ConfigError, DeadlineExceeded, ReplicaBusy, ReplicaLost, StartupError
from app_toolkit.interfaces import Call, Deployable, Endpoint, QueuePosition
from app_toolkit.observability.context import DEADLINE, REQUEST_ID, ReplicaContext
from app_toolkit.replica.calls import Calls
from app_toolkit.replica.instance import Instance
from app_toolkit.replica.replica import Replica
from app_toolkit.replica.wait_queue import Position
from app_toolkit.router.router import Router
from app_toolkit.router.targets import Permit
from app_toolkit.types import Address, ASGIApp, Message, ReplicaId, Scope

logger = logging.getLogger("app_toolkit.replica")

CALLER = "embedded"
"""The one caller in the wait queues of this process."""

APPLICATION = "default"
"""What an application is called that nobody has named, as on Ray."""

STOP_S = 10.0
"""What instances get to close, where the process ends and nobody waits for them."""


def start_no_ray() -> None:
    """Here is no Ray: user code that asks for it is to be told so, and not to get a new cluster without a word."""
    hook = sys.modules.get("ray._private.auto_init_hook")
    if settings.start_no_ray() and hook is not None:  # imported already, when it looked at the environment
        hook.enable_auto_connect = False  # type: ignore[attr-defined]


def context_of(deployment: str) -> ReplicaContext:
    """That of the one replica that a deployment has in this process."""
    return ReplicaContext(APPLICATION, deployment, ReplicaId(deployment))


class Local:
    """One deployment within one event loop: its router, and the gate of its one replica."""

    def __init__(self, name: str, app: ASGIApp, config: DeploymentConfig) -> None:
        start_no_ray()
        self.replica = Replica(
            app,
            name=name,
            max_ongoing_requests=config.max_ongoing_requests,
            max_open_websockets=config.max_open_websockets,
            max_open_streams=config.max_open_streams,
            on_disconnect=config.on_disconnect,
        )
        self.router = Router(name, self._join, policy=config.policy)
        limits = config.max_ongoing_requests, config.max_open_streams
        self.router.update([Endpoint(ReplicaId(name), Address("local:"), *limits)])

    def _join(self, endpoint: Endpoint, reserved: Callable[[], None], ended: Callable[[], None]) -> QueuePosition:
        loop = asyncio.get_running_loop()

        def soon(callback: Callable[[], None]) -> None:  # as over the wire: never while the router asks
            loop.call_soon(callback)

        try:
            return self.replica.wait_queue.join(CALLER, partial(soon, reserved), partial(soon, ended))
        except ReplicaBusy:  # as over the wire: the position has ended before it began
            soon(ended)
            return Position(self.replica.wait_queue, CALLER, reserved, ended)

    def refused(self, permit: Permit, attempts: Attempts, late: DeadlineExceeded) -> None:
        """The replica was full, and the request waits again. Raises `QueueTimeout`, or `late` after the deadline."""
        self.router.ended(permit, Result.BUSY)
        now = asyncio.get_running_loop().time()
        step = attempts.after(Attempt(permit.endpoint.id, Result.BUSY), now, self.router.policy.max_queue_wait_s)
        if step is Reason.DEADLINE:
            raise late from None
        if step is Reason.QUEUE_WAIT:
            raise self.router.waited_too_long() from None


class LocalReply:
    """What a call gives: one value, or an error, or items that are taken one by one."""

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._item: list[Any] = []
        self._news = asyncio.Event()

    # What the replica says

    def value(self, value: Any) -> None:
        self._value = value

    def error(self, error: BaseException) -> None:
        self._error = error

    async def item(self, item: Any) -> None:
        """Gives back once there is room for another one: the method is never more than one item ahead."""
        await self._room.wait()
        self._room.clear()
        self._item.append(item)
        self._news.set()

    def end(self) -> None:
        pass

    # What the caller hears

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def close(self) -> None:
        """Nothing more comes."""
        self.over.set()
        self._news.set()

    async def items(self) -> AsyncGenerator[Any, None]:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._item:
                item = self._item.pop()
                self._room.set()
                yield item
            if self.over.is_set() and not self._item:
                return


class Deployed(Local):
    """One class's deployment: what a handle calls. Its object is constructed when it is first needed."""

    def __init__(self, deployment: Deployable, loop: asyncio.AbstractEventLoop) -> None:
        config: ClassConfig = deployment.config
        self.instance = Instance(
            deployment.make,
            name=deployment.name,
            sync_threads=config.sync_threads,
            replica=context_of(deployment.name),
        )
        self.instance.limit_batches(config.live.batch)
        self._user_config = config.user_config
        self._starting: asyncio.Task[None] | None = None
        self.loop = loop
        super().__init__(deployment.name, Calls(self.instance), config)

    async def start(self) -> None:
        """Construct the object, once for all who need it. Raises `StartupError`; whoever comes later tries anew."""
        if self._starting is None:
            self._starting = self.loop.create_task(self.instance.start(self._user_config))
        try:
            await asyncio.shield(self._starting)
        except StartupError:
            self._starting = None
            raise

    async def aclose(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with suppress(BaseException):
                await self._starting
            await self.instance.aclose()

    # The caller

    async def call(self, call: Call) -> Any:
        reply = LocalReply()
        await self._run(call, reply)
        return reply.result()

    fetch = call  # what is passed on is the object itself

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        reply = LocalReply()
        running = self.loop.create_task(self._run(call, reply))
        running.add_done_callback(lambda _: reply.close())
        items = reply.items()
        try:
            async for item in items:
                yield item
            await running
            reply.result()
        finally:
            await items.aclose()
            running.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await running

    async def _run(self, call: Call, reply: LocalReply) -> None:
        """Run it with a permit. Raises a `RequestError` if it did not run, or not to its end."""
        if self._starting is None or not self._starting.done():
            await self.start()
        since = self.loop.time()
        until = deadlines.until(since, (call.timeout_s, self.router.policy.request_timeout_s), DEADLINE.get())
        if until is None:
            await self._with_permit(call, reply, since, None)
            return
        try:
            async with asyncio.timeout_at(until):
                await self._with_permit(call, reply, since, until)
        except TimeoutError:
            raise self._late(call) from None

    async def _with_permit(self, call: Call, reply: LocalReply, since: float, until: float | None) -> None:
        answer = _Status()
        attempts = Attempts(since, until)
        while True:
            permit = self.router.try_acquire() or await self.router.acquire(since, again=attempts.count > 0)
            attempts.count += 1
            try:
                caller = CALLER if permit.redeem() else None
                left = None if until is None else until - self.loop.time()
                await self.replica.admit(_scope(call, reply), _nobody_leaves, answer.send, left, caller=caller)
                break
            except ReplicaBusy:
                self.refused(permit, attempts, self._late(call))
            finally:
                self.router.release(permit)
        if answer.status == DeadlineExceeded.status:
            raise self._late(call)
        if answer.status != 200:
            raise ReplicaLost(f"{self.replica.name} answered {call.method} with status {answer.status}")

    def _late(self, call: Call) -> DeadlineExceeded:
        return DeadlineExceeded(f"{call.method} of {self.replica.name} did not end within its time")


def _unapplied(config: DeploymentConfig, cls: type | None = None) -> str:
    names = config.on_ray
    if hasattr(cls, "check_health"):
        names = (*names, "check_health()")
    return f"{config.name}: {', '.join(names)}" if names else ""


class InProcess:
    """Every class's deployment that this process uses, each on one event loop: its *home*.

    That is the loop of the app whose lifespan runs (the latest, where several do), else one of our own in a thread,
    which starts at first use: where every request has a loop (`TestClient` without `with`), or nobody has one, an
    object outlives the loop that needed it first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.deployed: dict[Deployable, Deployed] = {}
        #: Of apps whose lifespan runs.
        self._homes: list[asyncio.AbstractEventLoop] = []
        self._own: OwnLoop | None = None
        #: The options that have been listed, so that each line is logged once.
        self.listed: set[str] = set()

    def list_unapplied(self, ingresses: Iterable[DeploymentConfig], classes: Iterable[Deployable]) -> None:
        """Log once, in one line, which options of these deployments have no effect in one process."""
        lines = [_unapplied(each) for each in ingresses]
        lines += [_unapplied(each.config, each.cls) for each in classes]
        new = [line for line in dict.fromkeys(lines) if line and line not in self.listed]
        if new:
            self.listed.update(new)
            logger.warning("without Ray these options have no effect; they apply with `run`: %s", "; ".join(new))

    def caller(self, deployment: Deployable) -> Deployed:
        if deployment.application is not None:
            raise ConfigError(f"{deployment.name!r} is a part of {deployment.application!r}, and no instance is joined")
        with self._lock:
            deployed = self.deployed.get(deployment)
            if deployed is None:
                self.list_unapplied((), (deployment,))
                deployed = self.deployed[deployment] = Deployed(deployment, self._home())
            return deployed

    def _home(self) -> asyncio.AbstractEventLoop:
        if self._homes:
            return self._homes[-1]
        if self._own is None:
            self._own = OwnLoop("app-toolkit embedded")
        return self._own.loop

    async def start(self, deployments: Sequence[Deployable]) -> None:
        """Make the running loop a home, and construct these in their order. Raises `StartupError`.

        What lived on the loop of our own is closed before, and constructed anew here when it is needed.
        """
        start_no_ray()
        if self._own is not None:
            await asyncio.to_thread(self.close)
        with self._lock:
            self._homes.append(asyncio.get_running_loop())
        for deployment in deployments:
            await self.caller(deployment).start()

    async def stop(self) -> None:
        """Close what lives on the running loop, last first; it is no home any more.

        Of several apps whose lifespans run on it, the last one to stop does so.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._homes:
                self._homes.remove(loop)
            if loop in self._homes:
                return
            mine = [each for each in self.deployed.values() if each.loop is loop]
            self.deployed = {key: each for key, each in self.deployed.items() if each.loop is not loop}
        for each in reversed(mine):
            await each.aclose()

    def close(self) -> None:
        """Close what lives on the loop of our own, and end that; nothing happens where there is none."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.close(self.stop())


class OwnLoop:
    """An event loop in a thread, until the process ends."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Run this, and end; from another thread."""
        if last is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(last, self.loop).result(STOP_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_S)


#: That of this process.
IN_PROCESS = InProcess()
atexit.register(IN_PROCESS.close)


class _Status:
    """What the gate says instead of a result: a status."""

    status = 200

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]


async def _nobody_leaves() -> Message:
    """Whoever calls is cancelled, and does not hang up."""
    await asyncio.get_running_loop().create_future()
    return {"type": "http.disconnect"}


def _scope(call: Call, reply: LocalReply) -> Scope:
    request_id = REQUEST_ID.get() or uuid.uuid4().hex
    return {
        "type": "http",
        "method": "POST",
        "path": f"/{call.method}",
        "headers": [],
        "extensions": {"app_toolkit": {"request_id": request_id, "call": call, "reply": reply}},
    }
