"""The leases of the processes that run applications in the foreground."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

LEASE_S = 30.0
"""Seconds that an application outlives the process that runs it in the foreground."""


@dataclass(slots=True)
class _Lease:
    until: float
    ttl_s: float
    applications: set[str]
    """The names of the applications that are deleted when the lease ends."""


class Leases:
    """The leases by owner. An application belongs to at most one lease."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}

    def __contains__(self, owner: str) -> bool:
        return owner in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def read(self, stored: Mapping[str, Any], now: float) -> None:
        """Read a value that `plain` returned. Each lease begins anew."""
        self._leases = {owner: _Lease(now + ttl_s, ttl_s, set(names)) for owner, (ttl_s, names) in stored.items()}

    def plain(self) -> dict[str, Any]:
        """Return the leases as plain data, without the times, which are on the clock of this controller."""
        return {owner: [lease.ttl_s, sorted(lease.applications)] for owner, lease in self._leases.items()}

    def hold(self, owner: str, ttl_s: float, now: float) -> None:
        """Begin or renew a lease."""
        lease = self._leases.setdefault(owner, _Lease(0.0, ttl_s, set()))
        lease.until, lease.ttl_s = now + ttl_s, ttl_s

    def end(self, owner: str, now: float) -> set[str]:
        """Let a lease expire now, and return its applications."""
        lease = self._leases.get(owner)
        if lease is None:
            return set()
        lease.until = now
        return set(lease.applications)

    def add(self, owner: str, application: str) -> None:
        self._leases[owner].applications.add(application)

    def discard(self, application: str) -> None:
        for lease in self._leases.values():
            lease.applications.discard(application)

    def holdings(self) -> Iterator[tuple[str, Set[str]]]:
        """Yield the owner of each lease, and the applications that it holds."""
        for owner, lease in self._leases.items():
            yield owner, lease.applications

    def expired(self, now: float) -> dict[str, list[str]]:
        """Return the applications of each expired lease, by owner. An expired lease stays until `remove`."""
        return {owner: sorted(lease.applications) for owner, lease in self._leases.items() if lease.until <= now}

    def remove(self, owner: str) -> None:
        del self._leases[owner]

    @property
    def due(self) -> float | None:
        """When the next lease expires; None: there is no lease."""
        return min((lease.until for lease in self._leases.values()), default=None)

    def extend(self, seconds: float) -> None:
        """Extend every lease by the time in which the controller did not run and no lease could be renewed."""
        for lease in self._leases.values():
            lease.until += seconds
