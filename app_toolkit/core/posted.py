"""What callers are told: the values that stand on the board, as what JSON can say."""

from collections.abc import Iterable
from typing import Any

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core import restarts
from app_toolkit.core.reconcile import GroupSpec
from app_toolkit.core.replica_state import Phase, ReplicaRecord
from app_toolkit.core.restarts import Failure


def route_tables(applications: Iterable[ApplicationSpec], as_before: Iterable[str] = ()) -> dict[str, Any]:
    """Of every application that answers HTTP, the longest route prefix first. `as_before`: whose are not known here."""
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
        "as_before": sorted(as_before),
    }


def replica_set(
    spec: GroupSpec | None,
    replicas: Iterable[ReplicaRecord],
    now: float,
    failures: tuple[Failure, ...] = (),
    last_error: str | None = None,
) -> dict[str, Any] | None:
    """Who serves, and what callers keep to; None: nobody calls this group, or what they keep to is not known."""
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
    spec: GroupSpec,
    replicas: Iterable[ReplicaRecord],
    now: float,
    failures: tuple[Failure, ...],
    last_error: str | None,
) -> dict[str, Any] | None:
    """Where no replica serves and none will: the class of the exception. Its text is for the operator alone."""
    if not spec.target or any(each.phase in (Phase.RUNNING, Phase.RECOVERING) for each in replicas):
        return None
    tries = [each.since for each in replicas if each.phase is Phase.STARTING and each.revision == spec.revision]
    if not restarts.cannot_start(failures, spec.revision, tries, now, spec.startup_timeout_s):
        return None
    return {"exception": restarts.exception_name(last_error)}


def _unresponsive(replica: ReplicaRecord) -> dict[str, Any] | None:
    """Of one that did not answer its last probe: what ran in it."""
    if not replica.unresponsive:
        return None
    return {"running": None if replica.running is None else list(replica.running)}


def on_the_way_out(replicas: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    """Those that are not told any more, and that some callers may still send something to."""
    return [replica for replica in replicas if replica.phase is Phase.DRAINING and not replica.unrouted]
