"""Which endpoints take a permit of a client that may run only so many requests at a time."""

from collections.abc import Callable
from typing import Any, TypeVar

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

NO_PERMIT = "__app_toolkit_no_permit__"


def without_permit(endpoint: Endpoint) -> Endpoint:
    """Let a request of this endpoint not count against `max_concurrent` of `api_keys`. Put it below its decorator.

    Use it if the endpoint runs no model, or if its responses take permits. Otherwise, a client whose permits are taken
    by its responses could not read, resume or stop them. The request counts against `max_per_minute`.
    """
    setattr(endpoint, NO_PERMIT, True)
    return endpoint


def takes_permit(endpoint: object) -> bool:
    """Return whether a request of this endpoint counts against a limit of requests at a time."""
    return not getattr(endpoint, NO_PERMIT, False)
