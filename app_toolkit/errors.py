"""Every error the toolkit raises.

* ToolkitError
  - ConfigError             a mistake of the developer or the operator; nothing was started (exit code 2)
      TargetError           a target that cannot be imported, or is not an app
      PlanningError         an app that cannot be split into ingresses
      FileError             a file of applications with mistakes
      OverrideError         overrides that the deployments of an app cannot have
      PlacementError        a replica that requires more than there is
      StartupError          an app whose startup failed
      InsecurePath          a folder or a file that other users of the machine could read, change or replace
      WaitTimeout           what was deployed did not become available within the time that the caller waits
      ReconfigureError      a running replica that could not apply options that changed
      ApplicationFrozen     409  the application is frozen, which refuses this operation
      RevisionConflict      409  another client has changed the desired state in the meantime
      Superseded                 another client has replaced or deleted what this one deployed, before it was up
  - InstanceEnded           another client has shut the instance down
  - BatchError              a batch function returned no result for an item; an error of the app like any other
  - ChatError               a chat model cannot serve a request; carries the HTTP status
  - RequestError            one request failed; carries the HTTP status that its client gets
      BadRequest            400  the head or the framing is not valid HTTP
      NotFound              404  no application has a matching route prefix, or it no longer serves the path
      RequestTimeout        408  the request did not arrive in time
      ContentTooLarge       413  the body is longer than `max_body_size`
      URITooLong            414
      StreamUnknown         404  the stream log has no such stream (any more)
      StreamActive          409  a stream with this key has not ended
      Misdirected           421  a route of another ingress
      TooManyRequests       429  the client has sent more requests than a limit of it allows
      HeadTooLarge          431
      RemoteError           500  a deployment's error or result that cannot be transferred to its caller
      NotSupported          501  a method or a transfer coding that is not supported
      BadResponse             502  the app sent a response that cannot be read
      ReplicaLost           502  the replica was lost, and the outcome is unknown
      NoReplica             503  no replica serves this deployment
        CannotStart         503  no replica of this deployment runs, and those that are started fail
      QueueFull             503
      QueueTimeout          503  no replica had room in time
      TooManyWebSockets     503  every replica has `max_open_websockets` open
      TooManyConnections    503  the proxy has `max_connections` clients
      StreamLogMissing      503  the stream log of the application is not deployed, or not configured
      StreamLogFull         503  the stream log has reached one of its `StreamLimits`
      FaultInjected         503  the option `faults` has aborted the request, with this status or another one
      DeadlineExceeded      504  `request_timeout_s` passed, in the queue or before the first byte of the response
      VersionNotSupported   505
  - ReplicaSignal           a replica's response to its router; clients never get it
      ReplicaBusy           not admitted: user code did not run, so another replica may serve the request
      ReplicaGone           the replica was not reached, or its connection broke
        ResponseUnreadable    the response is not valid HTTP, and the replica still runs
        NotRead             the connection broke before the replica had read all that was sent
  - ControlError            between the components that control the instance
      NotWell               what a replica's `check_health` raised, or that it has no free file descriptor
      Unresponsive          a replica's event loop did not answer a probe in time
      IllegalTransition     an event that is not allowed in a replica's phase
      StaleEpoch            an order of a controller that has been replaced
      Conflict              a compare-and-set whose expected value is not the current one
      CorruptValue          a value in the store that is not, or not completely, the one that a controller wrote
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar


class ToolkitError(Exception):
    """The base class of all errors of the toolkit."""


class ConfigError(ToolkitError):
    """A mistake in the code, the options or the environment. Nothing was started. A command ends with exit code 2."""

    exit_code: ClassVar[int] = 2
    status: ClassVar[int] = 400
    """The HTTP status of the admin API."""


class TargetError(ConfigError):
    pass


class PlanningError(ConfigError):
    pass


class FileError(ConfigError):
    def __init__(self, message: str, rest: Any) -> None:
        """`rest`: the parts of the file without mistakes, so that their apps can be checked for further mistakes."""
        super().__init__(message)
        self.rest = rest


class OverrideError(ConfigError):
    def __init__(self, mistakes: Sequence[tuple[tuple[str, ...], str]]) -> None:
        """`mistakes`: for each one the place, beginning with the deployment's name, and the text."""
        super().__init__("; ".join(f"{where[0]}: {why}" for where, why in mistakes))
        self.mistakes = mistakes


class PlacementError(ConfigError):
    """A deployment asks for more than any node has, or than this machine has."""


class StartupError(ConfigError):
    """A deployment does not start, or its revision was rolled back."""


class InsecurePath(ConfigError):
    pass


class WaitTimeout(ConfigError):
    """When the time for waiting was over, a revision was not up, or the controller did not answer.

    Nothing is reverted: a rollout goes on.
    """


class ReconfigureError(ConfigError):
    pass


class RevisionConflict(ConfigError):
    status = 409


class ApplicationFrozen(ConfigError):
    """An application is frozen, and the operation would change it."""

    status = 409


class Superseded(ConfigError):
    """Another command has replaced or deleted a revision before it was up."""


class InstanceEnded(ToolkitError):
    """The instance was shut down."""


class BatchError(ToolkitError):
    """A batch function returned the wrong number of entries, so an item has no result."""


