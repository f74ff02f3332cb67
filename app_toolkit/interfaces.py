"""The interfaces between the components, and between the components and an engine."""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from app_toolkit.types import Address, NodeId, ReplicaId, Retry

ROUTES = "routes"
"""The key of the published snapshot of the applications and their route tables."""

REPLICAS = "replicas/"
"""The beginning of the key of a replica set's published snapshot. `APPLICATION/DEPLOYMENT` follows."""

SPLITS = "splits/"
"""The beginning of the key of a split's published snapshot. `APPLICATION/SPLIT` follows."""

MAINS = "mains/"
"""The beginning of the key that tells which revision of an application is the main one. `APPLICATION` follows."""

CODE = "code/"
"""The beginning of the store's key of packed code or files. Their hash follows."""


def code_key(hash: str) -> str:
    return f"{CODE}{hash}"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Orders the snapshots of one key. All snapshots of a new controller are newer than those of previous ones."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One published value. `value` is plain data that can be encoded as JSON."""

    version: Version
    value: Any


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica as published to callers."""

    id: ReplicaId
    address: Address
    max_ongoing_requests: int
    max_open_streams: int = 1_000
    unresponsive: bool = False
    """The replica did not answer its last probe. It gets no new requests until it does."""
    running: frozenset[str] | None = None
    """For an unresponsive replica: the ids of the requests that run in it; None: not known."""

    def may_have_failed_with(self, request_id: str) -> bool:
        """Return whether the replica may be unresponsive because of this request: it runs there, or may run there."""
        return self.unresponsive and (self.running is None or request_id in self.running)


class QueuePosition(Protocol):
    """The position of a caller in the wait queue of one replica."""

    def leave(self) -> None:
        """Leave the queue. No callback is called from then on."""
        ...


Join = Callable[[Endpoint, Callable[[], None], Callable[[], None]], QueuePosition]
"""Join the wait queue of a replica that is full: `join(endpoint, reserved, ended)`.

`reserved` is called for each slot that is reserved for this caller. `ended` is called once if the replica ends the
position. Neither is called before `join` has returned.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method of a deployment."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    timeout_s: float | None = None
    """Deadline in seconds from now; None: the deployment's `request_timeout_s` applies."""
    retry: Retry | None = None
    """Which retries are allowed; None: the option of the deployment applies."""
    affinity: str | None = None
    """Calls with the same key prefer the same replica; None: no key."""
    shard_key: str | None = None
    """A split sends all calls with the same key to the same member; None: no key. Calls that the method makes have the
    same key."""
    passes_on: bool = False
    """Whether results of other calls are among the arguments; these may be `EncodedValue`s."""
    yields: bool = False
    """Whether the method yields items. For messages."""


class DeploymentClient(Protocol):
    """Sends the calls of this process to the replicas of one deployment. Use it only on `loop`."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    async def call(self, call: Call) -> Any:
        """Call a method and return its result. Raises what the method raised, or a `RequestError`.

        Cancellation of this coroutine cancels the method.
        """
        ...

    async def fetch(self, call: Call) -> Any:
        """As `call`, but keep a result that arrives as bytes as an `EncodedValue`, to pass it to another call."""
        ...

    def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        """Return the items that a method yields. Closing the generator closes the method."""
        ...


class Callee(ABC):
    """What a handle calls: a deployment, or several with weights. Compared by identity."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def needs(self) -> "Sequence[Callee]":
        """What it calls itself: the deployments and splits whose handles are among its arguments."""

    #: A class with the methods that callers may call.
    cls: type
    #: The application that it belongs to; None: the application of this process.
    application: str | None = None
    #: The deployments that it divides its calls between, by name. Empty: it is a deployment itself.
    members: "Mapping[str, Deployable]" = MappingProxyType({})
    #: The share of the calls that each member gets, by its name, if no other shares are published to this process.
    shares: Mapping[str, float] = MappingProxyType({})
    #: The share of the calls of other members that a member gets copies of, by its name, if none are published.
    mirrors: Mapping[str, float] = MappingProxyType({})


class Deployable(Callee):
    """A class with its arguments and options, which an engine runs. `cls` is the class that replicas construct."""

    @abstractmethod
    def make(self) -> object:
        """Construct an ordinary object of the class with the bound arguments."""

    #: The options of the deployment: a `ClassConfig`.
    config: Any


