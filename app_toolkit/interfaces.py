"""What the components need of each other and of an engine. They meet here, and nowhere else."""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from app_toolkit.types import Address, NodeId, OnDisconnect, ReplicaId, Retry

ROUTES = "routes"
"""The board's key of the applications and their route tables."""

REPLICAS = "replicas/"
"""Begins the board's key of a replica set; what follows is `APPLICATION/DEPLOYMENT`."""


CODE = "code/"
"""Begins the store's key of what was packed; what follows is its hash."""


def code_key(hash: str) -> str:
    return f"{CODE}{hash}"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Orders the snapshots of one key: a new controller's first is newer than an old one's last."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One posting on the board; `value` is plain data (what JSON can say)."""

    version: Version
    value: Any


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica as a caller learns of it."""

    id: ReplicaId
    address: Address
    max_ongoing_requests: int
    max_open_streams: int = 1_000
    unresponsive: bool = False
    """It did not answer its last probe: it gets no new requests until it does."""
    running: frozenset[str] | None = None
    """Of an unresponsive one: the ids of the requests that run in it; None: not known."""

    def may_have_failed_with(self, request_id: str) -> bool:
        """Whether this request may be why it does not answer: it runs there, or may."""
        return self.unresponsive and (self.running is None or request_id in self.running)


class QueuePosition(Protocol):
    """The position of a caller in the wait queue of one replica."""

    def leave(self) -> None:
        """Leave the queue. Nothing is called back from then on."""
        ...


Join = Callable[[Endpoint, Callable[[], None], Callable[[], None]], QueuePosition]
"""Join the wait queue of a replica that others filled: `join(endpoint, reserved, ended)`.

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
    """Seconds from now on; None: what its deployment allows."""
    retry: Retry | None = None
    """None: as its deployment says."""
    passes_on: bool = False
    """Whether results of other calls are among its arguments: they may be `Sealed`."""


class Caller(Protocol):
    """Brings the calls of this process to the replicas of one deployment. For `loop`, and nowhere else."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    async def call(self, call: Call) -> Any:
        """What the method gives. Raises what it raised, or a `RequestError`; to cancel it cancels the method."""
        ...

    async def fetch(self, call: Call) -> Any:
        """The same for who may pass it on: a value that comes as bytes stays `Sealed`."""
        ...

    def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        """What the method yields; to close it closes the method."""
        ...


class Deployable(ABC):
    """A class with its arguments and options: what a handle stands for, and an engine runs. Compared by identity."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def needs(self) -> "Sequence[Deployable]":
        """What it calls itself: the deployments whose handles are among its arguments."""

    @abstractmethod
    def make(self) -> object:
        """An ordinary object of the class, constructed with what was bound."""

    #: The class that replicas construct.
    cls: type
    #: Which application it is a part of; None: the one that this process belongs to.
    application: str | None = None
    #: Its `ClassConfig`.
    config: Any


class Reference:
    """What stands for a deployment in user code."""

    _deployment: Deployable


DEPLOYMENT_CLASS = "__app_toolkit_deployment__"
"""The attribute of classes that inherit from `Deployment`: the options that they say."""


class Payloads(Protocol):
    """The way of what is too large for a replica's socket. A key names one exchange of a caller with that replica."""

    async def deposit(self, replica: ReplicaId, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Bring the arguments of a call to a replica that waits for them; nobody keeps them where none does.

        Raises `ReplicaGone`.
        """
        ...

    async def collect(self, replica: ReplicaId, key: str) -> Sequence[memoryview]:
        """What the replica keeps for this exchange. Raises `ReplicaGone`, also where it keeps nothing."""
        ...


class Plane(Protocol):
    """The data plane of this process, as handles see it."""

    def caller(self, deployment: Deployable) -> Caller: ...


@dataclass(frozen=True, slots=True)
class ReloadableOptions:
    """What a replica takes up at its start, and anew while it runs; plain data, compared by value."""

    max_ongoing_requests: int
    max_open_websockets: int = 1_000
    max_open_streams: int = 1_000
    user_config: Mapping[str, Any] | None = None
    """Of a class: what its `reconfigure` is given."""
    batch: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The limits of batch methods and endpoints that are not the function's own, by its name."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """All that a replica needs to come up; plain data, no code."""

    id: ReplicaId
    application: str
    deployment: str
    template_hash: str
    target: str
    app_dir: str
    root_path: str
    live: ReloadableOptions
    graceful_shutdown_timeout_s: float
    on_disconnect: OnDisconnect = "auto"
    kind: Literal["ingress", "class"] = "ingress"
    callees: tuple[str, ...] = ()
    """The deployments that handles may call; where there are any, it learns from the board where they are."""
    sync_threads: int = 1
    """Of a class: how many threads run its `def` methods."""
    working_dir: str = ""
    """The folder that relative paths of the app begin at; empty: wherever the process is."""
    code: str = ""
    """Under which name the store has what was packed; empty: `target` is imported."""
    artifact: str = ""
    """The same of the files that `app_dir` and `working_dir` are in; empty: these are folders of the node."""
    sources: str = ""
    """The same of the Python files that are imported instead of those of `app_dir` on disk; empty: there are none."""


@dataclass(frozen=True, slots=True)
class ProxySpec:
    """All that a proxy needs to come up. Its `id` is also its name as a caller of the board."""

    id: ReplicaId
    options: Mapping[str, Any]
    """`HTTPOptions` as plain data."""
    node: NodeId
    """Where it runs, or nowhere."""


# Without slots: of what a process of another version did not pickle, the default is read then.
@dataclass(frozen=True)
class Location:
    """Where a process serves, and how."""

    address: Address
    node: NodeId
    remote_address: Address | None = None
    """Of a replica: where callers on other nodes reach it; None: they do not."""


class Watch(Protocol):
    """A caller's view of the board."""

    async def __call__(self, seen: Mapping[str, Version]) -> Mapping[str, Snapshot]:
        """Wait until some key is newer than seen, and give those; an empty mapping when nothing came in time.

        What is passed as seen is thereby acknowledged.
        """
        ...


WatchSome = Callable[[Mapping[str, Version], tuple[str, ...]], Awaitable[Mapping[str, Snapshot]]]
"""The same of keys with these beginnings alone."""


class Store(Protocol):
    """Bytes that outlive the controller."""

    async def get(self, key: str) -> bytes | None: ...

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        """Set where the key still holds `expected` (None: is absent); raises `Conflict` otherwise."""
        ...

    async def delete(self, key: str) -> None: ...

    async def keys(self, prefix: str) -> list[str]: ...


Emit = Callable[[Any], None]
"""How a launcher tells what happened; safe from any thread."""


class Launcher(Protocol):
    """Starts, drains, probes, reconfigures and ends processes. Nothing here waits: what happens comes back as an event.

    Actions are those of `core.reconcile`, events those of `core.replica_state`. An event may come late or twice; one
    that is lost costs time, never correctness.
    """

    @property
    def home(self) -> NodeId:
        """The node that the controller runs on."""
        ...

    def listen(self, emit: Emit, epoch: int) -> None:
        """Called once, before anything else. Every order to a process carries `epoch`; a lower one is refused there."""
        ...

    def perform(self, action: Any) -> None:
        """Begin one action; its outcome arrives as an event, also where it cannot begin.

        To start what exists already is success. To drain, stop, kill, probe or reconfigure what is not there is
        answered `Exited`.
        """
        ...

    async def found(self) -> list[ReplicaId]:
        """Who is there after a restart. What each of them is arrives as a `Found` or an `Exited` event."""
        ...

    async def aclose(self) -> None: ...
