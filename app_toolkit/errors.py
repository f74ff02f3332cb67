"""Every error the toolkit raises.

* ToolkitError
  - ConfigError             the operator's or the developer's mistake; nothing was started (exit code 2)
      TargetError           a target that does not import, or holds no app
      PlanningError         an app that cannot be laid out as ingresses
      FileError             a file of applications with mistakes
      OverrideError         options over those of an app's deployments that these cannot have
      PlacementError        a replica that asks for more than the cluster has
      StartupError          the app was found but did not come up
      InsecurePath          a folder or a file that other users of the machine could read, change or replace
      WaitTimeout           what was deployed is not up within the time that somebody waits
      ReconfigureError      a replica that runs, and has not taken up the options that changed
      RevisionConflict      409  somebody else has applied something since
  - InstanceEnded           what was asked has been shut down, by somebody else
  - BatchError              a batch function gave an item no answer; an error of the app like any other
  - RequestError            one request failed; carries the HTTP status that its client sees
      BadRequest            400  the head or the framing is not HTTP as we accept it
      NotFound              404  no application has a route prefix above the path, or it serves the path no more
      RequestTimeout        408  the request did not arrive in time
      ContentTooLarge       413  the body is longer than `max_body_size`
      URITooLong            414
      Misdirected           421  a route of another ingress
      TooManyRequests       429  the client's address has `max_requests_per_client` requests at the proxy
      HeadTooLarge          431
      RemoteError           500  what a deployment raised or gave, and what cannot be brought to its caller as itself
      NotSupported          501  a method or a transfer coding we do not speak
      BadAnswer             502  the app made an answer that cannot be read
      ReplicaLost           502  the replica went away and the outcome is unknown
      NoReplica             503  nothing serves this deployment (any more)
        CannotStart         503  no replica of this deployment runs, and those that are started fail
      QueueFull             503
      QueueTimeout          503  no replica had room in time
      TooManyWebSockets     503  every replica has `max_open_websockets` open
      TooManyConnections    503  the proxy has `max_connections` clients
      DeadlineExceeded      504  `request_timeout_s` passed, in the queue or before the first byte of the answer
      VersionNotSupported   505
  - ReplicaSignal           a replica's answer to its router; never reaches a client
      ReplicaBusy           not admitted: user code never ran, so another replica may
      ReplicaGone           it was never reached, or its connection broke
        NotRead             before it had read all that was sent
  - ControlError            between the parts of the control plane
      NotWell               what a replica's `check_health` raised, or that it has no file descriptor left
      Unresponsive          a replica's event loop did not answer a probe in time
      IllegalTransition     an event that a replica's phase has no row for
      StaleEpoch            an order of a controller that has been replaced
      Conflict              a compare-and-set whose expectation no longer holds
      CorruptValue            a value in the store that is not, or not whole, what a controller wrote there
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class ToolkitError(Exception):
    """The base class of all errors of the toolkit."""


class ConfigError(ToolkitError):
    """A mistake in the code, the options or the environment. Nothing was started. A command ends with exit code 2."""

    exit_code: ClassVar[int] = 2


class TargetError(ConfigError):
    pass


class PlanningError(ConfigError):
    pass


class FileError(ConfigError):
    def __init__(self, message: str, rest: Any) -> None:
        """`rest`: the file without its mistakes, as far as it can be read: its apps can say what else is wrong."""
        super().__init__(message)
        self.rest = rest


class OverrideError(ConfigError):
    def __init__(self, mistakes: Sequence[tuple[tuple[str, ...], str]]) -> None:
        """Each: where it is, from the deployment's name on, and what is wrong there."""
        super().__init__("; ".join(f"{where[0]}: {why}" for where, why in mistakes))
        self.mistakes = mistakes


class PlacementError(ConfigError):
    pass


class StartupError(ConfigError):
    pass


class InsecurePath(ConfigError):
    pass


class WaitTimeout(ConfigError):
    pass


class ReconfigureError(ConfigError):
    pass


class RevisionConflict(ConfigError):
    status: ClassVar[int] = 409


class InstanceEnded(ToolkitError):
    pass


class BatchError(ToolkitError):
    """A batch function returned the wrong number of entries, so an item has no result."""


class RequestError(ToolkitError):
    """A request or a call failed. `reason` names the cause, `status` is the HTTP status that the client gets."""

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "internal_error"
    retry_after_s: float | None = None
    """Seconds after which a retry makes sense: the `Retry-After` field."""
    frequent: ClassVar[bool] = False
    """Whether there are thousands under load: the log names one per second and ingress."""

    def document(self, request_id: str) -> dict[str, str]:
        """The JSON body of the response: the reason, one sentence, and the request id."""
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


class BadAnswer(RequestError):
    status = 502
    reason = "bad_answer"


class ReplicaLost(RequestError):
    """A replica accepted the request and was lost before it answered. The outcome is unknown."""

    status = 502
    reason = "replica_lost"


class NoReplica(RequestError):
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
"""They say that nothing ran, and that it may come again: not to what was lost with a replica before."""


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


class AnswerUnreadable(ReplicaGone):
    """Of a replica that lives: what it answered is no HTTP."""


class NotRead(ReplicaGone):
    """It ended without having read all that was sent to it."""


class ControlError(ToolkitError):
    pass


class NotWell(ControlError):
    pass


class Unresponsive(ControlError):
    def __init__(self, why: str, running: tuple[str, ...] | None) -> None:
        """`running`: the ids of the requests that run in it; None: any request may."""
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
