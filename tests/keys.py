"""Short forms of the keys that tests name."""

from app_toolkit.core.identity import ApplicationKey, ProxySetKey, ReplicaSetKey
from app_toolkit.types import NodeId


def app(name: str) -> ApplicationKey:
    return ApplicationKey.parse(name)


def key(name: str) -> ReplicaSetKey:
    """Return the key of the replica set of a deployment, `APPLICATION/DEPLOYMENT`."""
    return ReplicaSetKey.parse(name)


def proxies_of(node: NodeId) -> ProxySetKey:
    return ProxySetKey(node)
