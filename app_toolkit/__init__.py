"""Serve FastAPI routers as replicas, on one machine or on a Ray cluster, and develop them in one process."""

import sys

if sys.platform == "win32":
    raise ImportError(
        "app_toolkit needs Unix sockets and file locks, which Windows does not have: install it in WSL 2, where it "
        "runs as on Linux"
    )

from app_toolkit.config.models import AutoscalingConfig, DeploymentConfig, Faults, RecyclingConfig
from app_toolkit.core.methods import idempotent
from app_toolkit.core.preference import RoutedCall
from app_toolkit.deployment import Deployment, deployment
from app_toolkit.errors import (
    BatchError,
    ConfigError,
    DeadlineExceeded,
    FaultInjected,
    InstanceEnded,
    PlacementError,
    QueueFull,
    QueueTimeout,
    ReplicaLost,
    RequestError,
    StartupError,
    Superseded,
    ToolkitError,
    WaitTimeout,
)
from app_toolkit.observability.context import deadline, replica_context, request_id, session_id, trace_context
from app_toolkit.replica.admission.streams import open_stream
from app_toolkit.replica.disconnect import on_disconnect
from app_toolkit.replica.objects.batching import batch
from app_toolkit.replica.objects.multiplexing import multiplexed
from app_toolkit.router.handle import CallFuture, Stream, call_many, options, remote
from app_toolkit.router.placement.user_policy import RoutedReplica
from app_toolkit.running import (
    Application,
    abort,
    delete,
    deploy,
    events,
    get_handle,
    pause_rollout,
    promote,
    resume_rollout,
    rollback,
    rollout,
    run,
    scale,
    set_traffic,
    shutdown,
    slow,
    status,
)
from app_toolkit.split import Split, split
from app_toolkit.toolkit import Toolkit

__all__ = [
    "Application",
    "AutoscalingConfig",
    "BatchError",
    "CallFuture",
    "ConfigError",
    "DeadlineExceeded",
    "Deployment",
    "DeploymentConfig",
    "FaultInjected",
    "Faults",
    "InstanceEnded",
    "PlacementError",
    "QueueFull",
    "QueueTimeout",
    "RecyclingConfig",
    "ReplicaLost",
    "RequestError",
    "RoutedCall",
    "RoutedReplica",
    "Split",
    "StartupError",
    "Stream",
    "Superseded",
    "Toolkit",
    "ToolkitError",
    "WaitTimeout",
    "abort",
    "batch",
    "call_many",
    "deadline",
    "delete",
    "deploy",
    "deployment",
    "events",
    "get_handle",
    "idempotent",
    "multiplexed",
    "on_disconnect",
    "open_stream",
    "options",
    "pause_rollout",
    "promote",
    "remote",
    "replica_context",
    "request_id",
    "resume_rollout",
    "rollback",
    "rollout",
    "run",
    "scale",
    "session_id",
    "set_traffic",
    "shutdown",
    "slow",
    "split",
    "status",
    "trace_context",
]
