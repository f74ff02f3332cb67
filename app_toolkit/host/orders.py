"""The orders that a process obeys: what the controller has it do, and what clients ask it.

An order is plain data, which an engine pickles. The engine delivers it to the process, calls `serve` there, and returns
the result or raises the exception to the sender. To add an order, add a class here, and the method of
`host/process.py` that it calls. No engine changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from app_toolkit.contract.identity import AnySetKey
from app_toolkit.contract.replica_spec import ProxySpec, ReplicaSpec
from app_toolkit.control.replica_state import Found, ProbePassed
from app_toolkit.interfaces import Location, ReloadableOptions
from app_toolkit.observability.log_query import LogQuery, NodeLogs
from app_toolkit.observability.slowest import SlowRequest

if TYPE_CHECKING:
    from app_toolkit.calls.remote import CallLoad
    from app_toolkit.edge.server import ProxyStatistics
    from app_toolkit.host.process import ControlledProcess, ReplicaProcess

P = TypeVar("P", bound="ControlledProcess", contravariant=True)
R = TypeVar("R", covariant=True)

MARGIN_S = 1.0
"""Seconds that an answer may be late. A process observes the timeout of an order itself, unless its interpreter is
blocked."""

QUESTION_S = 2.0
"""Seconds that a process has to answer a question of a client."""

LOGS_S = 15.0
"""Seconds that a proxy may take to search the log files of its node."""

EPOCH_S = 1.0
"""Seconds that a process has to say that it obeys a later controller."""

Lane = Literal["control", "bulk"]
"""The threads that serve an order: those for control, or those for large data and for work that takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Order(ABC, Generic[P, R]):
    """One order with its arguments. `P` is the kind of process that obeys it, `R` the type of the result."""

    lane: ClassVar[Lane] = "control"

    epoch: int | None = None
    """The number of the controller that gives the order; None: a client gives it. A process refuses an order with a
    lower number than that of an earlier order."""

    @property
    def answer_s(self) -> float | None:
        """The seconds after which the sender does not wait for the result any more; None: it waits until the end."""
        return None

    @abstractmethod
    def perform(self, process: P) -> R: ...


def serve(process: P, order: Order[P, R]) -> R:
    """Have a process obey an order, and return the result. It may block: call it on a thread for the lane of the order.

    Raises `StaleEpoch` for an order of a controller that was replaced, and what the order raises.
    """
    if order.epoch is not None:
        process.check_epoch(order.epoch)
    return order.perform(process)


# Orders of the controller


@dataclass(frozen=True)
class Start(Order["ControlledProcess", Location]):
    """Start to serve, and return the location. A second order to start only returns the result of the first one."""

    spec: ReplicaSpec | ProxySpec
    replica_set: AnySetKey
    template_hash: str
    secret: bytes = field(repr=False)

    def perform(self, process: "ControlledProcess") -> Location:
        return process.start(self.spec, self.replica_set, self.template_hash, self.secret)


@dataclass(frozen=True)
class AwaitStart(Order["ControlledProcess", Location]):
    """Wait until the process serves, and return the location. Raises the error of a failed start."""

    def perform(self, process: "ControlledProcess") -> Location:
        return process.started()


@dataclass(frozen=True)
class Describe(Order["ControlledProcess", Found | None]):
    """Return the state, for a controller that did not start the process. None: there was no order to start."""

    def perform(self, process: "ControlledProcess") -> Found | None:
        return process.describe()


@dataclass(frozen=True)
class CheckEpoch(Order["ControlledProcess", None]):
    """Do nothing. Raises `StaleEpoch` if the process obeys a later controller."""

    @property
    def answer_s(self) -> float:
        return EPOCH_S

    def perform(self, process: "ControlledProcess") -> None:
        pass


@dataclass(frozen=True)
class Probe(Order["ControlledProcess", ProbePassed]):
    """Check that the process serves, and return what it uses.

    Raises `NotWell`, `Unresponsive` or `ReplicaGone`.
    """

    timeout_s: float

    @property
    def answer_s(self) -> float:
        return self.timeout_s + MARGIN_S

    def perform(self, process: "ControlledProcess") -> ProbePassed:
        return process.probe(self.timeout_s)


@dataclass(frozen=True)
class Reconfigure(Order["ReplicaProcess", None]):
    """Apply changed options. Raises `ReconfigureError`, `TimeoutError` or `ReplicaGone`."""

    reloadable: ReloadableOptions
    timeout_s: float

    @property
    def answer_s(self) -> float:
        return self.timeout_s + MARGIN_S

    def perform(self, process: "ReplicaProcess") -> None:
        process.reconfigure(self.reloadable, self.timeout_s)


