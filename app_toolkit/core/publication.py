"""The snapshots that the controller publishes to callers: their types, their encoding, and how they are derived.

`encode` and `decode` are the only way to plain data that JSON can represent and back. All processes of an instance run
the same version, so that every field is there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from app_toolkit.config.models import ApplicationSpec, Policy
from app_toolkit.core import restarts
from app_toolkit.core.identity import ApplicationKey, ReplicaSetKey
from app_toolkit.core.reconcile import ReplicaSetSpec
from app_toolkit.core.replica_state import Phase, ReplicaRecord
from app_toolkit.core.restarts import Failure
from app_toolkit.core.routes import RoutedApplication
from app_toolkit.core.targets import Target, members
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


class LiveRevision(NamedTuple):
    """A revision of an application whose route table is published."""

    spec: ApplicationSpec
    share: float = 1.0
    tag: str | None = None
    mirror: float = 0.0
    compared: bool = False


def route_snapshot(revisions: Iterable[LiveRevision]) -> RouteSnapshot:
    """Return the route tables of all revisions with a route prefix, the longest route prefix first."""
    served = [
        RoutedApplication(
            prefix=spec.route_prefix,
            target=Target(spec.name, ApplicationKey.parse(spec.name).replica_set(spec.default), share, tag, mirror),
            routes=spec.routes,
            compared=compared,
            root_path=spec.root_path if spec.route_prefix == "/" else "",
            cors=spec.cors,
        )
        for spec, share, tag, mirror, compared in revisions
        if spec.route_prefix is not None and spec.default is not None
    ]
    longest_first = sorted(served, key=lambda each: (-len(each.prefix), each.target.name))
    return RouteSnapshot(tuple(longest_first))


def split_members(revisions: Iterable[ApplicationSpec]) -> dict[ReplicaSetKey, tuple[Target, ...]]:
    """Return the members of the splits of these revisions. Of those with one name, the last one counts."""
    return {
        key.replica_set(split.name): members(key, split.shares, split.mirrors)
        for spec in revisions
        for key in (ApplicationKey.parse(spec.name),)
        for split in spec.splits
    }


def replica_set_snapshot(
    spec: ReplicaSetSpec | None,
    replicas: Iterable[ReplicaRecord],
    now: float,
    failures: tuple[Failure, ...] = (),
    last_error: str | None = None,
) -> ReplicaSetSnapshot | None:
    """Return the snapshot of a replica set; None: no callers, or no known spec."""
    if spec is None or spec.policy is None or spec.live is None:
        return None
    replicas = list(replicas)
    return ReplicaSetSnapshot(
        policy=spec.policy,
        cannot_start=_cannot_start(spec, replicas, now, failures, last_error),
        idempotent=spec.idempotent,
        reported=spec.autoscaling is not None,
        scaled_to_zero=spec.target == 0,
        replicas=tuple(
            PublishedReplica(
                replica.id,
                replica.location.address,
                replica.location.remote_address,
                replica.location.node,
                spec.live.max_ongoing_requests,
                spec.live.max_open_streams,
                replica.unresponsive,
                replica.running if replica.unresponsive else None,
            )
            for replica in sorted(replicas, key=lambda replica: replica.id)
            if replica.phase in (Phase.RUNNING, Phase.RECOVERING) and replica.location is not None
        ),
    )


def _cannot_start(
    spec: ReplicaSetSpec,
    replicas: Iterable[ReplicaRecord],
    now: float,
    failures: tuple[Failure, ...],
    last_error: str | None,
) -> StartBlocked | None:
    """Return why no replica serves and none will soon; None: requests wait for a replica."""
    if not spec.target or any(each.phase in (Phase.RUNNING, Phase.RECOVERING) for each in replicas):
        return None
    tries = [each for each in replicas if each.phase is Phase.STARTING and each.template_hash == spec.template_hash]
    began = [each.since for each in tries]
    if restarts.cannot_start(failures, spec.template_hash, began, now, spec.startup_timeout_s):
        return StartBlocked("starts_fail", restarts.exception_name(last_error))
    if tries:
        never = all(each.unplaceable is not None and each.unplaceable.for_ever for each in tries)
        return StartBlocked("no_room") if never else None
    if restarts.is_held_back(failures, spec.template_hash, spec.target, now):
        return StartBlocked("held_back")
    return None


def unrouting(replicas: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    """Return the replicas that are no longer published, but that some callers may still send requests to."""
    return [replica for replica in replicas if replica.phase is Phase.DRAINING and not replica.unrouted]
