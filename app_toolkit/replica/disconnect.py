"""Choosing for one route what happens to its handler when the client disconnects."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from app_toolkit.errors import ConfigError
from app_toolkit.types import OnDisconnect, Scope

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

MARK = "__app_toolkit_on_disconnect__"


def on_disconnect(choice: OnDisconnect) -> Callable[[Endpoint], Endpoint]:
    """Choose what happens to one endpoint when its client disconnects. Put it below the decorator of the route.

    By default a POST keeps running, as under uvicorn. So each retry of an impatient client adds one more model call.
    Use "cancel" for a POST that only computes something.

    Parameters:
        choice: "cancel": the handler is cancelled, whatever its method. "continue": it runs to its end and does not
            learn of the disconnect. "notify": it runs to its end, and `request.is_disconnected()` becomes true. "auto":
            GET, HEAD, streams and WebSockets are cancelled.

    Raises:
        ConfigError: `choice` is another value.
    """
    words = get_args(OnDisconnect)
    if choice not in words:
        raise ConfigError(f"on_disconnect is {choice!r}, not one of {', '.join(words)}")

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, MARK, choice)
        return endpoint

    return mark


def choice_of(scope: Scope, otherwise: OnDisconnect) -> OnDisconnect:
    """Return the choice of the endpoint that the app's router has found; `otherwise` if the endpoint has none."""
    choice: OnDisconnect = getattr(scope.get("endpoint"), MARK, otherwise)
    return choice
