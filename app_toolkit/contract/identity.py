"""The identities of live revisions, replica sets and replicas. Only this module builds and takes apart their names.

The package works with keys. Their names are for what leaves a process: the wire, records, logs, metrics and status.
A replica set has the replicas of one deployment, `APPLICATION/DEPLOYMENT`, or the proxies of one node, `proxy@NODE`. A
replica is `REPLICA_SET-EPOCH-NUMBER`, with a dot instead of the slash. Names of applications and deployments contain
neither slashes nor dots nor `@`.

A replica set belongs to the live revision of an application that created it, and its key has the number of that
revision, `APPLICATION@REVISION/DEPLOYMENT`. An update in place keeps the replica sets, and so does a promotion. The
name of the first revision has no number, because most applications never have another live one.
"""

from functools import cached_property, lru_cache
from typing import NamedTuple, TypeGuard

from app_toolkit.types import NodeId, ReplicaId

FIRST = 1
"""The number of the first revision of an application."""

MAIN = 0
"""Stands for the main revision, whichever it is, in keys that belong to no replica set."""

SHARED = 4_096
"""How many keys of each kind are kept to be used again. Every call of a handle needs a key and its name."""


class _LiveRevisionFields(NamedTuple):
    application: str
    revision: int = FIRST


class LiveRevisionKey(_LiveRevisionFields):
    """Identifies a live revision of an application by the number with which its replica sets were created."""

    @cached_property
    def name(self) -> str:
        return f"{self.application}@{self.revision}" if self.revision > FIRST else self.application

    def __str__(self) -> str:
        return self.name

    def replica_set(self, deployment: str) -> "ReplicaSetKey":
        return _replica_set(self, deployment)

    @classmethod
    @lru_cache(SHARED)
    def parse(cls, name: str) -> "LiveRevisionKey":
        """Return the key with this name. Raises `ValueError` if what follows the `@` is no revision after the first."""
        application, at, revision = name.partition("@")
        if not at:
            return cls(application)
        if not (revision.isascii() and revision.isdigit()) or revision.startswith("0") or revision == str(FIRST):
            raise ValueError(f"{name!r} is not the name of a live revision, NAME or NAME@REVISION")
        return cls(application, int(revision))


class _ReplicaSetFields(NamedTuple):
    application: str
    deployment: str
    revision: int = FIRST


class ReplicaSetKey(_ReplicaSetFields):
    """Identifies the replica set of one deployment, or a split among those of all applications."""

    @cached_property
    def name(self) -> str:
        return f"{self.live_revision}/{self.deployment}"

    def __str__(self) -> str:
        return self.name

    @cached_property
    def live_revision(self) -> LiveRevisionKey:
        return LiveRevisionKey(self.application, self.revision)

    @property
    def main(self) -> "ReplicaSetKey":
        """Stands for this deployment in the main revision, whichever it is. It is the same for all live revisions."""
        return ReplicaSetKey(self.application, self.deployment, MAIN)

    @classmethod
    @lru_cache(SHARED)
    def parse(cls, name: str) -> "ReplicaSetKey":
        """Return the key with this name. Raises `ValueError` if the name is that of proxies, or no name."""
        live, slash, deployment = name.partition("/")
        if not (live and slash and deployment):
            raise ValueError(f"{name!r} is not the name of the replica set of a deployment, APPLICATION/DEPLOYMENT")
        return LiveRevisionKey.parse(live).replica_set(deployment)


@lru_cache(SHARED)
def _replica_set(live: LiveRevisionKey, deployment: str) -> ReplicaSetKey:
    return ReplicaSetKey(live.application, deployment, live.revision)


class _ProxySetFields(NamedTuple):
    node: NodeId


class ProxySetKey(_ProxySetFields):
    """Identifies the replica set of the proxies of one node."""

    @cached_property
    def name(self) -> str:
        return f"proxy@{self.node}"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, name: str) -> "ProxySetKey":
        """Return the key with this name. Raises `ValueError` if it is the name of another replica set."""
        kind, at, node = name.partition("@")
        if kind != "proxy" or not at or "/" in node:
            raise ValueError(f"{name!r} is not the name of a replica set of proxies, proxy@NODE")
        return cls(NodeId(node))


AnySetKey = ReplicaSetKey | ProxySetKey
"""Identifies any replica set."""


def parse_set(name: str) -> AnySetKey:
    """Return the key of the replica set with this name. Raises `ValueError` if it is no name."""
    return ReplicaSetKey.parse(name) if "/" in name else ProxySetKey.parse(name)


def live_revision_of(name: str) -> LiveRevisionKey | None:
    """Return the live revision of a replica set, by its name in records, metrics or status.

    None for proxies, and for callers that are no replicas.
    """
    return ReplicaSetKey.parse(name).live_revision if "/" in name else None


def proxy_set_of(name: str) -> ProxySetKey | None:
    """Return the replica set of proxies, by its name in records; None: the name is another."""
    try:
        return ProxySetKey.parse(name)
    except ValueError:
        return None


def are_proxies(key: AnySetKey) -> TypeGuard[ProxySetKey]:
    return isinstance(key, ProxySetKey)


def parts_of(text: str) -> tuple[str, str | None]:
    """Return the application, and the deployment or split, that a user names. None: only an application."""
    application, slash, part = text.partition("/")
    return application, part if slash else None


def dotted(replica_set: AnySetKey) -> str:
    """Return a name without a slash, as ids of replicas and cookies have it."""
    return replica_set.name.replace("/", ".")


def replica_id(replica_set: AnySetKey, epoch: int, number: int) -> ReplicaId:
    """Return a unique id: each epoch is taken once."""
    return ReplicaId(f"{dotted(replica_set)}-{epoch}-{number}")


def live_revision_of_caller(caller: str) -> LiveRevisionKey | None:
    """Return the live revision that a caller is a replica of; None: it is no replica of a deployment."""
    return live_revision_of(_set_name(caller))


def replica_set_of(id: ReplicaId) -> AnySetKey:
    """Return the key of the replica set that a replica belongs to."""
    return parse_set(_set_name(id))


def _set_name(id: str) -> str:
    return id.rsplit("-", 2)[0].replace(".", "/")
