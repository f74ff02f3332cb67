"""The process of a replica: uvicorn on its own sockets and on a thread of its own, controlled from other threads."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import wait
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import uvicorn
import uvicorn.lifespan.on
import websockets
from fastapi import FastAPI

from app_toolkit import private
from app_toolkit.calls.batching import BATCH_COUNTS, buffered, override
from app_toolkit.calls.hosted_object import HostedObject
from app_toolkit.calls.payload_store import PayloadStore
from app_toolkit.calls.served_calls import host_class
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.errors import NotWell, ReplicaGone, StartupError, Unresponsive
from app_toolkit.exchange.session_pins import Pins
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.observability.context import REPLICA, ReplicaContext, use_session_pin
from app_toolkit.observability.metrics import DEPLOYMENT, Sample, declare
from app_toolkit.observability.slow_start import reported_if_slow
from app_toolkit.observability.tracebacks import shortened
from app_toolkit.observability.watchdog import Watchdog, new_loop
from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.replica.admission.replica_request import Reported
from app_toolkit.replica.http.connection import CallerConnection
from app_toolkit.replica.http.reach import ask
from app_toolkit.replica.http.unauthenticated import UnauthenticatedConnection, UnauthenticatedPeers
from app_toolkit.replica.http.websocket import BoundedWebSocket
from app_toolkit.replica.signals import Signals
from app_toolkit.thread import ServerThread
from app_toolkit.types import Address, LoopKind, ReplicaId
from app_toolkit.userapp.cors import cors_of
from app_toolkit.userapp.loading import Lifespan, host, load, unpack, users_traceback
from app_toolkit.userapp.target import served
from app_toolkit.wire import hop
from app_toolkit.wire.sockets import check_descriptors, close_in_children, keep_alive
from app_toolkit.wire.uvicorn_server import EventServer

REPLICA_ONGOING = declare(
    "app_toolkit_replica_ongoing_requests",
    "gauge",
    "Requests and calls that hold a slot of the replica.",
    (*DEPLOYMENT, "replica"),
    "replicas",
)
REPLICA_STREAMS = declare(
    "app_toolkit_replica_open_streams",
    "gauge",
    "Streamed responses of the replica that are open and hold no slot.",
    (*DEPLOYMENT, "replica"),
    "replicas",
)
REPLICA_WEBSOCKETS = declare(
    "app_toolkit_replica_open_websockets",
    "gauge",
    "WebSockets of the replica that are open.",
    (*DEPLOYMENT, "replica"),
    "replicas",
)
REPLICA_BUFFERED = declare(
    "app_toolkit_replica_buffered_items",
    "gauge",
    "Items in the replica that wait for their batch.",
    (*DEPLOYMENT, "replica"),
    "replicas",
)


logger = logging.getLogger("app_toolkit.replica")

BACKLOG = 2048
LONGEST_SOCKET_PATH = 107
"""The longest path of a Unix socket in bytes. Linux has 108 bytes, one of them for the terminating null byte."""
FIRST_PROBE_S = 30.0
"""Time limit of the first probe in seconds. The app's own tasks may still be warming up."""
LEAST_S = 0.1
"""Minimum time in seconds for the answer over the socket, even if the event loop answered late."""
DRAIN_POLL_S = 0.05
"""Interval in seconds at which a drain checks whether all bytes have been sent."""
CLOSING_S = 1.0
"""Time in seconds that clients of WebSockets have to answer the close code 1012."""
SHUTDOWN_S = 10.0
"""Time in seconds that the shutdown of a lifespan may take after the last exchange."""
SERVER_FOLDERS = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (uvicorn, websockets))
"""The folders of the code that logs with `uvicorn.error` itself."""


class ClientEdge(Protocol):
    """What accepts clients of the instance on the data loop of a replica, beside the server for callers."""

    async def open(self, address: Address, server: "Server") -> None:
        """Begin to accept clients, and return once that is done.

        `address`: the one at which callers reach the replica. `server`: serves these callers, and has started.
        """
        ...

    async def drain(self, timeout_s: float) -> None:
        """Accept no more clients, and wait at most this time until all of their requests are answered."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Drain, and close all connections after at most this time."""
        ...


