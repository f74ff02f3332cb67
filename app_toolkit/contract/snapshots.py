"""The snapshots that the controller publishes to callers: their types and their encoding.

`encode` and `decode` are the only way to plain data that JSON can represent and back. All processes of an instance run
the same version, so that every field is there.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from app_toolkit.config.models import Policy
from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey
from app_toolkit.contract.routes import RoutedApplication
from app_toolkit.contract.targets import Target
from app_toolkit.types import Address, NodeId, ReplicaId


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """The route tables of all applications."""

    applications: tuple[RoutedApplication, ...]


@dataclass(frozen=True, slots=True)
class StartBlocked:
    """Why no replica serves and none will soon.

    The text of the exception of a start may be confidential. It is not published, but its class is.
    """

    why: Literal["starts_fail", "no_room", "held_back"]
    """`no_room`: the replicas ask for more than any node has. `held_back`: the next start waits, because replicas ended
    as soon as they served."""
    exception: str | None = None
    """The class of the exception that the starts raise; None: they raise none."""

    def sentence(self, replica_set: ReplicaSetKey) -> str:
        return f"no replica of {replica_set} runs: {self._cause()}"

    def _cause(self) -> str:
        if self.why == "no_room":
            return "each one asks for more than any node of the instance has; `app-toolkit status` shows the amount"
        if self.why == "held_back":
            return (
                "the last ones ended as soon as they served, and the next one starts within a minute; "
                "`app-toolkit status` shows the error"
            )
        if self.exception is None:
            return "each one that is started ends before it is ready; `app-toolkit status` shows the error"
        return f"each one that is started fails with {self.exception}; `app-toolkit status` shows the error"


@dataclass(frozen=True, slots=True)
class PublishedReplica:
    """One replica that serves."""

    id: ReplicaId
    address: Address
    remote_address: Address | None
    """The address for callers on other nodes; None: they cannot connect."""
    node: NodeId
    max_ongoing_requests: int
    max_open_streams: int
    unresponsive: bool
    """The replica did not answer its last probe."""
    running: tuple[str, ...] | None
    """For an unresponsive replica: the ids of the requests that run in it; None: not known."""


@dataclass(frozen=True, slots=True)
class ReplicaSetSnapshot:
    """The replicas of one replica set, and the options for its callers."""

    policy: Policy
    cannot_start: StartBlocked | None
    """None: requests wait for a replica."""
    idempotent: tuple[str, ...]
    """The methods of a class that callers may call again if a replica is lost."""
    reported: bool
    """Whether callers report their load."""
    scaled_to_zero: bool
    """Whether no replica should run, because there is no load. The first request starts one."""
    replicas: tuple[PublishedReplica, ...]


_ROUTES = TypeAdapter(RouteSnapshot)
_REPLICA_SET = TypeAdapter(ReplicaSetSnapshot)
_SPLIT = TypeAdapter(tuple[Target, ...])


def encode(snapshot: RouteSnapshot | ReplicaSetSnapshot | tuple[Target, ...]) -> Any:
    """Return a snapshot as plain data that JSON can represent. A tuple has the members of a split."""
    if isinstance(snapshot, RouteSnapshot):
        return _ROUTES.dump_python(snapshot, mode="json")
    if isinstance(snapshot, tuple):
        return _SPLIT.dump_python(snapshot, mode="json")
    return _REPLICA_SET.dump_python(snapshot, mode="json")


def decode_routes(value: Any) -> RouteSnapshot:
    """Decode published routes. Raises `ValueError` if the value is invalid."""
    return _ROUTES.validate_python(value)


def decode_replica_set(value: Any) -> ReplicaSetSnapshot:
    """Decode a published replica set. Raises `ValueError` if the value is invalid."""
    return _REPLICA_SET.validate_python(value)


def decode_split(value: Any) -> tuple[Target, ...]:
    """Decode the members of a published split. Raises `ValueError` if the value is invalid."""
    return _SPLIT.validate_python(value)


def decode_main(value: Any) -> LiveRevisionKey:
    """Decode which revision of an application is the main one. Raises `ValueError` if the value is invalid."""
    return LiveRevisionKey.parse(value)
