"""The errors with which the proxy answers instead of an app."""

from collections.abc import Mapping

from app_toolkit.errors import DeadlineExceeded, RequestError
from app_toolkit.proxy.stages import Stage

OVERDUE: Mapping[Stage, str] = {
    Stage.ARRIVING: "the body of the request did not arrive",
    Stage.WAITING: "no replica took the request",
    Stage.ANSWERED: "the request was not answered in full",
}


def late(stage: Stage, timeout: float) -> DeadlineExceeded:
    """The error for a deadline that passes in this stage; it was `timeout` seconds after the request came."""
    return DeadlineExceeded(f"{OVERDUE.get(stage, 'the request was not answered')} within its {timeout:g} s")


def as_request_error(error: Exception) -> RequestError:
    """The error itself, or one that does not tell the client about a mistake in the proxy."""
    if isinstance(error, RequestError):
        return error
    failed = RequestError("the proxy failed")
    failed.__cause__ = error
    return failed
