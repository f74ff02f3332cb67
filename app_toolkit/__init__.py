"""Serve FastAPI routers as replicas, on one machine or on a Ray cluster, and develop them in one process."""

import sys

if sys.platform == "win32":
    raise ImportError(
        "app_toolkit needs Unix sockets and file locks, which Windows does not have: install it in WSL 2, where it "
        "runs as on Linux"
    )

from app_toolkit.calls.batching import batch
from app_toolkit.calls.handle import CallFuture, Stream, call_many, in_one_process, is_multiplexed, options, remote
from app_toolkit.calls.multiplexing import multiplexed
from app_toolkit.config.models import AutoscalingConfig, DeploymentConfig, Faults, RecyclingConfig
from app_toolkit.config.settings import redis_url
from app_toolkit.contract.methods import idempotent
from app_toolkit.declare.deployment import Bound, Deployment, deployment
from app_toolkit.declare.split import Split, split
from app_toolkit.declare.toolkit import Toolkit
from app_toolkit.errors import (
    BatchError,
    ChatError,
    ConfigError,
    DeadlineExceeded,
    FaultInjected,
    InstanceEnded,
    NoReplica,
    PlacementError,
    QueueFull,
    QueueTimeout,
    ReplicaLost,
    RequestError,
    StartupError,
    StreamActive,
    StreamLogFull,
    StreamLogMissing,
    StreamUnknown,
    Superseded,
    ToolkitError,
    WaitTimeout,
)
from app_toolkit.exchange.placement.user_policy import RoutedReplica
from app_toolkit.exchange.preference import RoutedCall
from app_toolkit.instance import connect, connect_async
from app_toolkit.observability.context import (
    clear_deadline,
    deadline,
    replica_context,
    request_id,
    session_id,
    trace_context,
)
from app_toolkit.operate.instance import AsyncInstance, Instance
from app_toolkit.replica.admission.streams import lasting_stream, leave_slot, open_stream
from app_toolkit.replica.disconnect import on_disconnect
from app_toolkit.running import (
    Application,
    deploy,
    get_handle,
    run,
    shutdown,
    status,
)
from app_toolkit.userapp.batch import is_batched
from app_toolkit.userapp.graph import keeps_streams

__all__ = [
    "Application",
    "AsyncInstance",
    "AutoscalingConfig",
    "BatchError",
    "Bound",
    "CallFuture",
    "ChatError",
    "ConfigError",
    "DeadlineExceeded",
    "Deployment",
    "DeploymentConfig",
    "FaultInjected",
    "Faults",
    "Instance",
    "InstanceEnded",
    "NoReplica",
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
    "StreamActive",
    "StreamLogFull",
    "StreamLogMissing",
    "StreamUnknown",
    "Superseded",
    "Toolkit",
    "ToolkitError",
    "WaitTimeout",
    "batch",
    "call_many",
    "clear_deadline",
    "connect",
    "connect_async",
    "deadline",
    "deploy",
    "deployment",
    "get_handle",
    "idempotent",
    "in_one_process",
    "is_batched",
    "is_multiplexed",
    "keeps_streams",
    "lasting_stream",
    "leave_slot",
    "multiplexed",
    "on_disconnect",
    "open_stream",
    "options",
    "redis_url",
    "remote",
    "replica_context",
    "request_id",
    "run",
    "session_id",
    "shutdown",
    "split",
    "status",
    "trace_context",
]
