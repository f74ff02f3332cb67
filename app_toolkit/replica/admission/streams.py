"""Responses that stay open: which ones are streams, and so hold no slot while they are sent."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from app_toolkit.types import Header, Scope

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

MARK = "__app_toolkit_open_stream__"
LASTING = "__app_toolkit_lasting_stream__"
EVENT_STREAM = b"text/event-stream"
LEAVE_SLOT = "app_toolkit.leave_slot"
"""The entry of the scope of a stream that `leave_slot` calls."""


def open_stream(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint whose response is a stream of any media type. Put it below the decorator of the route.

    When the head of its response has been sent, the request counts against `max_open_streams` instead of
    `max_ongoing_requests`. Responses of type `text/event-stream` do so without a mark.
    """
    setattr(endpoint, MARK, True)
    return endpoint


def lasting_stream(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint like `open_stream`, whose response may last longer than `request_timeout_s`.

    The deadline of its request ends with the head of its response.
    """
    setattr(endpoint, LASTING, True)
    return open_stream(endpoint)


def is_lasting(scope: Scope) -> bool:
    """Return whether a stream continues after the deadline of its request."""
    return getattr(scope.get("endpoint"), LASTING, False)


def is_stream(scope: Scope, fields: Iterable[Header]) -> bool:
    """Return whether a response of unknown length is a stream, by its content type or by the mark of its endpoint."""
    if scope.get("method") == "HEAD":
        return False
    if getattr(scope.get("endpoint"), MARK, False):
        return True
    return any(
        name == b"content-type" and value.partition(b";")[0].strip().lower() == EVENT_STREAM for name, value in fields
    )


def leave_slot(scope: Scope) -> None:
    """Let a request hold no slot any more, and count as no open stream: its response is over, and its work goes on.

    A drain still waits for it. Does nothing for a request whose response has not begun, or that no replica serves.

    Parameters:
        scope: The ASGI scope of the request: `request.scope`.
    """
    leave: Callable[[], None] | None = scope.get(LEAVE_SLOT)
    if leave is not None:
        leave()
