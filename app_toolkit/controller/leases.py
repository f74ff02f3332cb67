"""Who keeps which applications in the foreground, and until when."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEASE_S = 30.0
"""How long an instance outlives whoever holds it in the foreground."""


@dataclass(slots=True)
class _Lease:
    until: float
    ttl_s: float
    applications: set[str]
    """What goes when it ends."""


class Leases:
    """Each lease by its owner; an application is in one of them at most."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}

    def __contains__(self, owner: str) -> bool:
        return owner in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def read(self, kept: Mapping[str, Any], now: float) -> None:
        """Take what `plain` once gave; each begins anew."""
        self._leases = {owner: _Lease(now + ttl_s, ttl_s, set(held)) for owner, (ttl_s, held) in kept.items()}

    def plain(self) -> dict[str, Any]:
        """All but the times, which mean nothing to another clock."""
        return {owner: [lease.ttl_s, sorted(lease.applications)] for owner, lease in self._leases.items()}

    def hold(self, owner: str, ttl_s: float, now: float) -> None:
        """Take or renew."""
        lease = self._leases.setdefault(owner, _Lease(0.0, ttl_s, set()))
        lease.until, lease.ttl_s = now + ttl_s, ttl_s

    def end(self, owner: str, now: float) -> set[str]:
        """Let it be over now; gives what it holds."""
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

    def holder(self, application: str) -> str | None:
        return next((owner for owner, lease in self._leases.items() if application in lease.applications), None)

    def over(self, now: float) -> dict[str, list[str]]:
        """Those that have ended: what each holds. They stay until they are removed."""
        return {owner: sorted(lease.applications) for owner, lease in self._leases.items() if lease.until <= now}

    def remove(self, owner: str) -> None:
        del self._leases[owner]

    @property
    def due(self) -> float | None:
        """When the next one ends."""
        return min((lease.until for lease in self._leases.values()), default=None)

    def forgive(self, seconds: float) -> None:
        """Set every lease forward: nobody could renew one."""
        for lease in self._leases.values():
            lease.until += seconds
