"""The names of replica sets and replicas. Only this module builds and parses them.

A replica set has the replicas of one deployment, `APPLICATION/DEPLOYMENT`, or the proxies of one node, `proxy@NODE`. A
replica is `REPLICA_SET-EPOCH-NUMBER`, with a dot instead of the slash. Names of applications and deployments contain
neither slashes nor dots nor `@`.
"""

from typing import NamedTuple

from app_toolkit.types import NodeId, ReplicaId

PROXIES = "proxy@"
"""The prefix of the names of replica sets of proxies."""


class ReplicaSetKey(NamedTuple):
    """Identifies the replica set of one deployment. `str()` is its name, and `parse` the inverse."""

    application: str
    deployment: str

    def __str__(self) -> str:
        return f"{self.application}/{self.deployment}"

    @classmethod
    def parse(cls, name: str) -> "ReplicaSetKey":
        """Return the key of a replica set. Raises `ValueError` if the name is that of proxies, or no name."""
        application, slash, deployment = name.partition("/")
        if not (application and slash and deployment):
            raise ValueError(f"{name!r} is not the name of the replica set of a deployment, APPLICATION/DEPLOYMENT")
        return cls(application, deployment)


def application_of(replica_set: str) -> str | None:
    """Return the application that a replica set belongs to; None for proxies, and for callers that are no replicas."""
    application, slash, _ = replica_set.partition("/")
    return application if slash else None


def proxies_of(node: NodeId) -> str:
    """Return the name of the replica set of a node's proxies."""
    return f"{PROXIES}{node}"


def are_proxies(replica_set: str) -> bool:
    return replica_set.startswith(PROXIES)


def node_of(proxies: str) -> NodeId:
    """Return the node of a replica set of proxies."""
    return NodeId(proxies.removeprefix(PROXIES))


def replica_id(replica_set: str, epoch: int, number: int) -> ReplicaId:
    """Return a unique id: each epoch is taken once."""
    return ReplicaId(f"{replica_set.replace('/', '.')}-{epoch}-{number}")


def replica_set_of(id: ReplicaId) -> str:
    """Return the name of the replica set that a replica belongs to."""
    return id.rsplit("-", 2)[0].replace(".", "/")
