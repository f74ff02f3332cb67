"""A replica or proxy process: how it obeys the orders of `host/orders.py`.

An engine constructs one object on the main thread of a new process, because the signal handlers of user code can be
installed only there. It calls `orders.serve` on several other threads: a start, a reconfiguration, a drain and a stop
may block at the same time, while probes continue. Requests are served on another thread.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

from app_toolkit.calls import handle
from app_toolkit.calls.remote import CallLoad, RemoteDataPlane
from app_toolkit.config import settings
from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.identity import AnySetKey
from app_toolkit.contract.replica_spec import ProxySpec, ReplicaSpec
from app_toolkit.control.application_specs import options_hash
from app_toolkit.control.diff import listed
from app_toolkit.control.reconcile import STOP_S
from app_toolkit.control.replica_state import Found, ProbePassed
from app_toolkit.edge.hosted_proxy import HostedProxy
from app_toolkit.edge.server import ProxyStatistics
from app_toolkit.edge.sharing import SharedPort
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import NotWell, ReplicaGone, StaleEpoch, StartupError, Unresponsive
from app_toolkit.exchange.router import Router
from app_toolkit.host.exit_functions import run_exit_functions
from app_toolkit.host.logs import begin_logs, process_context
from app_toolkit.host.preparation import Prepared, context_of, prepare
from app_toolkit.host.replica_edge import ReplicaEdge
from app_toolkit.host.replica_server import ReplicaServer
from app_toolkit.host.runtime_folder import LOGS
from app_toolkit.host.services import Services
from app_toolkit.host.store import last_epoch
from app_toolkit.interfaces import Location, ReloadableOptions, Watch
from app_toolkit.observability.access import AccessLog
from app_toolkit.observability.log_file import LogFile
from app_toolkit.observability.log_folder import LogFolder
from app_toolkit.observability.log_query import LogQuery, NodeLogs
from app_toolkit.observability.metrics import Sample, Source
from app_toolkit.observability.process_use import ProcessUse
from app_toolkit.observability.pushing import LAST_S, MetricsPush
from app_toolkit.observability.secrets import add_secrets, redacted, redacting
from app_toolkit.observability.slow_requests import SlowRequests
from app_toolkit.observability.slowest import SlowRequest, slowest
from app_toolkit.observability.snapshots import Snapshots, UserMetrics
from app_toolkit.observability.tracing import begin_tracing, end_tracing
from app_toolkit.observability.user_metrics import UserRegistry
from app_toolkit.replica.admission.replica import ReplicaStatistics
from app_toolkit.replica.signals import Signals
from app_toolkit.thread import ServerThread
from app_toolkit.types import Address, ReplicaId
from app_toolkit.userapp.loading import users_traceback
from app_toolkit.wire.sockets import close_in_children

logger = logging.getLogger("app_toolkit.host")


class ControlledProcess:
    """A replica or a proxy, and what the orders of `host/orders.py` have it do."""

    server: ReplicaServer | HostedProxy

    def __init__(self, name: ReplicaId, services: Services) -> None:
        self.name = name
        self.services = services
        self.epoch = 0
        self.phase = "starting"
        #: When the process began to serve, on its monotonic clock; None: it has not.
        self.running_since: float | None = None
        #: None until `start` is called.
        self.replica_set: AnySetKey | None = None
        self.template_hash = ""
        self.location: Future[Location] = Future()
        # User code cannot block this thread.
        self._metrics = ServerThread("app-toolkit metrics", "the event loop of the metrics")
        self._metrics_stopped = asyncio.Event()

    @property
    def reloadable(self) -> ReloadableOptions | None:
        """The reloadable options that a replica uses now; None: it is no replica, or they are not known."""
        return None

    def check_epoch(self, epoch: int) -> None:
        """Raise `StaleEpoch` if an earlier order had a later epoch."""
        if epoch < self.epoch:
            raise StaleEpoch(f"an order of epoch {epoch} came after one of epoch {self.epoch}")
        self.epoch = epoch

    def describe(self) -> Found | None:
        """Return the state of this process, for a controller that did not start it. None: it has no order to start."""
        if self.replica_set is None:
            return None
        return Found(
            self.name,
            self.replica_set,
            self.template_hash,
            phase_name=self.phase,
            location=self.location.result() if self.phase != "starting" else None,
            reloadable=self.reloadable,
            running_s=0.0 if self.running_since is None else time.monotonic() - self.running_since,
        )

    def started(self) -> Location:
        """Wait until the process serves, and return its location. Raises the error of a failed start."""
        return self.location.result()

    def serve(self, spec: Any, secret: bytes) -> Location:
        """Serve as the spec says, and return the location. `start` calls this once."""
        raise NotImplementedError

    def start(self, spec: Any, replica_set: AnySetKey, template_hash: str, secret: bytes) -> Location:
        """Start serving. A second call only returns the result of the first one."""
        if self.replica_set is None:
            self.replica_set, self.template_hash = replica_set, template_hash
            try:
                if last_epoch(self.services.store) > self.epoch:
                    # The controller that ordered the start was replaced meanwhile. The later one does not know this
                    # process.
                    os._exit(0)
                with redacting():
                    location = self.serve(spec, secret)
            except BaseException as error:
                self.location.set_exception(error)
            else:
                # The objects that exist now live as long as the process. Without a freeze every full garbage
                # collection traverses them, which stops all requests for 0.1 s.
                gc.collect()
                gc.freeze()
                self.phase = "running"
                self.running_since = time.monotonic()
                push = MetricsPush(self.name, self.snapshots(), self.services.push_metrics)
                self._metrics.start(partial(_push_metrics, push, self._metrics, self._metrics_stopped))
                self.location.set_result(location)
        return self.location.result()

    def probe(self, timeout_s: float) -> ProbePassed:
        """Check that the process serves, and return what it uses."""
        try:
            probe = self.server.probe(timeout_s)
        except (Unresponsive, ReplicaGone, NotWell):
            raise
        except Exception as error:
            raise NotWell(redacted(users_traceback(error))) from error
        if not isinstance(probe, ReplicaStatistics):
            return ProbePassed(self.name)
        return ProbePassed(self.name, probe.connections, probe.received, psutil.Process().memory_info().rss)

    def drain(self, timeout_s: float) -> None:
        self.phase = "draining"
        self.server.drain(timeout_s)

    def stop(self, timeout_s: float) -> None:
        self.phase = "stopping"
        self.server.stop(timeout_s)
        self._metrics.call(self._metrics_stopped.set)
        self._metrics.join(2 * LAST_S)
        end_tracing()

    def snapshots(self) -> Snapshots:
        """Return the pushes of the metrics of this process, once it serves."""
        raise NotImplementedError

    def statistics(self) -> Any:
        """Return the current statistics, or None if this process does not serve yet or any more."""
        if self.phase == "starting":
            return None
        try:
            return self.server.statistics()
        except ReplicaGone:
            return None

    @property
    def slow(self) -> SlowRequests | None:
        """The slowest requests that this process has received, or calls that it has made; None: it does not serve."""
        return None

    def slow_requests(self, name: str | None, last: int) -> list[SlowRequest]:
        """Return at most `last` of the slowest requests, or calls that handles have made.

        `name`: as of `Client.slow`.
        """
        return [] if self.slow is None else self.slow.slowest(name, last)

    def calls_of(self, request_ids: Collection[str]) -> list[SlowRequest]:
        """Return the slow calls that handles have made for these requests."""
        return [] if self.slow is None else self.slow.calls_of(request_ids)

    def read_logs(self, query: LogQuery, last: int, after: Mapping[str, str] | None) -> NodeLogs:
        """Return what the log files of this node have for a query. `last` and `after` are those of `LogFolder.read`.

        Raises `OSError` or `InsecurePath` if the files cannot be read.
        """
        folder = self.services.log_folder
        if folder is None:
            return NodeLogs()
        with closing(LogFolder(folder)) as opened:
            return opened.read(query, last, after)


class ReplicaProcess(ControlledProcess):
    server: ReplicaServer

    def __init__(self, name: ReplicaId, services: Services, prepared: Prepared | None = None) -> None:
        """`prepared`: this process is a fork of one that has prepared. None: it prepares when it starts to serve."""
        super().__init__(name, services)
        self._signals = Signals()
        self.server = ReplicaServer(self._signals)
        self._prepared = prepared
        #: The metrics of user code when this process was forked. None: it prepares itself.
        self._inherited: UserMetrics | None = None
        #: Accepts clients; None: proxies accept them.
        self.edge: ReplicaEdge | None = None

    @property
    def reloadable(self) -> ReloadableOptions | None:
        return self.server.reloadable

    def serve(self, spec: ReplicaSpec, secret: bytes) -> Location:
        if self._prepared is None:
            self._prepared = prepare(spec, self.services)
        else:
            begin_logs(self.services.log_folder, context_of(spec), user_code=True)
            self._inherited = UserRegistry().collect()
        begin_tracing(context_of(spec))
        return self._serve(self._prepared, self._prepared.spec(spec), secret)

    def _serve(self, prepared: Prepared, spec: ReplicaSpec, secret: bytes) -> Location:
        """Import the app, unless that is done, and serve it on a thread with an event loop."""
        # The path of a socket has at most 107 bytes, and an ID may be longer, so its hash is the file name.
        file = self.services.folder.path / sha256(spec.id.encode()).hexdigest()[:16]
        # On a cluster with one node, no port is opened.
        remote_host = self.services.address if len(self.services.nodes()) > 1 else None
        self.edge = None if spec.edge is None else self._new_edge(spec, HTTPOptions(**spec.edge))
        around = partial(_calling, spec, secret, self.services, self.edge)
        try:
            address = Address(f"unix:{file}.sock")
            local = self.server.start(
                spec, secret, address, remote_host, around, prepared.code, prepared.app, self.edge
            )
        except BaseException:  # which is raised again
            self._run_exit_functions(STOP_S)
            raise
        location = Location(local, self.services.node, self.server.remote_address)
        if self.edge is None or spec.edge is None:
            return location
        return replace(location, clients=self.edge.address, edge=options_hash(spec.edge))

    def _new_edge(self, spec: ReplicaSpec, options: HTTPOptions) -> ReplicaEdge:
        listener = self.services.listener(options.host, options.port)
        if listener is None:
            raise StartupError(
                f"edge = 'replica' needs the socket that `app-toolkit run` binds at its start, and this instance has "
                f"none at {options.host}:{options.port}: use edge = 'proxy'"
            )
        close_in_children(listener)
        access = access_log(options, self.services, self.name)
        return ReplicaEdge(options, listener, spec.id, spec.replica_set, access)

    def stop(self, timeout_s: float) -> None:
        """End the app, and then do what Python does when a program ends, all within `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        super().stop(timeout_s)
        files = None if self._prepared is None else self._prepared.files
        if files is not None and (written := files.written()):
            logger.warning(
                "%s: written below the files of a revision, which the next revision does not have; copy them from %s "
                "to the folder that %s names",
                listed(written),
                files.folder,
                settings.DATA,
            )
        self._run_exit_functions(until - time.monotonic())

    def _run_exit_functions(self, timeout_s: float) -> None:
        if self.server.has_ended:  # otherwise the app still runs, and the process is killed
            run_exit_functions(self.name, self._signals, timeout_s)

    def snapshots(self) -> Snapshots:
        assert self.replica_set is not None, "the process serves"
        replica_set = self.replica_set.name
        use = ProcessUse("replica", replica_set, self.name, self.server.lag_s)
        sources: list[Source] = [partial(self.server.samples, replica_set), _samples_of_calls]
        if self.edge is not None:
            sources.append(self.edge.samples)
        return Snapshots(
            "replica", replica_set, sources, [use.samples], UserRegistry().collect, inherited=self._inherited
        )

    def reconfigure(self, reloadable: ReloadableOptions, timeout_s: float) -> None:
        add_secrets(reloadable.secrets)
        with redacting():
            self.server.reconfigure(reloadable, timeout_s)

    def calling(self) -> Mapping[str, CallLoad]:
        """Return the calls of the handles of this replica that wait or are ongoing, by `APPLICATION/DEPLOYMENT`."""
        plane = handle.data_plane()
        loads = plane.call_loads() if isinstance(plane, RemoteDataPlane) else {}
        return {key.name: load for key, load in loads.items()}

    def edge_statistics(self) -> ProxyStatistics | None:
        """Return the statistics of the clients that this replica has accepted; None: it accepts none."""
        return None if self.edge is None else self.edge.statistics()

    @property
    def slow(self) -> SlowRequests | None:
        plane = handle.data_plane()
        return plane.slow if isinstance(plane, RemoteDataPlane) else None

    def slow_requests(self, name: str | None, last: int) -> list[SlowRequest]:
        calls = super().slow_requests(name, last)
        requests = None if self.edge is None else self.edge.slow
        return calls if requests is None else slowest([*requests.slowest(name, last), *calls], last)


class ProxyProcess(ControlledProcess):
    server: HostedProxy

    def serve(self, spec: ProxySpec, secret: bytes) -> Location:
        begin_logs(self.services.log_folder, process_context(spec.id))
        begin_tracing(process_context(spec.id))
        options, services = HTTPOptions(**spec.options), self.services
        node = services.node
        shared = options.proxies_per_node > 1 or list(services.nodes()).count(services.address) > 1
        self.server = HostedProxy(
            lambda: ProxyState(secret, Router, node, access_log(options, services, self.name)),
            options,
            partial(services.watch, self.name),
            services.listener(options.host, options.port)
            or (SharedPort(options, services.folder.path) if shared else None),
            partial(services.report, self.name),
        )
        return Location(self.server.start(), node)

    def snapshots(self) -> Snapshots:
        use = ProcessUse("proxy", "", self.name, self.server.lag_s)
        return Snapshots("proxy", "", [partial(self.server.samples, self.name)], [use.samples])

    @property
    def slow(self) -> SlowRequests | None:
        return None if self.phase == "starting" else self.server.slow


async def _push_metrics(push: MetricsPush, thread: ServerThread, stopped: asyncio.Event) -> None:
    thread.report_ready()
    await push.run(stopped)


def _samples_of_calls() -> Iterable[Sample]:
    """Return the samples of the calls of this process."""
    plane = handle.data_plane()
    return plane.samples() if isinstance(plane, RemoteDataPlane) else ()


def access_log(options: HTTPOptions, services: Services, name: ReplicaId) -> AccessLog | None:
    """Return the access log of the process of this name, which accepts clients; None: the options want none."""
    if not options.access_log:
        return None
    if options.access_log == "-":
        return AccessLog(_write_out)
    if isinstance(options.access_log, str):
        return AccessLog(LogFile(Path(options.access_log), most=sys.maxsize).write)
    return AccessLog(LogFile(services.folder.folder(LOGS) / f"access-{name}.log").write)


def _write_out(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


@contextlib.asynccontextmanager
async def _calling(
    spec: ReplicaSpec, secret: bytes, services: Services, edge: ReplicaEdge | None
) -> AsyncIterator[None]:
    """Let the handles of a replica call other deployments, on the event loop that serves the replica.

    `edge`: its requests use the same routers and connections. None: the replica accepts no clients.
    """
    with services.payloads() as payloads:
        outbound = None if edge is None else edge.outbound(secret, services.node)
        live = spec.replica_set.live_revision.name
        callers = RemoteDataPlane(secret, live, spec.callees, services.node, payloads, outbound=outbound)
        handle.use(callers)  # until the process ends: a handle must never call objects in this process instead
        watch: Watch = partial(services.watch, spec.id)
        if edge is not None:
            watch = edge.watching(watch)
        life = (outbound or callers).run(watch, partial(services.report, spec.id))
        following = asyncio.get_running_loop().create_task(life)
        try:
            yield
        finally:
            if edge is not None:
                edge.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await callers.aclose()
            if outbound is not None:
                await outbound.aclose()
