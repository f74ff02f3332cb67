"""The errors that the proxy responds with itself."""

from collections.abc import Mapping

from app_toolkit.errors import DeadlineExceeded, RequestError
from app_toolkit.proxy.stages import Stage

OVERDUE: Mapping[Stage, str] = {
    Stage.ARRIVING: "the body of the request did not arrive",
    Stage.WAITING: "no replica took the request",
    Stage.RESPONDING: "the request was not answered in full",
}


def late(stage: Stage, timeout: float) -> DeadlineExceeded:
    """Return the error for a deadline that passes in this stage, `timeout` seconds after the request arrived."""
    return DeadlineExceeded(f"{OVERDUE.get(stage, 'the request was not answered')} within its {timeout:g} s")


def as_request_error(error: Exception) -> RequestError:
    """Return the error if it is a `RequestError`, else a general one that hides internal details from the client."""
    if isinstance(error, RequestError):
        return error
    failed = RequestError("the proxy failed")
    failed.__cause__ = error
    return failed
