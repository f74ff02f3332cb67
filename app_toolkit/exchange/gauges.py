"""The gauges of the requests and calls of a data plane, which each kind of plane samples."""

from app_toolkit.observability.metrics import DEPLOYMENT, declare

REQUESTS_QUEUED = declare(
    "app_toolkit_requests_queued",
    "gauge",
    "Requests that wait for a replica.",
    DEPLOYMENT,
    "proxies",
)
REQUESTS_ONGOING = declare(
    "app_toolkit_requests_ongoing",
    "gauge",
    "Requests that a replica serves.",
    DEPLOYMENT,
    "proxies",
)
OPEN_STREAMS = declare(
    "app_toolkit_open_streams",
    "gauge",
    "Streamed responses that are open.",
    DEPLOYMENT,
    "proxies",
)
OPEN_WEBSOCKETS = declare(
    "app_toolkit_open_websockets",
    "gauge",
    "WebSockets that are open.",
    DEPLOYMENT,
    "proxies",
)
CALLS_QUEUED = declare(
    "app_toolkit_calls_queued",
    "gauge",
    "Calls that wait for a replica.",
    DEPLOYMENT,
    "replicas",
)
CALLS_ONGOING = declare(
    "app_toolkit_calls_ongoing",
    "gauge",
    "Calls that a replica runs.",
    DEPLOYMENT,
    "replicas",
)
CALL_STREAMS = declare(
    "app_toolkit_call_streams",
    "gauge",
    "Calls that yield items.",
    DEPLOYMENT,
    "replicas",
)
