"""What became of mirrored requests and calls, as numbers that can be added."""

from dataclasses import dataclass, replace

MOST_DIFFERENCES = 20
"""The number of differences that the counts of a mirror keep, the newest ones."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A mirrored request whose response was not that of the primary. It has no bodies, no queries and no fields."""

    request_id: str
    request: str
    """The method and the path of a request, or the method of a call."""
    primary_status: str
    mirror_status: str
    primary_bytes: int
    mirror_bytes: int
    primary_s: float
    mirror_s: float


@dataclass(frozen=True, slots=True)
class MirrorCounts:
    """What became of the requests and calls that were sampled for one mirror.

    Each one that has ended is counted in one of the first four fields. Those of both sides that ended with a complete
    response are also compared.
    """

    completed: int = 0
    """Their response began."""
    failed: int = 0
    """They were sent and got no response: the replica was lost, was not reached, or did not respond in time."""
    dropped: int = 0
    """They were not sent, because this process or the replicas of the mirror had no room for them."""
    too_large: int = 0
    """They were not sent, because their body is too large."""
    same: int = 0
    """The statuses are equal, and the bodies, too, if these could be compared."""
    different_status: int = 0
    different_body: int = 0
    """The statuses are equal, and the bodies are not."""
    primary_s: float = 0.0
    """The sum of the seconds that the primary took for the requests that were compared."""
    mirror_s: float = 0.0
    """The sum of the seconds that the mirror took for them."""
    differences: tuple[Difference, ...] = ()
    """The last `MOST_DIFFERENCES` of the requests whose responses are different."""

    @property
    def different(self) -> int:
        return self.different_status + self.different_body

    @property
    def compared(self) -> int:
        return self.same + self.different

    def __add__(self, other: "MirrorCounts") -> "MirrorCounts":
        """Return the counts of two processes together."""
        return MirrorCounts(
            self.completed + other.completed,
            self.failed + other.failed,
            self.dropped + other.dropped,
            self.too_large + other.too_large,
            self.same + other.same,
            self.different_status + other.different_status,
            self.different_body + other.different_body,
            self.primary_s + other.primary_s,
            self.mirror_s + other.mirror_s,
            (*self.differences, *other.differences)[-MOST_DIFFERENCES:],
        )

    def with_pair(self, pair: Difference, *, same_body: bool) -> "MirrorCounts":
        """Return the counts with two complete responses. `same_body`: the bodies are equal, or were not compared."""
        same_status = pair.primary_status == pair.mirror_status
        same = same_status and same_body
        return replace(
            self,
            same=self.same + same,
            different_status=self.different_status + (not same_status),
            different_body=self.different_body + (same_status and not same_body),
            primary_s=self.primary_s + pair.primary_s,
            mirror_s=self.mirror_s + pair.mirror_s,
            differences=self.differences if same else (*self.differences, pair)[-MOST_DIFFERENCES:],
        )
