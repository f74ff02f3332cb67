"""Decides whether a handler continues after a client disconnect."""

from app_toolkit.types import OnDisconnect

READING = frozenset({"GET", "HEAD"})
"""Methods that only read: without a client, their response has no use."""


def stops(choice: OnDisconnect, kind: str, method: str, answering: bool) -> bool:
    """Return whether to cancel the handler after a client disconnect.

    `kind`: "http" or "websocket". `answering`: the response has begun and is therefore a stream.
    """
    if choice == "auto":
        return kind == "websocket" or method in READING or answering
    return choice == "cancel"
