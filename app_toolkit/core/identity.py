"""The names of replica sets and replicas. Only this module builds and parses them.

A replica set has the replicas of one deployment, `APPLICATION/DEPLOYMENT`, the proxies of one node, `proxy@NODE`, or
the admin process of the instance, `admin@NODE`. A replica is `REPLICA_SET-EPOCH-NUMBER`, with a dot instead of the
slash. Names of applications and deployments contain neither slashes nor dots nor `@`.

A candidate, which is a live revision of an application beside its main revision, has the deployments and replica sets
of an application of its own, `APPLICATION@REVISION`.
"""

from typing import NamedTuple

from app_toolkit.types import NodeId, ReplicaId

PROXIES = "proxy@"
"""The prefix of the names of replica sets of proxies."""

ADMIN = "admin@"
"""The prefix of the name of the replica set of the admin process."""


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


def split_name(application: str, split: str) -> str:
    """Return the name of a split among those of all applications."""
    return f"{application}/{split}"


def application_of(replica_set: str) -> str | None:
    """Return the application that a replica set belongs to.

    None for proxies, for the admin process, and for callers that are no replicas.
    """
    application, slash, _ = replica_set.partition("/")
    return application if slash else None


def candidate_name(application: str, revision: int) -> str:
    """Return the name of the application that a candidate is."""
    return f"{application}@{revision}"


def candidate_of(name: str) -> tuple[str, int] | None:
    """Return the application and the revision of a candidate; None: the name is that of no candidate."""
    application, at, revision = name.partition("@")
    return (application, int(revision)) if at else None


def main_name(name: str) -> str:
    """Return the name of an application without the revision of a candidate."""
    return name.partition("@")[0]


def main_replica_set(name: str) -> str:
    """Return the name of the replica set that the main revision has for a deployment."""
    key = ReplicaSetKey.parse(name)
    return str(ReplicaSetKey(main_name(key.application), key.deployment))


def proxies_of(node: NodeId) -> str:
    """Return the name of the replica set of a node's proxies."""
    return f"{PROXIES}{node}"


def are_proxies(replica_set: str) -> bool:
    return replica_set.startswith(PROXIES) and "/" not in replica_set


def admin_of(node: NodeId) -> str:
    """Return the name of the replica set of the admin process on a node."""
    return f"{ADMIN}{node}"


def is_admin(replica_set: str) -> bool:
    return replica_set.startswith(ADMIN) and "/" not in replica_set


def node_of(replica_set: str) -> NodeId:
    """Return the node of a replica set of proxies or of the admin process."""
    return NodeId(replica_set.partition("@")[2])


def replica_id(replica_set: str, epoch: int, number: int) -> ReplicaId:
    """Return a unique id: each epoch is taken once."""
    return ReplicaId(f"{replica_set.replace('/', '.')}-{epoch}-{number}")


def replica_set_of(id: ReplicaId) -> str:
    """Return the name of the replica set that a replica belongs to."""
    return id.rsplit("-", 2)[0].replace(".", "/")
