"""The replica's process: uvicorn on sockets of ours and a thread of its own, told what to do by others."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import uvicorn
import uvloop
from fastapi import FastAPI

from app_toolkit import private
from app_toolkit.errors import NotWell, ReplicaGone, StartupError, Unresponsive
from app_toolkit.interfaces import ReloadableOptions, ReplicaSpec
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.observability.watchdog import Watchdog
from app_toolkit.replica.arrival import Strangers, UnauthenticatedConnection
from app_toolkit.replica.batching import override
from app_toolkit.replica.calls import host_class
from app_toolkit.replica.connection import CallerConnection
from app_toolkit.replica.deposits import Deposits
from app_toolkit.replica.host import Lifespan, host, load, unpack, users_traceback
from app_toolkit.replica.instance import Instance
from app_toolkit.replica.reach import ask
from app_toolkit.replica.replica import Replica, ReplicaStatistics, Reported
from app_toolkit.replica.signals import Signals
from app_toolkit.replica.target import served
from app_toolkit.replica.websocket import BoundedWebSocket
from app_toolkit.transport.sockets import check_descriptors, close_in_children, keep_alive
from app_toolkit.types import Address, ReplicaId

logger = logging.getLogger("app_toolkit.replica")

T = TypeVar("T")

BACKLOG = 2048
LONGEST_SOCKET_PATH = 107
"""Bytes that Linux has room for, less the one that ends the path."""
FIRST_PROBE_S = 30.0
"""How long the first probe may take: the app's own tasks may still be warming up."""
LEAST_S = 0.1
"""What the gate has to answer over the socket, however late the loop answered."""
LOOK_S = 0.05
"""How often a drain looks whether the last bytes have left."""
CLOSING_S = 1.0
"""What WebSockets that were told 1012 get to answer."""
SHUTDOWN_S = 10.0
"""How long a lifespan's shutdown may take after the last exchange."""