class WeightedCallee(Callee):
    """Several deployments, its members. Each call goes to one of them."""

    @property
    def needs(self) -> "Sequence[Deployable]":
        return tuple(self.members.values())


class Reference:
    """An object that refers to a deployment or a split in user code."""

    _deployment: Callee


DEPLOYMENT_CLASS = "__app_toolkit_deployment__"
"""The attribute of classes that inherit from `Deployment`: the options that the class sets."""


class Payloads(Protocol):
    """Transfers payloads that are too large for a replica's socket. A key names one exchange with a replica."""

    async def put(self, replica: ReplicaId, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Put the arguments of a call at a replica that waits for them. They are dropped if it does not wait for them.

        Raises `ReplicaGone`.
        """
        ...

    async def get(self, replica: ReplicaId, key: str) -> Sequence[memoryview]:
        """Get the payload that the replica keeps for this exchange. Raises `ReplicaGone`, also if it keeps none."""
        ...


class DataPlane(Protocol):
    """The part of this process that executes the calls of handles."""

    def client_of(self, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        """Return the client for one call of a deployment, or of a member of a split. `shard_key`: of the call."""
        ...


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that one process reserves, and how an engine starts it."""

    num_cpus: float = 0.0
    num_gpus: float = 0.0
    memory: int | None = None
    """Bytes; None: no reservation."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """Custom resources by name."""
    nice: int = 0
    """By how much the priority of the process is lower than that of others."""
    engine_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options that only one engine has. They may contain secrets."""


@dataclass(frozen=True, slots=True)
class ReloadableOptions:
    """The options that a replica applies at its start, and again when they change. Plain data, compared by value."""

    max_ongoing_requests: int
    max_open_websockets: int = 1_000
    max_open_streams: int = 1_000
    user_config: Mapping[str, Any] | None = None
    """For a class: the value that `reconfigure` receives."""
    batch: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Limits of batch methods and endpoints by function name. They override those of the function."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The secrets among the options of the deployment, which no log and no error of the replica contains."""


@dataclass(frozen=True, slots=True)
class Location:
    """The address and the node of a process."""

    address: Address
    node: NodeId
    remote_address: Address | None = None
    """For a replica: the address for callers on other nodes; None: they cannot connect."""
    clients: Address | None = None
    """For a replica: the address at which it accepts clients, as that of a proxy; None: it accepts none."""
    edge: str = ""
    """The hash of the options with which a replica accepts clients; empty: it accepts none."""


class Watch(Protocol):
    """Lets a caller wait for published snapshots."""

    async def __call__(self, seen: Mapping[str, Version], prefixes: tuple[str, ...], /) -> Mapping[str, Snapshot]:
        """Wait until a snapshot is newer than seen, and return the newer ones. Keys begin with one of `prefixes`.

        Return an empty mapping if none was published in time. The versions in `seen` are acknowledged by this call.
        """
        ...


class Store(Protocol):
    """A store for bytes that are kept when the controller ends."""

    async def get(self, key: str) -> bytes | None: ...

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        """Set the value if the current one is `expected` (None: there is none). Raises `Conflict` otherwise."""
        ...

    async def delete(self, key: str) -> None: ...

    async def keys(self, prefix: str) -> list[str]: ...


Emit = Callable[[Any], None]
"""Receives the events of a launcher. Safe from any thread."""


class Launcher(Protocol):
    """Starts, drains, probes, reconfigures and ends processes. No method waits: results arrive as events.

    Actions are those of `control.reconcile`, events those of `control.replica_state`. An event may arrive late or
    twice. The loss of an event causes a delay, but no error.
    """

    @property
    def home(self) -> NodeId:
        """The node that the controller runs on."""
        ...

    def listen(self, emit: Emit, epoch: int) -> None:
        """Register for events. Call this once, before any other method.

        Every order to a process carries `epoch`. A process refuses an order with a lower one.
        """
        ...

    def perform(self, action: Any) -> None:
        """Begin one action. Its result arrives as an event, even if the action cannot begin.

        Starting a process that exists is a success. The result of draining, stopping, killing, probing or reconfiguring
        a process that does not exist is `Exited`.
        """
        ...

    async def found(self) -> list[ReplicaId]:
        """Return the processes that exist after a restart. For each, a `Found` or an `Exited` event follows."""
        ...

    async def aclose(self) -> None: ...
