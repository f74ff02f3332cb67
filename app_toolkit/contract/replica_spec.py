"""What the controller sends to a process that it starts. Plain data, no code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from app_toolkit.config.models import ApplicationConfig, ClassConfig, DeploymentConfig
from app_toolkit.contract.identity import FIRST, ReplicaSetKey
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import NodeId, ReplicaId


@cache
def unconfigured() -> DeploymentConfig:
    """Return the options of replica sets that no application configures: proxies, and deleted deployments."""
    return DeploymentConfig(name="unconfigured", startup_timeout_s=60.0, max_surge=1)


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Everything that a replica needs to start."""

    id: ReplicaId
    application: str
    config: DeploymentConfig = field(repr=False)
    """The options of the deployment when the replica starts: a `ClassConfig` for a class. They may contain secrets.

    An option that the replica reads here must have `RESTARTS`, or a change of it does not reach a running replica.
    """
    target: str
    app_dir: str
    root_path: str
    reloadable: ReloadableOptions
    """The options that change while the replica runs, as they are at its start."""
    revision: int = 0
    """The revision of the application in which the replica starts; 0: not known."""
    created: int = FIRST
    """The revision of the application that created its replica set."""
    callees: tuple[str, ...] = ()
    """The deployments that the replica's handles may call. If there are any, it gets their endpoints from snapshots."""
    working_dir: str = ""
    """The folder for relative paths of the app; empty: the current folder of the process."""
    code: str = ""
    """The hash of the packed code in the store; empty: `target` is imported."""
    artifact: str = ""
    """The hash of the files that contain `app_dir` and `working_dir`; empty: these are folders of the node."""
    sources: str = ""
    """The hash of the Python files that replace those of `app_dir` on disk; empty: they are imported from disk."""
    restarted: int = 0
    """The number of the last revision that restarted its deployment; 0: none has. A later replica imports anew."""
    application_config: ApplicationConfig = field(default_factory=ApplicationConfig)
    """The options of the application. A change of one replaces the replica."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables that the replica sets before it imports the app. They contain secrets."""
    edge: Mapping[str, Any] | None = None
    """For an ingress: `ProxyOptions` as plain data, if its replicas accept clients; None: proxies accept them."""

    @property
    def deployment(self) -> str:
        return self.config.name

    @property
    def replica_set(self) -> ReplicaSetKey:
        return ReplicaSetKey(self.application, self.deployment, self.created)

    @property
    def is_ingress(self) -> bool:
        """Whether the replica serves routes. Otherwise it serves calls of a class."""
        return not isinstance(self.config, ClassConfig)


@dataclass(frozen=True, slots=True)
class ProxySpec:
    """Everything that a proxy needs to start. Its `id` is also its name as a client of the published snapshots."""

    id: ReplicaId
    options: Mapping[str, Any]
    """`HTTPOptions` as plain data."""
    node: NodeId
    """The node that it must run on."""
    config: DeploymentConfig = field(default_factory=unconfigured)
    """The options by which the controller starts, checks and ends it."""
