"""Short forms of the keys that tests name."""

from app_toolkit.core.identity import ApplicationKey, ProcessSetKey, ReplicaSetKey
from app_toolkit.types import NodeId


def app(name: str) -> ApplicationKey:
    return ApplicationKey.parse(name)


def key(name: str) -> ReplicaSetKey:
    """Return the key of the replica set of a deployment, `APPLICATION/DEPLOYMENT`."""
    return ReplicaSetKey.parse(name)


def proxies_of(node: NodeId) -> ProcessSetKey:
    return ProcessSetKey("proxy", node)


def admin_of(node: NodeId) -> ProcessSetKey:
    return ProcessSetKey("admin", node)