@dataclass(frozen=True)
class Drain(Order["ControlledProcess", None]):
    """Refuse new requests, and wait at most `timeout_s` seconds for the others."""

    timeout_s: float

    def perform(self, process: "ControlledProcess") -> None:
        process.drain(self.timeout_s)


@dataclass(frozen=True)
class Stop(Order["ControlledProcess", None]):
    """Shut down within `timeout_s` seconds. The process then waits to be killed."""

    timeout_s: float

    @property
    def answer_s(self) -> float:
        return self.timeout_s

    def perform(self, process: "ControlledProcess") -> None:
        process.stop(self.timeout_s)


# Questions of clients


@dataclass(frozen=True)
class Question(Order[P, R]):
    """A question that a process answers at once."""

    @property
    def answer_s(self) -> float:
        return QUESTION_S


@dataclass(frozen=True)
class GetStatistics(Question["ControlledProcess", Any]):
    """Return the current statistics. None: the process does not serve yet, or any more."""

    def perform(self, process: "ControlledProcess") -> Any:
        return process.statistics()


@dataclass(frozen=True)
class GetCallLoads(Question["ReplicaProcess", Mapping[str, "CallLoad"]]):
    """Return the calls of the handles of a replica that wait or are ongoing, by `APPLICATION/DEPLOYMENT`."""

    def perform(self, process: "ReplicaProcess") -> Mapping[str, "CallLoad"]:
        return process.calling()


@dataclass(frozen=True)
class GetEdgeStatistics(Question["ReplicaProcess", "ProxyStatistics | None"]):
    """Return the statistics of the clients that a replica has accepted. None: it accepts none."""

    def perform(self, process: "ReplicaProcess") -> "ProxyStatistics | None":
        return process.edge_statistics()


@dataclass(frozen=True)
class GetSlowRequests(Question["ControlledProcess", list[SlowRequest]]):
    """Return at most `last` of the slowest requests, or calls that handles have made. `name`: as of `Client.slow`."""

    name: str | None
    last: int

    def perform(self, process: "ControlledProcess") -> list[SlowRequest]:
        return process.slow_requests(self.name, self.last)


@dataclass(frozen=True)
class GetCallsOf(Question["ControlledProcess", list[SlowRequest]]):
    """Return the slow calls that handles have made for these requests."""

    request_ids: Collection[str]

    def perform(self, process: "ControlledProcess") -> list[SlowRequest]:
        return process.calls_of(self.request_ids)


@dataclass(frozen=True)
class ReadLogs(Question["ControlledProcess", NodeLogs]):
    """Return what the log files of the node of a process have for a query. The arguments are those of `LogFolder.read`.

    Raises `OSError` or `InsecurePath` if the files cannot be read.
    """

    lane = "bulk"
    query: LogQuery
    last: int
    after: Mapping[str, str] | None

    @property
    def answer_s(self) -> float:
        return LOGS_S

    def perform(self, process: "ControlledProcess") -> NodeLogs:
        return process.read_logs(self.query, self.last, self.after)


# Large payloads of calls


class Piece:
    """A part of a payload that is pickled out-of-band, and received as a view of the memory that it arrived in."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data

    # The `PickleBuffer` is created only for the serialization. If the garbage collector finds a `PickleBuffer` together
    # with the view that it refers to, it clears the buffer first, and the view then accesses it: the process crashes.
    def __reduce_ex__(self, protocol: Any) -> tuple[type[memoryview], tuple[PickleBuffer]]:
        return memoryview, (PickleBuffer(self._data),)


@dataclass(frozen=True)
class PutPayload(Order["ReplicaProcess", None]):
    """Take the arguments of a call. They are dropped if the replica does not wait for them."""

    lane = "bulk"
    key: str
    pieces: Sequence[Any] = field(repr=False)
    """Each is a `Piece`, and a `memoryview` once it has arrived."""

    def perform(self, process: "ReplicaProcess") -> None:
        process.server.payloads.put(self.key, self.pieces)


@dataclass(frozen=True)
class TakePayload(Order["ReplicaProcess", Sequence[Any] | None]):
    """Return the payload that the replica keeps under a key; None: it keeps none."""

    lane = "bulk"
    key: str

    def perform(self, process: "ReplicaProcess") -> Sequence[Any] | None:
        pieces = process.server.payloads.take(self.key)
        return None if pieces is None else [Piece(piece) for piece in pieces]
