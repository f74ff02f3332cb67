"""Short forms of the keys that tests name, and of what has them."""

from typing import Any

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.contract.identity import AnySetKey, LiveRevisionKey, ProxySetKey, ReplicaSetKey
from app_toolkit.control.application_specs import Revision, replica_set_specs
from app_toolkit.control.reconcile import ReplicaSetSpec
from app_toolkit.types import NodeId


def app(name: str) -> LiveRevisionKey:
    return LiveRevisionKey.parse(name)


def key(name: str) -> ReplicaSetKey:
    """Return the key of the replica set of a deployment, `APPLICATION/DEPLOYMENT`."""
    return ReplicaSetKey.parse(name)


def proxies_of(node: NodeId) -> ProxySetKey:
    return ProxySetKey(node)


def sets_of(*specs: ApplicationSpec, spread: bool = False, **options: Any) -> dict[AnySetKey, ReplicaSetSpec]:
    """Return the replica sets of the first revisions of these applications."""
    found: dict[AnySetKey, ReplicaSetSpec] = {}
    for spec in specs:
        found |= replica_set_specs(app(spec.name), [Revision(1, spec)], spread=spread, **options)
    return found
