"""The values that are published to callers, as plain data that JSON can represent."""

from collections.abc import Iterable
from typing import Any

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core import restarts
from app_toolkit.core.reconcile import ReplicaSetSpec
from app_toolkit.core.replica_state import Phase, ReplicaRecord
from app_toolkit.core.restarts import Failure


def route_tables(applications: Iterable[ApplicationSpec]) -> dict[str, Any]:
    """Return the route tables of all applications with a route prefix, the longest route prefix first."""
    served = [(spec, spec.route_prefix) for spec in applications if spec.route_prefix is not None]
    longest_first = sorted(served, key=lambda each: (-len(each[1]), each[0].name))
    return {
        "applications": [
            {
                "name": spec.name,
                "prefix": prefix,
                "default": spec.default,
                "routes": [list(route.row) for route in spec.routes],
            }
            for spec, prefix in longest_first
        ],
    }


def endpoints(
    spec: ReplicaSetSpec | None,
    replicas: Iterable[ReplicaRecord],
    now: float,
    failures: tuple[Failure, ...] = (),
    last_error: str | None = None,
) -> dict[str, Any] | None:
    """Return the endpoints of a replica set and the options for callers; None: no callers, or no known spec."""
    if spec is None or spec.policy is None or spec.live is None:
        return None
    replicas = list(replicas)
    return {
        "policy": spec.policy.model_dump(),
        "cannot_start": _cannot_start(spec, replicas, now, failures, last_error),
        "idempotent": list(spec.idempotent),
        "reported": spec.autoscaling is not None,
        "replicas": [
            {
                "id": replica.id,
                "address": replica.location.address,
                "remote_address": replica.location.remote_address,
                "node": replica.location.node,
                "max_ongoing_requests": spec.live.max_ongoing_requests,
                "max_open_streams": spec.live.max_open_streams,
                "unresponsive": _unresponsive(replica),
            }
            for replica in sorted(replicas, key=lambda replica: replica.id)
            if replica.phase in (Phase.RUNNING, Phase.RECOVERING) and replica.location is not None
        ],
    }


def _cannot_start(
    spec: ReplicaSetSpec,
    replicas: Iterable[ReplicaRecord],
    now: float,
    failures: tuple[Failure, ...],
    last_error: str | None,
) -> dict[str, Any] | None:
    """Return why no replica serves and none will soon; None: requests wait for a replica.

    `why` is `starts_fail`, with the class of the exception, `no_room`: the replicas ask for more than any node has, or
    `held_back`: the next start waits, because replicas ended as soon as they served. The text of the exception may be
    confidential and is not published.
    """
    if not spec.target or any(each.phase in (Phase.RUNNING, Phase.RECOVERING) for each in replicas):
        return None
    tries = [each for each in replicas if each.phase is Phase.STARTING and each.template_hash == spec.template_hash]
    began = [each.since for each in tries]
    if restarts.cannot_start(failures, spec.template_hash, began, now, spec.startup_timeout_s):
        return {"why": "starts_fail", "exception": restarts.exception_name(last_error)}
    if tries:
        never = all(each.unplaceable is not None and each.unplaceable.for_ever for each in tries)
        return {"why": "no_room"} if never else None
    if restarts.is_held_back(failures, spec.template_hash, spec.target, now):
        return {"why": "held_back"}
    return None


def _unresponsive(replica: ReplicaRecord) -> dict[str, Any] | None:
    """Return the requests that run in a replica which did not answer its last probe; None: it answered."""
    if not replica.unresponsive:
        return None
    return {"running": None if replica.running is None else list(replica.running)}


def unrouting(replicas: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    """Return the replicas that are no longer published, but that some callers may still send requests to."""
    return [replica for replica in replicas if replica.phase is Phase.DRAINING and not replica.unrouted]
