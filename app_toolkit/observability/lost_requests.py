"""The requests and calls that ran in replicas when these were lost, until they are reported to the controller."""

from collections import Counter

from app_toolkit.contract.loads import Lost
from app_toolkit.observability.records import Record
from app_toolkit.types import ReplicaId

MOST_REPLICAS = 16
"""Replicas whose requests are kept. Those of others are dropped."""

MOST_NAMES = 20
"""Different names that are kept for each replica. Requests with other names are counted as `OTHERS`."""

LONGEST_NAME = 100
"""Characters of a name that are kept."""

OTHERS = "others"


class LostRequests:
    """A subscriber of the records of one process. Not thread-safe."""

    def __init__(self) -> None:
        self._lost: dict[ReplicaId, Counter[str]] = {}

    def add(self, record: Record) -> None:
        for attempt in record.failed:
            if attempt.result == "lost":
                self._note(ReplicaId(attempt.replica), _name(record))

    def take(self) -> Lost:
        """Return the requests since the last call."""
        lost, self._lost = self._lost, {}
        return lost

    def _note(self, replica: ReplicaId, name: str) -> None:
        if replica not in self._lost and len(self._lost) >= MOST_REPLICAS:
            return
        requests = self._lost.setdefault(replica, Counter())
        requests[name if name in requests or len(requests) < MOST_NAMES else OTHERS] += 1


def _name(record: Record) -> str:
    method = record.method.decode("latin-1")
    if record.kind == "call":
        return f"{record.deployment}.{method}"
    # The query may contain secrets.
    path = record.path.partition(b"?")[0].decode("latin-1")
    name = f"{method} {path}"[:LONGEST_NAME]
    return name if name.isprintable() else ascii(name)
