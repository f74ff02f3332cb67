"""The copies of calls for mirrors: what of their results is compared."""

from typing import Any

from app_toolkit.exchange.filters.mirror import Mirroring, Nobody
from app_toolkit.exchange.ingress_router import RoutePermit
from app_toolkit.exchange.mirrored_requests import MirroredRequest, ObservedResponse, Primary
from app_toolkit.observability.records import CLIENT_GONE
from app_toolkit.wire.calls import Frame, decode_error
from app_toolkit.wire.pool import ResponseHead

OK = "ok"
"""The status of a call that raised nothing. That of another call is the class of the exception, or its reason."""


class CallMirroring(Mirroring):
    """The copies of the calls of one event loop."""

    kind = "call"

    def primary(self, request_id: str, name: str) -> "PrimaryCall":
        return PrimaryCall(request_id, name, self.clock())

    def nobody(self, mirrored: MirroredRequest[RoutePermit], peers: bytes) -> "NobodyCalls":
        return NobodyCalls(mirrored, peers)


class PrimaryCall(Primary):
    """The call that its caller waits for."""

    __slots__ = ("_error",)

    def __init__(self, id: str, name: str, now: float) -> None:
        super().__init__(id, name, now)
        #: The class of the exception that the method has raised. Empty: it has raised none.
        self._error = ""

    def began(self, head: ResponseHead) -> None: ...

    def received(self, data: Any) -> None:
        if data.kind == "error":
            self._error = error_name(data)
        elif data.kind == "value" and isinstance(data, Frame):
            compare_result(self.response, data)
        else:  # items, and objects of this process
            self.response.comparable = False

    def ended(self, status: int, outcome: str, now: float) -> None:
        if outcome == CLIENT_GONE:
            self.abandon()
        else:
            self.end(self._error or outcome, now)


class NobodyCalls(Nobody):
    """The downstream of a copy of a call. What its mirror returns is compared, and not kept."""

    _status = OK

    @property
    def status(self) -> str:
        return self._status

    def write(self, data: Any) -> None:
        """Note a frame, or an object of this process, which is not compared."""
        if data.kind == "error":
            self._status = error_name(data)
        elif data.kind == "value" and isinstance(data, Frame):
            compare_result(self._response, data)


def error_name(data: Any) -> str:
    """Return the class of the exception in a result."""
    return type(decode_error(data) if isinstance(data, Frame) else data.value).__name__


def compare_result(response: ObservedResponse, frame: Frame) -> None:
    """Note the encoded result of a call for the comparison."""
    for piece in (frame.pickled, *frame.buffers):
        response.received(piece)
