"""The client of a running instance: sends commands to the controller, and waits for their effects."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import ClassVar, Protocol, Self, TypeVar

from app_toolkit.config.models import ApplicationSpec, Capability, HTTPOptions
from app_toolkit.config.options import EngineName
from app_toolkit.control.command import Command, Removal
from app_toolkit.control.queries import GetApplication, GetEvents, GetStatus
from app_toolkit.control.status import InstanceStatus, Load
from app_toolkit.errors import ConfigError, InstanceEnded, WaitTimeout
from app_toolkit.interfaces import Callee
from app_toolkit.observability.event_log import EventPage, LoggedEvent
from app_toolkit.observability.log_query import MOST_RECORDS, LogPage, LogQuery
from app_toolkit.observability.slowest import SlowRequest
from app_toolkit.operate.progress import Row, ended, is_serving, rows, unfinished

R = TypeVar("R")

Plan = Callable[[str], ApplicationSpec]
"""Imports the app of this name and plans it. Reports its errors to the user, and raises `SystemExit` then."""

CANCEL_POLL_S = 0.2
"""Seconds between two checks whether a wait for a child process has been cancelled."""

WATCH_POLL_S = 0.5
"""The maximum duration of one wait for a change in seconds. A Ctrl-C takes effect when the wait ends."""

WAIT_S = 600.0
"""Seconds to wait by default until an application is up. Starting a large model can take minutes."""


class Client(ABC):
    """A connection to one instance: a controller with its proxies and replicas. Its methods block."""

    owner: str | None = None
    """The lease that holds the applications of this process; None: this process has no lease."""

    is_local = False
    """Whether the instance runs on a local cluster, which ends with this client."""

    @abstractmethod
    def execute(self, command: Command[R]) -> R:
        """Have the controller perform a command, and return its result.

        Raises the error of the command, and `InstanceEnded` if the instance was shut down.
        """

    engine: ClassVar[EngineName | None] = None
    """What runs the replicas; None: not known."""

    def check_address(self, address: str) -> None:  # noqa: B027
        """Raise `ConfigError` if this is the address of another instance than that of this client."""

    @abstractmethod
    def acquire_lease(self) -> None:
        """Take a lease, and renew it from then on. Does nothing if this client has one."""

    @abstractmethod
    def load(self) -> Mapping[str, Load]:
        """Return where requests wait or run now, by the name of the replica set's key (`ReplicaSetStatus.key`)."""

    @abstractmethod
    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        """Return log records of all nodes, in the order of their time, with at most `MOST_PAGE_BYTES` together.

        Parameters:
            query: Selects the records.
            last: Without `after`: at most so many records, the newest ones.
            after: The positions of the page before: only records that were written since. None: there was none.
        """

    def links(self) -> Mapping[str, str]:
        """Return the addresses of other pages about the instance, such as a dashboard of the engine, by name."""
        return {}

    @abstractmethod
    def slow(self, name: str | None = None, last: int = 20) -> Sequence[SlowRequest]:
        """Return the slowest requests of the last ten minutes with their slow calls, the slowest first.

        Parameters:
            name: An application, or `APPLICATION/DEPLOYMENT` for the requests and calls of a deployment. None: the
                requests of all applications.
            last: At most so many.
        """

    @abstractmethod
    def leave(self) -> None:
        """Delete the applications that this process holds, wait for that, and disconnect.

        On a local cluster, shut the instance down and end the cluster.
        """

    def report_ready(self) -> None:  # noqa: B027
        """Let the program that has started this local instance know that its applications serve."""

    def hand_over(self) -> bool:
        """Let this local instance serve on after the end of this process, which has started it in the foreground.

        From then on, signals reach the first process of the instance, which drains it and says so. Return False if
        this process must stay.
        """
        return False

    def detach(self) -> str:
        """Let the instance that this client has started go on after the end of this process.

        Return a sentence that says where its output is.
        """
        raise NotImplementedError

    @abstractmethod
    def shutdown(self) -> None:
        """Drain everything, wait for that, and disconnect. A local cluster ends, too."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect. The applications continue, unless they run on a local cluster."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def change(self, operation: Command[R]) -> R:
        """Have the controller perform an operation, and return its result.

        It first gets the revision number that it expects (`Command.expecting`), because the controller may perform it
        twice. Raises as `execute` does.
        """
        return self.execute(operation.expecting(self))

    def revision_of(self, application: str) -> int:
        """Return the number of the main revision. Raises `ConfigError` if there is no such application."""
        return self.execute(GetApplication(application))[1]

    def next_revision_of(self, application: str) -> int | None:
        """Return the number that the next revision of an application gets; None: there is no such application."""
        main = self.execute(GetStatus()).application(application)
        return None if main is None else main.next_revision

    def candidate_of(self, application: str) -> int | None:
        """Return the number of the only live revision beside the main one; None: there is none, or several."""
        main = self.execute(GetStatus()).application(application)
        others = () if main is None else main.traffic[1:]
        numbers = [live.revision for live in others if not live.is_removed]
        return numbers[0] if len(numbers) == 1 else None

    def watch(self, goes_on: Callable[[], bool] = lambda: True) -> Iterator[InstanceStatus]:
        """Yield the status, and again after each change or `WATCH_POLL_S` seconds, as long as `goes_on` returns True.

        Raises `InstanceEnded` when the instance is shut down.
        """
        after = -1
        while goes_on():
            status = self.execute(GetStatus(after, WATCH_POLL_S))
            after = status.change
            yield status

    def status(self) -> InstanceStatus:
        """Return the status of the instance."""
        return self.execute(GetStatus())

    def newest_events(self, subject: str | None = None, last: int | None = None) -> EventPage:
        """Return what the controller has done, and what has happened to replicas, from its event log.

        Parameters:
            subject: Only events of this application or replica set, `APPLICATION/DEPLOYMENT`. None: all.
            last: At most so many, the newest ones. None: all that the log keeps.
        """
        return self.execute(GetEvents(subject, last))

    def events(
        self, subject: str | None, last: int | None, goes_on: Callable[[], bool] = lambda: False
    ) -> Iterator[Sequence[LoggedEvent]]:
        """Yield the newest events of the controller, and then new ones as long as `goes_on` returns True.

        `subject`: only those of this application or replica set; None: all. `last`: at most so many of the events so
        far. Raises `InstanceEnded` when the instance is shut down.
        """
        page = self.execute(GetEvents(subject, last))
        yield page.events
        while goes_on():
            page = self.execute(GetEvents(subject, None, page.epoch, page.number, WATCH_POLL_S))
            if page.events:
                yield page.events

    def follow_logs(self, query: LogQuery, last: int, goes_on: Callable[[], bool] = lambda: False) -> Iterator[LogPage]:
        """Yield the newest log records, and then new ones as long as `goes_on` returns True.

        Raises `InstanceEnded` when the instance is shut down.
        """
        page = self.logs(query, last)
        yield page
        while goes_on():
            if not page.more or page.missing:
                time.sleep(WATCH_POLL_S)
            page = self.logs(query, after=page.positions)
            if page.records:
                yield page

    def wait_until_serving(
        self,
        revisions: Mapping[str, int],
        timeout_s: float = math.inf,
        show: Callable[[Sequence[Row]], None] = lambda rows: None,
    ) -> InstanceStatus:
        """Wait until these revisions of applications are up, and no replica of an earlier one serves requests.

        `revisions`: the number of each revision by application, as the command that created it returned it. `show` is
        called with each state until then. Raises `StartupError` or `PlacementError` if a revision cannot start or was
        rolled back, `Superseded` if another client has replaced or deleted it, `InstanceEnded` if the instance is shut
        down, and `WaitTimeout` after `timeout_s` seconds. None of these errors reverts a deployment.
        """
        deadline = time.monotonic() + timeout_s
        for status in self.watch():
            shown = rows(status, revisions)
            show(shown)
            for name, revision in revisions.items():
                if error := ended(status, name, revision):
                    raise error
            left = unfinished(status, revisions)
            if not left and is_serving(status, revisions):
                return status
            if time.monotonic() >= deadline:
                late = [*(str(row) for row in shown if not row.replica_set.is_up), *left]
                raise WaitTimeout(
                    f"the rollout is not complete after {timeout_s:g} s: {'; '.join(late) or 'no proxy is up'}"
                )
        raise AssertionError("a watch ends only when `goes_on` returns False")

    def wait_until_gone(self, removal: Removal) -> None:
        """Wait until all replicas of the removed application, revision or deployment have ended."""
        application, deployment, revision = removal
        with suppress(InstanceEnded):
            for status in self.watch():
                left = [replica_set.key.deployment for replica_set in status.leaving_of(application, revision)]
                if not left or deployment not in (None, *left):
                    return


class Driver(Protocol):
    """A process outside an instance whose handles call deployments in it. Its methods are safe in any thread."""

    client: Client

    def serve(self, application: str, callees: Iterable[Callee]) -> None:
        """Make the handles of these deployments call this application from now on."""
        ...

    def close(self) -> None:
        """Cancel the calls of the handles, delete the applications of this process, and wait for that."""
        ...


class Planning(ABC):
    """The planning of one application in a process of its own. The process reports errors of the app to the user."""

    @abstractmethod
    def result(self, goes_on: Callable[[], bool]) -> ApplicationSpec | None:
        """Wait for the plan. Return None as soon as `goes_on` returns False.

        Raises `SystemExit` with the exit code of the process if it has reported an error, and `PlanningError` if it
        ended without a plan in another way.
        """

    @abstractmethod
    def close(self) -> None:
        """End the process, and all that the app has started in it, unless it has become a part of an instance."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine(ABC):
    """Starts instances and connects to them. A *cluster* is what an instance runs on."""

    capabilities: ClassVar[frozenset[Capability]]
    """What the engine can do. Options that need another capability have no effect, which `launch.start` logs."""

    runs_here: ClassVar[bool] = False
    """Whether all replicas run on this machine, so that they can use the folder of the app."""

    @abstractmethod
    def check(self, address: str) -> None:
        """Raise `ConfigError` if no cluster answers at this address, without `preload`."""

    @abstractmethod
    def preload(self) -> None:
        """Import what the engine needs, which may take a second.

        A process that shows the output of replicas calls this before any other method but `check`.
        """

    def inherited_address(self) -> tuple[str, int] | None:
        """Return the host and the port of the socket at which clients connect, if this process has inherited it.

        None: there is none, and an instance binds the address of its options. Raises `ConfigError` for another socket.
        """
        return None

    def begin_instance(self, http: HTTPOptions, plan: Plan) -> bool:
        """Begin an instance that ends with this process, if `start` without an address needs it.

        After the call, a child of this process may continue instead of it, so call it before there are threads. Return
        whether that is so, and `planning` can be called. `http`: the options of the first proxy.
        """
        return False

    def planning(self, app: str) -> Planning:
        """Start planning an app by the `plan` of `begin_instance`, in a process that can serve the app afterwards."""
        raise NotImplementedError

    def check_background(self) -> None:
        """Raise `ConfigError` if `start_in_background` cannot start an instance."""
        raise ConfigError(
            "only processes of this machine run in the background: start a Ray cluster with `ray start --head`, and "
            "deploy to it with `app-toolkit deploy`"
        )

    def start_in_background(self, http: HTTPOptions) -> Client:
        """Start an instance of its own that takes no lease. It ends with the client until `Client.detach`.

        `http`: the options of its proxies. Raises as `check_background` does.
        """
        raise NotImplementedError

    @abstractmethod
    def is_joined(self) -> bool:
        """Return whether this process belongs to a cluster already."""

    @abstractmethod
    def start(
        self,
        *,
        address: str | None,
        num_cpus: float | None = None,
        with_lease: bool = True,
        http: HTTPOptions | None = None,
    ) -> Client:
        """Join the cluster at `address`, or with None, start a local one with `num_cpus` logical CPUs.

        If no instance runs there, start one. `with_lease=False`: take no lease. An instance that this starts then stays
        until it is shut down, also if others take leases and end them. `http`: the address at which clients connect to
        a local instance, which is bound at once; None: the first proxy binds it.
        """

    @abstractmethod
    def find(self, address: str | None) -> Client | None:
        """Connect to the instance, or return None if there is none. Raises `ConfigError` if there is no cluster."""

    @abstractmethod
    def connect(self, address: str | None) -> Client:
        """Connect to the instance. Raises `ConfigError` if there is none."""

    @abstractmethod
    def drive(self, client: Client) -> Driver:
        """Let the handles of this process call through the connection of this client, until `Driver.close`."""