class ChatError(ToolkitError):
    """A request that a chat model cannot serve. Raise it before the first event of the response."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        """Describe the problem.

        Parameters:
            message: One sentence for the client.
            status: HTTP status. Default: 400.
            code: A word for programs, such as `context_length_exceeded`. Default: none.
            retry_after_s: Seconds after which a retry makes sense: the `Retry-After` field. Default: none.
        """
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(ChatError, status=self.status, code=self.code, retry_after_s=self.retry_after_s)
        return made, (self.message,)


class RequestError(ToolkitError):
    """A request or a call failed. `reason` names the cause, `status` is the HTTP status that the client gets."""

    status: int = 500
    reason: ClassVar[str] = "internal_error"
    retry_after_s: float | None = None
    """Seconds after which a retry makes sense: the `Retry-After` field. None: the response has no such field."""
    frequent: ClassVar[bool] = False
    """Whether overload causes thousands of these errors: the log then has one per second and ingress."""

    def document(self, request_id: str) -> dict[str, str]:
        """Return the JSON body of the response: the reason, one sentence, and the request id."""
        return {"error": self.reason, "detail": str(self), "request_id": request_id}


class BadRequest(RequestError):
    status = 400
    reason = "bad_request"


class NotFound(RequestError):
    status = 404
    reason = "not_found"


class RequestTimeout(RequestError):
    status = 408
    reason = "request_timeout"


class ContentTooLarge(RequestError):
    status = 413
    reason = "content_too_large"


class URITooLong(RequestError):
    status = 414
    reason = "uri_too_long"


class StreamUnknown(RequestError):
    """The stream log has no such stream, or no longer."""

    status = 404
    reason = "stream_unknown"


class StreamActive(RequestError):
    """A stream with this key has not ended. Follow it, or stop it first."""

    status = 409
    reason = "stream_active"


class Misdirected(RequestError):
    status = 421
    reason = "misdirected"


class TooManyRequests(RequestError):
    status = 429
    reason = "too_many_requests"
    retry_after_s = 1.0
    frequent = True


class HeadTooLarge(RequestError):
    status = 431
    reason = "head_too_large"


class RemoteError(RequestError):
    status = 500
    reason = "remote_error"


class NotSupported(RequestError):
    status = 501
    reason = "not_supported"


class BadResponse(RequestError):
    status = 502
    reason = "bad_response"


class ReplicaLost(RequestError):
    """A replica accepted the request and was lost before it answered. The outcome is unknown."""

    status = 502
    reason = "replica_lost"


class NoReplica(RequestError):
    """No replica serves the deployment. Nothing ran."""

    status = 503
    reason = "no_replica"
    retry_after_s = 1.0
    frequent = True


class CannotStart(NoReplica):
    reason = "cannot_start"


class QueueFull(RequestError):
    """`max_queued_requests` requests wait already. Nothing ran."""

    status = 503
    reason = "queue_full"
    retry_after_s = 1.0
    frequent = True


class QueueTimeout(RequestError):
    """No replica had room within `max_queue_wait_s`. Nothing ran."""

    status = 503
    reason = "queue_timeout"
    retry_after_s = 1.0
    frequent = True


NOT_TAKEN = NoReplica, QueueFull, QueueTimeout
"""Errors that say that nothing ran and that a retry is safe. A request that was lost before must not get them."""


class TooManyWebSockets(RequestError):
    status = 503
    reason = "too_many_websockets"
    retry_after_s = 1.0
    frequent = True


class TooManyConnections(RequestError):
    status = 503
    reason = "too_many_connections"
    retry_after_s = 1.0
    frequent = True


class StreamLogMissing(RequestError):
    """The application of a shared stream log is not deployed, or the server of a log in Redis is not configured."""

    status = 503
    reason = "stream_log_missing"
    frequent = True


class StreamLogFull(RequestError):
    """The stream log has reached `max_streams`, `max_unread_streams` or `max_total_bytes` of its `StreamLimits`."""

    status = 503
    reason = "stream_log_full"
    retry_after_s = 1.0
    frequent = True


class FaultInjected(RequestError):
    """The option `faults` has aborted the request on purpose. Nothing ran."""

    status = 503
    reason = "fault_injected"
    frequent = True

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class DeadlineExceeded(RequestError):
    """The deadline passed, in the queue or before the first byte of the response."""

    status = 504
    reason = "deadline_exceeded"
    frequent = True


class VersionNotSupported(RequestError):
    status = 505
    reason = "version_not_supported"


class ReplicaSignal(ToolkitError):
    pass


class ReplicaBusy(ReplicaSignal):
    def __init__(self, ongoing: int) -> None:
        super().__init__(f"the replica runs {ongoing} requests")


class ReplicaGone(ReplicaSignal):
    pass


class ResponseUnreadable(ReplicaGone):
    """The response of a running replica is not valid HTTP."""


class NotRead(ReplicaGone):
    """The connection ended before the replica had read all that was sent to it."""


class ControlError(ToolkitError):
    pass


class NotWell(ControlError):
    pass


class Unresponsive(ControlError):
    def __init__(self, why: str, running: tuple[str, ...] | None) -> None:
        """`running`: the ids of the requests that run in the replica; None: not known."""
        super().__init__(why, running)
        self.why = why
        self.running = running

    def __str__(self) -> str:
        return self.why


class IllegalTransition(ControlError):
    pass


class StaleEpoch(ControlError):
    pass


class Conflict(ControlError):
    pass


class CorruptValue(ControlError):
    pass
