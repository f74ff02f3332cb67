"""Snapshots as the controller publishes them, for tests that run without one."""

from typing import Any

from app_toolkit.config.models import Policy, Route
from app_toolkit.contract.identity import LiveRevisionKey
from app_toolkit.contract.routes import RoutedApplication
from app_toolkit.contract.snapshots import PublishedReplica, ReplicaSetSnapshot, RouteSnapshot, StartBlocked, encode
from app_toolkit.contract.targets import Target
from app_toolkit.types import Address, NodeId, ReplicaId


def replica(
    id: str, address: str, max_ongoing_requests: int = 100, *, node: str = "", remote_address: Address | None = None
) -> PublishedReplica:
    """A replica that answers its probes."""
    return PublishedReplica(
        ReplicaId(id), Address(address), remote_address, NodeId(node), max_ongoing_requests, 1_000, False, None
    )


def replica_set(
    *replicas: PublishedReplica,
    reported: bool = False,
    idempotent: tuple[str, ...] = (),
    cannot_start: StartBlocked | None = None,
    scaled_to_zero: bool = False,
    **policy: Any,
) -> Any:
    """The value of a replica set."""
    return encode(ReplicaSetSnapshot(Policy(**policy), cannot_start, idempotent, reported, scaled_to_zero, replicas))


def application(
    name: str = "shop",
    prefix: str = "/",
    default: str = "web",
    *routes: Route,
    share: float = 1.0,
    tag: str | None = None,
    mirror: float = 0.0,
    **options: Any,
) -> RoutedApplication:
    """The routes of one live revision. `options`: other fields."""
    target = Target(name, LiveRevisionKey.parse(name).replica_set(default), share, tag, mirror)
    return RoutedApplication(prefix, target, routes, **options)


def routes(*applications: RoutedApplication) -> Any:
    """The value of the routes."""
    return encode(RouteSnapshot(applications))


def no_choice(able: Any) -> str:
    """Fails: several live revisions can serve the request."""
    raise AssertionError(able)
