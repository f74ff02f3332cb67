"""Whether a handler goes on when its client has gone."""

from app_toolkit.types import OnDisconnect

READING = frozenset({"GET", "HEAD"})
"""Methods that only fetch: without a client there is nothing to do."""


def stops(wish: OnDisconnect, kind: str, method: str, answering: bool) -> bool:
    """Whether to stop a handler. `kind`: "http" or "websocket"; `answering`: its answer has begun, so is a stream."""
    if wish == "auto":
        return kind == "websocket" or method in READING or answering
    return wish == "cancel"
