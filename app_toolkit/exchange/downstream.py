"""The downstream of an exchange: the side that has sent the request, and gets the response."""

from typing import Any, Protocol

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.preference import Preference
from app_toolkit.wire.pool import ResponseHead


class Downstream(Protocol):
    """The client of one request. No method waits: what the client does not read yet is buffered.

    The order of the calls for a response is: `inform` any number of times, `prepare` and `start` once, `write` any
    number of times, and `finished` or `cut`. `open_tunnel`, `write` and `close_tunnel` are those of a WebSocket. `give`
    and `finished` are those of a response of the toolkit itself.
    """

    served: dict[ReplicaSetKey, Preference]
    """By ingress: the preference for the replica of this client's previous request."""

    head: ResponseHead | None
    """The head of the app's response. None: it has not arrived."""

    continued: bool
    """Whether a 100 allowed the client to send the body."""

    size: int
    """Bytes of the body that were written."""

    @property
    def host(self) -> str:
        """The address of the client, without its port. Empty: it has none."""

    @property
    def peers(self) -> bytes:
        """Both addresses and the scheme, as encoded by `hop.peers`."""

    @property
    def writable(self) -> bool:
        """Whether the client reads fast enough. Otherwise the exchange pauses the upstream."""

    def regulate(self) -> None:
        """Pause or resume reading from the client, as the exchange's `wants_body` requires."""

    def inform(self, head: ResponseHead) -> None:
        """Pass on an interim response, if the client may receive it."""

    def prepare(self, head: ResponseHead) -> bool:
        """Compose the head. Return whether to `start` at once, or else with the first bytes of the body."""

    def take_back(self) -> None:
        """Drop a response of which nothing has been sent to the client."""

    def start(self, data: Any = None) -> None:
        """Write the head, and the first bytes of the body or the first result. From now on, no retry is possible.

        None: the head alone.
        """

    def write(self, data: Any) -> None:
        """Write bytes of the body, or of the tunnel, or a result of a call."""

    def open_tunnel(self, head: ResponseHead) -> None:
        """Write the head of an accepted WebSocket."""

    def close_tunnel(self, why: str) -> None:
        """Close the tunnel, with a close frame if the client may still receive one."""

    def give(self, response: BuiltinResponse) -> None:
        """Write a complete response of the toolkit itself."""

    def finished(self) -> None:
        """Handle the end of a complete response: the client may send its next request."""

    def cut(self, error: Exception) -> None:
        """End a response that has begun and cannot be completed. The client must be able to detect this.

        `error`: why it cannot be completed.
        """