class ReplicaServer:
    """One replica, as the threads that control it see it.

    This class starts a thread that runs the data loop. Call the methods from other threads. A handler that blocks the
    data loop does not delay a method beyond its timeout. A server serves only once.
    """

    def __init__(self, signals: Signals | None = None) -> None:
        """`signals` allows user code to install signal handlers. None: user code cannot, as Python allows it only on
        the main thread.
        """
        self._signals = signals
        self._thread: ServerThread | None = None
        self._address = Address("")
        self._secret = b""
        #: The address for callers on other nodes, once the replica serves; None: callers on other nodes cannot connect.
        self.remote_address: Address | None = None
        #: The options that the replica started with or applied last; None: not known (not started, or the last change
        #: failed).
        self.reloadable: ReloadableOptions | None = None
        self.listeners: list[socket.socket] = []
        # Set on the data loop while the replica starts.
        self._server: Server | None = None
        self.replica: Replica | None = None
        self._hosted: HostedObject | None = None
        self._edge: ClientEdge | None = None
        self._ending: asyncio.Task[None] | None = None
        self._reconfiguring = asyncio.Lock()
        #: Set once the app has started; None: no caller waits for the data loop yet.
        self._watchdog: Watchdog | None = None
        #: For a class: the payloads that are transferred out-of-band.
        self.payloads = PayloadStore()

    def start(
        self,
        spec: ReplicaSpec,
        secret: bytes,
        address: Address,
        remote_host: str | None = None,
        around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        code: bytes | None = None,
        app: Any = None,
        edge: ClientEdge | None = None,
    ) -> Address:
        """Import the app, run its startup, listen, and answer one probe. Return the address of the socket.

        `address`: `unix:/path`, or `tcp:host:port` with port 0 for any free port. If the Unix socket cannot be created,
        the replica listens on a free TCP port of 127.0.0.1. `remote_host`: also listen on a free port of this host, for
        callers on other nodes; there every caller must prove that it knows the secret. `around`: a context that is
        entered on the data loop before the app is loaded and left after the app has ended. `code`: the packed target,
        if `spec.code` names one. `app`: the target itself. None: it is loaded on the data loop.
        `edge`: accepts clients once the app has started. None: the replica has only callers.

        Raises `TargetError`, `PlanningError`, or `StartupError` with the traceback of the app.
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
        self.reloadable = spec.reloadable
        self._edge = edge
        for listener in self.listeners:
            close_in_children(listener)
        self._thread = ServerThread(
            f"app-toolkit data {spec.id}",
            f"the data loop of {spec.id}",
            partial(self._new_loop, spec.application_config.loop),
        )
        serve = partial(self._serve_within, around, self._thread.report_ready, spec, secret, code, app)
        try:
            self._thread.start(serve, self._stop_watchdog)
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
        """Check whether the data loop, which runs user code, still responds.

        If the replica serves a class with a `check_health`, call that as well. Then send a probe to the replica through
        the Unix socket that callers use.

        Raises `Unresponsive` if there is no answer within `timeout` seconds, unless a debugger holds the event loop.
        Raises `ReplicaGone` if the event loop has ended. Raises `NotWell` if the process has no free file descriptor or
        callers cannot connect to the socket. Raises what `check_health` raises.
        """
        until = time.monotonic() + timeout
        replica, thread = self._alive()

        async def read() -> ReplicaStatistics:
            check_descriptors()
            if self._hosted is not None:
                await self._hosted.check_health()
            return replica.statistics()

        asked = thread.submit(read())
        if not wait((asked,), timeout).done:  # a `TimeoutError` may also be the result
            asked.cancel()
            if self._watchdog is not None and self._watchdog.is_debugging:
                return replica.statistics()
            raise self._unresponsive(replica, timeout)
        answer = asked.result()
        if self._address.startswith("unix:"):
            try:
                ask(self._address.removeprefix("unix:"), self._secret, max(until - time.monotonic(), LEAST_S))
            except TimeoutError:
                raise self._unresponsive(replica, timeout) from None
            except OSError as error:
                raise NotWell(f"callers cannot reach {replica.name} at {self._address}: {error}") from error
        return answer

    def _unresponsive(self, replica: Replica, timeout: float) -> Unresponsive:
        why = f"the data loop of {replica.name} did not answer within {timeout:g} s"
        blocked = None if self._watchdog is None else self._watchdog.blocked()
        if blocked is not None:  # otherwise its iterations are slow, or the app's check_health is
            why = f"{why}: its event loop is {blocked}"
        return Unresponsive(why, replica.running_ids())

    def reconfigure(self, reloadable: ReloadableOptions, timeout: float) -> None:
        """Apply options that changed. Changes are applied one after another; running requests continue.

        Raises `ReconfigureError` with the traceback of the user's code. Raises `TimeoutError` if this takes longer than
        `timeout` seconds; a `reconfigure` that is `async` is then cancelled. Raises `ReplicaGone`.
        """
        replica, thread = self._alive()
        asked = thread.submit(self._apply_options(reloadable))
        try:
            asked.result(timeout)
        except TimeoutError:
            asked.cancel()
            raise TimeoutError(f"{replica.name} was not reconfigured within {timeout:g} s") from None

    def statistics(self) -> ReplicaStatistics:
        """Return the current statistics without asking the data loop. Raises `ReplicaGone` if that loop has ended."""
        return replace(self._alive()[0].statistics(), buffered=buffered())

    def samples(self, replica_set: str) -> Iterator[Sample]:
        """Yield the samples of all metrics of this replica, except those of its calls. `replica_set`: its name."""
        yield from BATCH_COUNTS.samples(lambda _: replica_set)
        if self.replica is not None:
            statistics, labels = self.replica.statistics(), (replica_set, self.replica.name)
            yield Sample(REPLICA_ONGOING, labels, [statistics.ongoing])
            yield Sample(REPLICA_STREAMS, labels, [statistics.streams])
            yield Sample(REPLICA_WEBSOCKETS, labels, [statistics.websockets])
            yield Sample(REPLICA_BUFFERED, labels, [buffered()])

    def lag_s(self) -> float | None:
        """Return the longest recent delay of the data loop in seconds; None: the replica has not started."""
        return None if self._watchdog is None else self._watchdog.lag_s()

    def drain(self, timeout: float) -> bool:
        """Admit no more requests, and wait until the running ones have ended and their responses have been sent.

        The running ones are HTTP requests, their background tasks, and the handlers of WebSockets. WebSockets are
        closed with 1012 at once, so that their clients connect to another replica meanwhile. Return whether all of this
        has ended within `timeout` seconds; what has not is logged. Raises `ReplicaGone`.
        """
        replica, thread = self._alive()
        asked = thread.submit(self._drain(replica, timeout))
        try:
            return asked.result(timeout + 1)
        except TimeoutError:
            # The event loop is blocked. It admits no requests meanwhile, and drains when it continues.
            return False

    def stop(self, timeout: float) -> bool:
        """Close WebSockets (1012), wait for running exchanges, abort the rest, and run the app's shutdown.

        Exchanges have `timeout` seconds. After a `drain`, exchanges get only `CLOSING_S` more, and the shutdown has the
        remaining time. Return whether all of this has ended. If not, the event loop is blocked, and the process must be
        killed. Does nothing if the replica was not started or has stopped already.
        """
        if self._thread is None:
            return True
        self._thread.call(self._begin_stop, timeout)
        if not self._thread.join(timeout + SHUTDOWN_S):
            return False
        self._remove_socket()
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the app was started, and its event loop has ended."""
        return self._thread is not None and self._thread.has_ended

    def __repr__(self) -> str:
        return f"<ReplicaServer {self.replica!r} at {self._address or 'no address'}>"

    def _alive(self) -> tuple[Replica, ServerThread]:
        if self._thread is None or self.replica is None:
            raise ReplicaGone("the replica has not started")
        if not self._thread.is_running:
            raise ReplicaGone(f"the data loop of {self.replica.name} has ended")
        return self.replica, self._thread

    # On the data thread

    def _new_loop(self, kind: LoopKind) -> asyncio.AbstractEventLoop:
        if self._edge is None:  # clients wake it, not a proxy
            run_in_batches()
        return new_loop(kind) if self._signals is None else self._signals.new_loop(kind)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()

    async def _serve_within(
        self,
        around: Callable[[], AbstractAsyncContextManager[None]],
        started: Callable[[], None],
        spec: ReplicaSpec,
        secret: bytes,
        code: bytes | None,
        app: Any,
    ) -> None:
        async with around():
            await self._serve(started, spec, secret, code, app)

    async def _serve(
        self, started: Callable[[], None], spec: ReplicaSpec, secret: bytes, code: bytes | None, app: Any
    ) -> None:
        self._context = ReplicaContext(spec.application, spec.deployment, spec.id, spec.revision)
        REPLICA.set(self._context)  # for everything that starts from here on
        if spec.is_ingress:
            pins = Pins(hop.token(secret), spec.replica_set.main)
            use_session_pin(pins.attach("", spec.id))
        if app is None:
            # The event loop runs already, as under plain uvicorn: modules ask for it while they are imported.
            app = unpack(spec.target, code, spec.app_dir) if spec.code else load(spec.target, spec.app_dir)
        app = served(app, spec.target)
        # Any other app may not support lifespans. As under uvicorn, it shows that by raising.
        lifespan: Literal["on", "auto"] = "on" if not spec.is_ingress or isinstance(app, FastAPI) else "auto"
        cors = cors_of(app) if spec.is_ingress else ()
        if not spec.is_ingress:
            app = calls = host_class(app, spec, self.payloads)
            self._hosted = calls.hosted
        else:
            app = host(app, spec.deployment)
            override(self._context, spec.reloadable.batch)
        self.replica = Replica(
            app,
            name=spec.id,
            max_ongoing_requests=spec.reloadable.max_ongoing_requests,
            max_open_websockets=spec.reloadable.max_open_websockets,
            max_open_streams=spec.reloadable.max_open_streams,
            on_disconnect=spec.config.on_disconnect,
            cors=cors,
            secret=secret,
            root_path=spec.root_path,
            trusted_without_hop=self._address.startswith("unix:"),
            stream_log=spec.application_config.stream_log,
            keys=self._hosted,
        )
        self._server = Server(self.replica, secret, partial(self._is_up, spec.id, started), lifespan, self._open_edge)
        await self._server.serve(sockets=self.listeners)

    def _is_up(self, id: ReplicaId, started: Callable[[], None]) -> None:
        self._watchdog = Watchdog(id)
        self._watchdog.start(asyncio.get_running_loop())
        started()

    async def _open_edge(self) -> None:
        if self._edge is not None and self._server is not None:
            await self._edge.open(self._address, self._server)

    async def _apply_options(self, reloadable: ReloadableOptions) -> None:
        assert self.replica is not None
        async with self._reconfiguring:
            self.reloadable = None
            self.replica.limit(reloadable)
            if self._hosted is None:
                override(self._context, reloadable.batch)
            else:
                self._hosted.limit_batches(reloadable.batch)
                await self._hosted.reconfigure(reloadable.user_config)
            self.reloadable = reloadable

    async def _drain(self, replica: Replica, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                if self._server is not None:
                    self._server.close_websockets()
                if self._edge is not None:
                    await self._edge.drain(timeout)
                await replica.drain()
                # Polled once in the life of a replica: a transport does not report when its last byte was sent.
                while self._server is not None and self._server.has_unsent_responses:  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            replica.log_unfinished(timeout)
            return False
        return True

    def _begin_stop(self, timeout: float) -> None:
        if self._server is not None:  # otherwise the event loop has not started
            drained = self.replica is not None and self.replica.draining
            timeout = min(timeout, CLOSING_S) if drained else timeout
            if self._edge is None:
                self._end(timeout)
            else:
                self._ending = asyncio.get_running_loop().create_task(self._end_edge(self._edge, timeout))

    async def _end_edge(self, edge: ClientEdge, timeout: float) -> None:
        """Close the connections of clients, and then those of callers."""
        until = time.monotonic() + timeout
        try:
            await edge.stop(timeout)
        finally:
            self._end(max(until - time.monotonic(), 0.0))

    def _end(self, timeout: float) -> None:
        assert self._server is not None, "the event loop has started"
        if self.replica is not None:
            self.replica.wait_queue.close()  # the responses of the wait queue never complete by themselves
        self._server.end(timeout)

    # Sockets

    def _remove_socket(self) -> None:
        for listener in self.listeners:
            listener.close()
        if self._address.startswith("unix:"):
            Path(self._address.removeprefix("unix:")).unlink(missing_ok=True)


class Server(EventServer):
    """A uvicorn server that keeps the reason why its startup failed."""

    def __init__(
        self,
        replica: Replica,
        secret: bytes,
        started: Callable[[], None],
        lifespan: Literal["on", "auto"] = "on",
        begin_beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create a server.

        Parameters:
            replica: Admits the requests.
            secret: Authenticates callers.
            started: Is called once the server accepts callers, and `begin_beside` has returned.
            lifespan: "auto" for an app that may not support lifespans.
            begin_beside: Begins what serves beside this server. None: nothing does.
        """
        startup = Lifespan(replica)
        config = uvicorn.Config(
            startup,
            # the factory of the protocols; it need not be a class
            http=cast(
                Any,
                partial(
                    UnauthenticatedConnection, replica=replica, secret=secret, unauthenticated=UnauthenticatedPeers()
                ),
            ),
            ws=BoundedWebSocket,
            lifespan=lifespan,
            interface="asgi3",
            # The hop field describes the client; the proxy sets the header fields of the response.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            log_config=None,
            workers=1,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self.replica = replica
        self._startup = startup
        self._started = started
        self._begin_beside = begin_beside
        log = logging.getLogger("uvicorn.error")
        log.addFilter(_not_reported)
        log.addFilter(_is_not_routine)

    @property
    def has_unsent_responses(self) -> bool:
        """Whether the last response on a connection is not completely sent. WebSockets do not count."""
        return any(
            isinstance(connection, CallerConnection) and connection.transport.get_write_buffer_size()
            for connection in self.server_state.connections
        )

    def close_websockets(self) -> None:
        """Close all WebSockets with 1012."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedWebSocket):
                connection.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        log = logging.getLogger("uvicorn.error")
        log.addFilter(_is_no_startup_failure)
        try:
            with reported_if_slow("the startup of the app"):
                await super().startup(sockets)
        except SystemExit:
            raise StartupError(f"the app's startup failed:\n{shortened(str(self._startup.failure))}") from None
        finally:
            log.removeFilter(_is_no_startup_failure)
        if self._begin_beside is not None:
            await self._begin_beside()
        self._started()

    @property
    def app_state(self) -> dict[str, Any]:
        """The state of the app's lifespan."""
        state: dict[str, Any] = self.lifespan.state
        return state

    def end(self, timeout: float) -> None:
        """Begin to shut down. Running exchanges have `timeout` seconds."""
        # uvicorn passes the value to asyncio.wait_for
        self.config.timeout_graceful_shutdown = timeout  # type: ignore[assignment]
        # As a signal would: libraries that end streams when the server stops listen to this event.
        self.handle_exit(signal.SIGTERM, None)


def run_in_batches() -> None:
    """Give this thread, and the threads that it starts, the scheduling policy for batch work, if the system has one.

    A replica that a proxy wakes with the first of twenty requests then does not preempt the proxy. Each process finds
    more to do when it runs, and its caches are warm. If a core is free, nothing changes. The share of a busy core that
    each thread gets does not change either. See `SCHED_BATCH` in sched(7).
    """
    if sys.platform == "linux":
        with suppress(OSError):  # some sandboxes forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def bind(address: Address) -> tuple[socket.socket, Address]:
    """Return a socket that is bound to the address and does not listen yet, and the address that it is bound to.

    A Unix socket has mode 0600 in a private folder, which is created if it does not exist. If the path is too long, or
    another process listens there, the socket is TCP on 127.0.0.1 instead, and a warning gives the reason.

    Raises `InsecurePath` if other users could change the folder. Raises `StartupError` if the TCP address is not
    available or the text is not an address.
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
    """The reason why a path cannot be used for a private socket."""


def _bind_unix(path: str) -> socket.socket:
    length = len(os.fsencode(path))
    if length > LONGEST_SOCKET_PATH:
        raise _Unsuitable(f"the path has {length} bytes, a socket's has at most {LONGEST_SOCKET_PATH}")
    private.folder(Path(path).parent)
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)  # nothing connects before: the socket does not listen, the folder is private
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_dead(path: str) -> None:
    """Remove the socket of a replica that ended without removing it. Raises `_Unsuitable` if a process listens
    there."""
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


def _is_no_startup_failure(record: logging.LogRecord) -> bool:
    """Prevent uvicorn from logging why a startup failed. The start raises it, and the status shows it."""
    return record.pathname != uvicorn.lifespan.on.__file__ or record.levelno < logging.ERROR


def _not_reported(record: logging.LogRecord) -> bool:
    """Prevent uvicorn from logging an error that the replica has logged already, with the id of the request."""
    information: Any = record.exc_info
    return not (isinstance(information, tuple) and isinstance(information[1], Reported))


def _is_not_routine(record: logging.LogRecord) -> bool:
    """Prevent uvicorn from logging below a warning, as it does at each start, unless its logger has a level of its own.

    Apps use the same logger, and their records are shown.
    """
    return (
        record.levelno >= logging.WARNING
        or not record.pathname.startswith(SERVER_FOLDERS)
        or logging.getLogger(record.name).level != logging.NOTSET
    )
