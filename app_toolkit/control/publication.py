"""Derives the snapshots that the controller publishes from the replica sets and the revisions."""

from collections.abc import Iterable
from typing import NamedTuple

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey
from app_toolkit.contract.routes import RoutedApplication
from app_toolkit.contract.snapshots import PublishedReplica, ReplicaSetSnapshot, RouteSnapshot, StartBlocked
from app_toolkit.contract.targets import Target, members
from app_toolkit.control import backoff
from app_toolkit.control.backoff import Failure
from app_toolkit.control.reconcile import ReplicaSetSpec
from app_toolkit.control.replica_state import Phase, ReplicaRecord


class PublishedRevision(NamedTuple):
    """A live revision of an application whose route table is published."""

    live: LiveRevisionKey
    spec: ApplicationSpec
    share: float = 1.0
    tag: str | None = None
    mirror: float = 0.0
    compared: bool = False
    is_main: bool = True


def route_snapshot(revisions: Iterable[PublishedRevision]) -> RouteSnapshot:
    """Return the route tables of all revisions with a route prefix, the longest route prefix first."""
    served = [
        RoutedApplication(
            prefix=spec.route_prefix,
            target=Target(live.name, live.replica_set(spec.default), share, tag, mirror),
            routes=spec.routes,
            compared=compared,
            is_main=is_main,
            root_path=spec.root_path if spec.route_prefix == "/" else "",
            cors=spec.cors,
        )
        for live, spec, share, tag, mirror, compared, is_main in revisions
        if spec.route_prefix is not None and spec.default is not None
    ]
    longest_first = sorted(served, key=lambda route: (-len(route.prefix), route.target.name))
    return RouteSnapshot(tuple(longest_first))


def split_members(
    revisions: Iterable[tuple[LiveRevisionKey, ApplicationSpec]],
) -> dict[ReplicaSetKey, tuple[Target, ...]]:
    """Return the members of the splits of these live revisions. Of those with one key, the last one counts."""
    return {
        live.replica_set(split.name): members(live, split.shares, split.mirrors)
        for live, spec in revisions
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
    if spec is None or spec.reloadable is None:
        return None
    replicas = list(replicas)
    return ReplicaSetSnapshot(
        policy=spec.config.policy,
        cannot_start=_cannot_start(spec, replicas, now, failures, last_error),
        idempotent=spec.idempotent,
        reported=spec.config.autoscaling_config is not None,
        scaled_to_zero=spec.target == 0,
        replicas=tuple(
            PublishedReplica(
                replica.id,
                replica.location.address,
                replica.location.remote_address,
                replica.location.node,
                spec.reloadable.max_ongoing_requests,
                spec.reloadable.max_open_streams,
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
    if not spec.target or any(replica.phase in (Phase.RUNNING, Phase.RECOVERING) for replica in replicas):
        return None
    tries = [
        replica
        for replica in replicas
        if replica.phase is Phase.STARTING and replica.template_hash == spec.template_hash
    ]
    began = [replica.since for replica in tries]
    if backoff.cannot_start(failures, spec.template_hash, began, now, spec.config.startup_timeout_s):
        return StartBlocked("starts_fail", backoff.exception_name(last_error))
    if tries:
        never = all(replica.unplaceable is not None and replica.unplaceable.for_ever for replica in tries)
        return StartBlocked("no_room") if never else None
    if backoff.is_held_back(failures, spec.template_hash, spec.target, now):
        return StartBlocked("held_back")
    return None


def unrouting(replicas: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    """Return the replicas that are no longer published, but that some callers may still send requests to."""
    return [replica for replica in replicas if replica.phase is Phase.DRAINING and not replica.unrouted]
