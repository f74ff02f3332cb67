"""The preference of a request or call: what decides which replicas it prefers, and what became of that.

The proxy and the clients of deployments create it. `exchange.placement` has one file for each kind of preference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from app_toolkit.types import ReplicaId

Outcome = Literal["kept", "spilled", "gone"]
"""What became of the key of an attempt, or of the preference that a routing policy had for it.

* kept: its session is at the replica, the replica holds the key, or the key or the policy prefers the replica.
* spilled: another replica got the request, because that one had no room, or clearly more load than others.
* gone: the replica of the session does not exist any more.
"""


@dataclass(frozen=True, slots=True)
class RoutedCall:
    """A call whose replica is chosen by a routing policy."""

    method: str
    args: tuple[Any, ...]
    """The positional arguments. The result of another call that was passed on without being read is None."""
    kwargs: Mapping[str, Any]
    """The keyword arguments, likewise."""


@dataclass(slots=True)
class Preference:
    """What decides which replicas a request or call prefers. The first field that is set decides.

    It is never changed. It is not frozen, because requests with a key create one, and that would take twice as long.
    """

    session: str = ""
    """The digest of the only replica that knows its session (`exchange.session_pins.digest`). The request waits for
    this replica. If the replica is gone, the next field decides."""
    key: str = ""
    """The affinity key. It prefers the replicas that hold it, or else the replica of its hash."""
    prefixes: tuple[bytes, ...] = ()
    """The digests of the prefixes of a conversation, the shortest first. It prefers the replica that has served the
    longest one."""
    call: RoutedCall | None = None
    """The call, if a function of the user chooses the replica."""
    replica: ReplicaId | None = None
    """The replica that serves the client. It is used unless it has no room, or another one has clearly less load."""
    streamed: bool = False
    """Whether the previous response to this client was a stream."""
    stays: bool = False
    """Whether the client will keep the replica. Then, of two replicas with equal load, it gets the one that was not
    picked last."""

    @property
    def group(self) -> tuple[str, str]:
        """What decides which replicas the request may use. A preference that only ranks them allows all of them."""
        return self.session, "" if self.session else self.key


NO_PREFERENCE = Preference()
NEW_CLIENT = Preference(stays=True)
"""The preference of a client without a replica that will keep the one it gets."""


def keyed(key: str | None) -> Preference:
    """Return the preference of an affinity key; None: there is none."""
    return NO_PREFERENCE if key is None else Preference(key=key)


@lru_cache(4_096)  # a client sends several requests on its connection
def served_by(replica: ReplicaId, streamed: bool = False) -> Preference:
    """Return the preference of a connection whose previous response came from this replica."""
    return Preference(replica=replica, streamed=streamed, stays=True)