class ReplicaServer:
    """One replica, for the threads that control it.

    Every method is called from threads other than the data loop's, which this class starts; a handler that
    blocks that loop makes them wait no longer than they are told. One server serves once.
    """

    def __init__(self, signals: Signals | None = None) -> None:
        """`signals` lets user code install signal handlers; None: off the main thread, Python refuses."""
        self._signals = signals
        self._thread: threading.Thread | None = None
        self._address = Address("")
        self._secret = b""
        #: Where callers on other nodes reach it, once it serves; None: they do not.
        self.remote_address: Address | None = None
        #: The options that it starts with or has taken up; None: none yet, or nobody knows what a failure has left.
        self.live: ReloadableOptions | None = None
        self.listeners: list[socket.socket] = []
        # Set on the data loop while the replica comes up.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self.replica: Replica | None = None
        self._instance: Instance | None = None
        self._reconfiguring = asyncio.Lock()
        #: Since the app is up; until then nobody waits for its loop.
        self._watchdog: Watchdog | None = None
        #: Of a class: the payloads that do not cross its socket.
        self.deposits = Deposits()

    def start(
        self,
        spec: ReplicaSpec,
        secret: bytes,
        address: Address,
        remote_host: str | None = None,
        around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        code: bytes | None = None,
    ) -> Address:
        """Import the app, run its startup, listen, answer one probe; gives the address that it listens on.

        `address`: `unix:/path` (where that cannot be, some port of this host alone), or `tcp:host:port` with
        port 0 for any free one. `remote_host`: listen on some port of this host as well, for callers on other
        nodes; there the secret is asked of everybody. `around` is entered on the data loop before anything of the app
        is there, and left when all of it has gone. `code` is what is unpacked, where
        `spec.code` names it. Raises `TargetError`, `PlanningError`, or `StartupError` with the traceback of the app's
        own.
        """
        if self._thread is not None:
            raise StartupError(f"replica {spec.id} was started before")
        if not secret:
            raise StartupError(f"replica {spec.id} was given an empty secret")
        self._secret = secret
        listener, self._address = bind(address)
        self.listeners.append(listener)
        try:
            if remote_host is not None:
                host = f"[{remote_host}]" if ":" in remote_host else remote_host
                listener, self.remote_address = bind(Address(f"tcp:{host}:0"))
                self.listeners.append(listener)
        except BaseException:
            self._remove_socket()
            raise
        self.live = spec.live
        for listener in self.listeners:
            close_in_children(listener)
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(spec, secret, ready, around, code), name=f"app-toolkit data {spec.id}", daemon=True
        )
        self._thread.start()
        try:
            ready.result()
            self._probe_first(spec.id)
        except BaseException:
            self.stop(0)
            raise
        return self._address

    def _probe_first(self, id: ReplicaId) -> None:
        try:
            self.probe(FIRST_PROBE_S)
        except Exception as error:
            failed = f"replica {id} started, and its first probe failed:\n{users_traceback(error)}"
            raise StartupError(failed) from error

    def probe(self, timeout: float) -> ReplicaStatistics:
        """Ask the data loop, where user code runs, whether it still turns.

        Where it serves a class with a `check_health`, that is asked as well. Then the gate is asked over the socket
        file that callers use. Raises `Unresponsive` where there is no answer within `timeout` seconds, unless a
        debugger holds the loop; `ReplicaGone` where the loop has ended; `NotWell` where the process has no file
        descriptor left or the file leads nowhere, and what `check_health` raises.
        """
        until = time.monotonic() + timeout
        replica, loop = self._alive()

        async def answer() -> ReplicaStatistics:
            check_descriptors()
            if self._instance is not None:
                await self._instance.check_health()
            return replica.statistics()

        asked = self._ask(answer(), loop)
        if not wait((asked,), timeout).done:  # a `TimeoutError` may also be the answer
            asked.cancel()
            if self._watchdog is not None and self._watchdog.is_debugging:
                return replica.statistics()
            raise self._unresponsive(replica, timeout)
        found = asked.result()
        if self._address.startswith("unix:"):
            try:
                ask(self._address.removeprefix("unix:"), self._secret, max(until - time.monotonic(), LEAST_S))
            except TimeoutError:
                raise self._unresponsive(replica, timeout) from None
            except OSError as error:
                raise NotWell(f"callers cannot reach {replica.name} at {self._address}: {error}") from error
        return found

    def _unresponsive(self, replica: Replica, timeout: float) -> Unresponsive:
        why = f"the data loop of {replica.name} did not answer within {timeout:g} s"
        blocked = None if self._watchdog is None else self._watchdog.blocked()
        if blocked is not None:  # else its turns are slow, or the app's check_health is
            why = f"{why}: its event loop is {blocked}"
        return Unresponsive(why, replica.running_ids())

    def reconfigure(self, live: ReloadableOptions, timeout: float) -> None:
        """Take up options that changed. One follows the other; what runs, and who is inside, is left alone.

        Raises `ReconfigureError` with the user's traceback, `TimeoutError` where it takes longer than `timeout`
        seconds (a `reconfigure` that is `async` is cancelled then), and `ReplicaGone`.
        """
        replica, loop = self._alive()
        asked = self._ask(self._take_up(live), loop)
        try:
            asked.result(timeout)
        except TimeoutError:
            asked.cancel()
            raise TimeoutError(f"{replica.name} was not reconfigured within {timeout:g} s") from None

    def statistics(self) -> ReplicaStatistics:
        """What is going on, without asking the data loop. Raises `ReplicaGone` where that has ended."""
        return self._alive()[0].statistics()

    def drain(self, timeout: float) -> bool:
        """Admit nobody any more, and wait until no HTTP request runs, nor a background task of one, and all answers
        have left.

        Gives whether that came about within `timeout` seconds. Raises `ReplicaGone`.
        """
        replica, loop = self._alive()
        asked = self._ask(self._drain(replica, timeout), loop)
        try:
            return asked.result(timeout + 1)
        except TimeoutError:
            # Something blocks the loop: it admits nobody meanwhile, and drains when it goes on.
            return False

    def stop(self, timeout: float) -> bool:
        """Close WebSockets (1012), give exchanges `timeout` seconds, cut the rest, run the app's shutdown.

        After a `drain` exchanges have had their time: they get `CLOSING_S` more, and the shutdown has the rest.
        Gives whether all of that has ended; where it has not, something blocks, and only the end of the
        process helps. Nothing happens where it was not started, or has been stopped.
        """
        thread, loop = self._thread, self._loop
        if thread is None:
            return True
        if loop is not None and thread.is_alive():
            with suppress(RuntimeError):  # it ended by itself a moment ago
                loop.call_soon_threadsafe(self._begin_stop, timeout)
            thread.join(timeout + SHUTDOWN_S)
        if thread.is_alive():
            return False
        self._remove_socket()
        return True

    def __repr__(self) -> str:
        return f"<ReplicaServer {self.replica!r} at {self._address or 'no address'}>"

    def _alive(self) -> tuple[Replica, asyncio.AbstractEventLoop]:
        if self._thread is None or self.replica is None or self._loop is None:
            raise ReplicaGone("the replica has not started")
        if not self._thread.is_alive() or self._loop.is_closed():
            raise ReplicaGone(f"the data loop of {self.replica.name} has ended")
        return self.replica, self._loop

    def _ask(self, question: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(question, loop)
        except RuntimeError:  # it ended since `_alive` looked
            question.close()
            raise ReplicaGone(f"the data loop of {self.replica!r} has ended") from None

    # On the data thread

    def _run(
        self,
        spec: ReplicaSpec,
        secret: bytes,
        ready: Future[None],
        around: Callable[[], AbstractAsyncContextManager[None]],
        code: bytes | None,
    ) -> None:
        run_in_batches()
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve_within(around, spec, secret, ready, code))
        except BaseException as error:  # the thread's edge: nobody else would hear of it
            if not ready.done():
                ready.set_exception(error)
            else:
                logger.critical("the data loop of %s ended", spec.id, exc_info=error)
        finally:
            if self._watchdog is not None:
                self._watchdog.stop()
            if not ready.done():
                ready.set_exception(StartupError(f"replica {spec.id} ended while it started"))

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = uvloop.new_event_loop() if self._signals is None else self._signals.new_loop()
        return self._loop

    async def _serve_within(
        self,
        around: Callable[[], AbstractAsyncContextManager[None]],
        spec: ReplicaSpec,
        secret: bytes,
        ready: Future[None],
        code: bytes | None,
    ) -> None:
        async with around():
            await self._serve(spec, secret, ready, code)

    async def _serve(self, spec: ReplicaSpec, secret: bytes, ready: Future[None], code: bytes | None) -> None:
        self._context = ReplicaContext(spec.application, spec.deployment, spec.id)
        REPLICA.set(self._context)  # for all that begins from here
        # With the loop running, as under plain uvicorn: modules ask for it while they are imported.
        app = unpack(spec.target, code, spec.app_dir) if spec.code else load(spec.target, spec.app_dir)
        app = served(app, spec.target)
        # Any other app may know nothing of lifespans. As under uvicorn, it says so by raising.
        lifespan: Literal["on", "auto"] = "on" if spec.kind == "class" or isinstance(app, FastAPI) else "auto"
        if spec.kind == "class":
            app = calls = host_class(app, spec, self.deposits)
            self._instance = calls.instance
        else:
            app = host(app, spec.deployment)
            override(self._context, spec.live.batch)
        self.replica = Replica(
            app,
            name=spec.id,
            max_ongoing_requests=spec.live.max_ongoing_requests,
            max_open_websockets=spec.live.max_open_websockets,
            max_open_streams=spec.live.max_open_streams,
            on_disconnect=spec.on_disconnect,
            secret=secret,
            root_path=spec.root_path,
            trusted_without_hop=self._address.startswith("unix:"),
        )
        self._server = Server(self.replica, secret, lambda: self._is_up(spec.id, ready), lifespan)
        await self._server.serve(sockets=self.listeners)

    def _is_up(self, id: ReplicaId, ready: Future[None]) -> None:
        self._watchdog = Watchdog(id)
        self._watchdog.start(asyncio.get_running_loop())
        ready.set_result(None)

    async def _take_up(self, live: ReloadableOptions) -> None:
        assert self.replica is not None
        async with self._reconfiguring:
            self.live = None
            self.replica.limit(live)
            if self._instance is None:
                override(self._context, live.batch)
            else:
                self._instance.limit_batches(live.batch)
                await self._instance.reconfigure(live.user_config)
            self.live = live

    async def _drain(self, replica: Replica, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await replica.drain()
                # Once in a life: no transport tells anybody that its last byte has left.
                while self._server is not None and self._server.has_unsent_answers:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return False
        return True

    def _begin_stop(self, timeout: float) -> None:
        if self._server is not None:  # else the loop has not begun to turn
            drained = self.replica is not None and self.replica.draining
            if self.replica is not None:
                self.replica.wait_queue.close()  # its answers would never be complete
            self._server.end(min(timeout, CLOSING_S) if drained else timeout)

    # Sockets

    def _remove_socket(self) -> None:
        for listener in self.listeners:
            listener.close()
        if self._address.startswith("unix:"):
            Path(self._address.removeprefix("unix:")).unlink(missing_ok=True)


class Server(uvicorn.Server):
    """uvicorn, with a startup that tells why it failed and a shutdown that leaves no connection."""

    def __init__(
        self, gate: Replica, secret: bytes, started: Callable[[], None], lifespan: Literal["on", "auto"] = "on"
    ) -> None:
        """`lifespan`: "auto" for an app that may not know lifespans."""
        startup = Lifespan(gate)
        config = uvicorn.Config(
            startup,
            # what makes protocols; it need not be a class
            http=cast(Any, partial(UnauthenticatedConnection, gate=gate, secret=secret, strangers=Strangers())),
            ws=BoundedWebSocket,
            lifespan=lifespan,
            interface="asgi3",
            # What the client is, the hop says; what goes back to it, the proxy says.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            access_log=False,
            log_config=None,
            workers=1,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._startup = startup
        self._started = started
        logging.getLogger("uvicorn.error").addFilter(_not_reported)

    @property
    def has_unsent_answers(self) -> bool:
        """Whether a caller has yet to take what its last request was answered; WebSockets do not count."""
        return any(
            isinstance(connection, CallerConnection) and connection.transport.get_write_buffer_size()
            for connection in self.server_state.connections
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            raise StartupError(f"the app's startup failed:\n{self._startup.failure}") from None
        self._started()

    def end(self, timeout: float) -> None:
        """Begin to shut down; exchanges have `timeout` seconds."""
        # it goes to asyncio.wait_for
        self.config.timeout_graceful_shutdown = timeout  # type: ignore[assignment]
        # As a signal would: libraries that end streams when the server ends listen here.
        self.handle_exit(signal.SIGTERM, None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # At its deadline uvicorn cancels tasks, and leaves open a connection whose reader has stalled.
        grace = self.config.timeout_graceful_shutdown or 0
        deadline = asyncio.get_running_loop().call_later(grace, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()
            self._cut()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def run_in_batches() -> None:
    """Let this thread, and what it starts, run after whoever runs already, where the system knows such a wish.

    A proxy that passes on twenty requests is not interrupted by the replica that it wakes with the first: each finds
    more to do when it runs, with warm caches. Where a core is free nothing changes, and the share that everybody has of
    one that is not stays as it was. See `SCHED_BATCH` in sched(7).
    """
    if sys.platform == "linux":
        with suppress(OSError):  # some sandboxes forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def bind(address: Address) -> tuple[socket.socket, Address]:
    """A socket bound to the address, not listening yet, and the address it got.

    A Unix socket has mode 0600 in a private folder (made where it does not exist). Where its path is too long, or
    somebody else listens there, the socket is TCP on 127.0.0.1 instead, and a warning says why. Raises `InsecurePath`
    for a folder that other users could change, and `StartupError` for a TCP address that cannot be had, and for what
    is no address.
    """
    kind, _, place = address.partition(":")
    if kind == "unix" and place:
        try:
            return _bind_unix(place), address
        except (OSError, _Unsuitable) as error:
            logger.warning("cannot listen on %s (%s); listening on TCP at 127.0.0.1 instead", address, error)
            return _bind_tcp("127.0.0.1", 0)
    name, _, port = place.rpartition(":")
    if kind != "tcp" or not name or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise StartupError(f"{address!r} is not an address: unix:/path or tcp:host:port")
    return _bind_tcp(name, int(port))


class _Unsuitable(Exception):
    """Why a path cannot hold a private socket."""


def _bind_unix(path: str) -> socket.socket:
    length = len(os.fsencode(path))
    if length > LONGEST_SOCKET_PATH:
        raise _Unsuitable(f"the path has {length} bytes, a socket's has at most {LONGEST_SOCKET_PATH}")
    private.folder(Path(path).parent)
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)  # nobody connects in between: it does not listen, and the folder is closed
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_dead(path: str) -> None:
    """Remove the socket of a replica that ended without doing so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
    raise _Unsuitable("another process listens there")


def _bind_tcp(name: str, port: int) -> tuple[socket.socket, Address]:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            name.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot listen on tcp:{name}:{port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keep_alive(listener)
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on tcp:{name}:{port}: {error}") from None
    return listener, Address(f"tcp:{name}:{listener.getsockname()[1]}")


def _not_reported(record: logging.LogRecord) -> bool:
    """Keeps uvicorn from logging again what the gate has logged, with the request's id."""
    information: Any = record.exc_info
    return not (isinstance(information, tuple) and isinstance(information[1], Reported))
