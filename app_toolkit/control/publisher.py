"""Publishes snapshots to callers, and tracks which snapshots each caller has acknowledged."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app_toolkit.clock import Clock, within
from app_toolkit.interfaces import Snapshot, Version

LEASE_S = 10.0
"""Seconds after its last watch for which a caller counts as alive. Such a caller watches again at once."""

LONGEST_WATCH_S = 30.0
"""The maximum duration of a watch in seconds. It limits the lease of a caller that dies during a watch."""

TOMBSTONES = 1_000
"""The maximum number of removed keys that are kept, so that the callers that watched them are notified."""


@dataclass(slots=True)
class _Caller:
    until: float
    acknowledged: dict[str, Version] = field(default_factory=dict)
    """The versions that the caller has acknowledged, by key."""
    sent: dict[str, Version] = field(default_factory=dict)
    """The versions that were sent to the caller since then, by key. The caller may not use them yet."""
    watching: int = 0
    named: tuple[str, ...] = ()
    """The prefixes that the caller follows, without the empty one."""


class Publisher:
    """Publishes versioned snapshots by key.

    * The version of a key changes only if its value changes. It is newer than any version of an earlier epoch.
    * A watch never misses the last snapshot of a key. It may miss earlier ones.
    * A snapshot is acknowledged once every live caller to which its key was ever sent has acknowledged it.
    * A key of an earlier epoch is reported as removed only after `settle`, when all keys have been published.

    Belongs to one event loop.
    """

    def __init__(self, epoch: int, clock: Clock) -> None:
        self.epoch = epoch
        self._clock = clock
        self._number = 0
        self._snapshots: dict[str, Snapshot] = {}
        self._removed: dict[str, Snapshot] = {}
        self._settled: Version | None = None
        self._callers: dict[str, _Caller] = {}
        self._watches: set[asyncio.Future[None]] = set()
        # Callers of the previous controller are alive, but this publisher does not know them until they watch again.
        self._unknown_until = clock.now() + LEASE_S if epoch > 1 else clock.now()

    # For the controller

    def publish(self, key: str, value: Any) -> Version:
        """Publish plain data under a key, and return its version."""
        snapshot = self._snapshots.get(key)
        if snapshot is not None and snapshot.value == value:
            return snapshot.version
        self._removed.pop(key, None)
        self._snapshots[key] = Snapshot(self._next(), value)
        self._wake()
        return self._snapshots[key].version

    def remove(self, key: str) -> None:
        if self._snapshots.pop(key, None) is None:
            return
        self._removed[key] = Snapshot(self._next(), None)
        if len(self._removed) > TOMBSTONES:
            del self._removed[next(iter(self._removed))]
        self._wake()

    def settle(self) -> None:
        """Declare that all keys are published. Callers that have another key are notified of its removal."""
        self._settled = self._next()
        self._wake()

    def version(self, key: str) -> Version | None:
        snapshot = self._snapshots.get(key)
        return None if snapshot is None else snapshot.version

    def acknowledged(self, key: str, version: Version) -> bool:
        """Return whether no live caller uses an older snapshot of this key."""
        self._expire()
        if self._clock.now() < self._unknown_until:
            return False
        return all(self._has(caller, key, version) for caller in self._callers.values())

    def next_expiry(self) -> float | None:
        """Return when the next lease expires if its caller does not watch again; None: there is no lease."""
        ends = [caller.until for caller in self._callers.values()]
        if self._clock.now() < self._unknown_until:
            ends.append(self._unknown_until)
        return min(ends, default=None)

    def extend_leases(self, seconds: float) -> None:
        """Extend every lease by the time in which the controller did not run."""
        self._unknown_until += seconds
        for caller in self._callers.values():
            caller.until += seconds

    def forget(self, caller: str) -> None:
        """End the lease of a caller that has ended."""
        self._callers.pop(caller, None)

    def callers_of(self, prefix: str) -> list[str]:
        """Return the live callers that use a snapshot of a key with this prefix, as `watch` defines it.

        Callers that follow all keys because they serve clients are not among them, unless they also name the key.
        """
        self._expire()
        return sorted(
            name
            for name, caller in self._callers.items()
            if any(
                _has_prefix(key, prefix) and _has_prefix(key, caller.named)
                for key in (*caller.acknowledged, *caller.sent)
            )
        )

    def close(self) -> None:
        """End every watch."""
        self._wake()

    # For the callers

    async def watch(
        self, caller: str, seen: Mapping[str, Version], timeout_s: float, prefix: str | tuple[str, ...] = ""
    ) -> dict[str, Snapshot]:
        """Wait for snapshots that are newer than `seen`, and return them; an empty mapping after `timeout_s` seconds.

        The call acknowledges the versions in `seen`. The value of a removed key is None. `prefix` restricts the watch
        to keys with this prefix, or one of several. The caller need not acknowledge other keys. A complete key followed
        by a slash is the prefix of that key alone.
        """
        self._expire()
        timeout_s = min(timeout_s, LONGEST_WATCH_S)
        entry = self._callers.setdefault(caller, _Caller(0.0))
        entry.until = max(entry.until, self._clock.now() + timeout_s + LEASE_S)
        entry.acknowledged = dict(seen)
        entry.sent.clear()
        entry.named = tuple(name for name in ((prefix,) if isinstance(prefix, str) else prefix) if name)
        entry.watching += 1
        try:
            news = self._newer(seen, prefix)
            if not news:
                await self._changed(timeout_s)
                news = self._newer(seen, prefix)
            entry.sent.update((key, snapshot.version) for key, snapshot in news.items())
            return news
        finally:
            entry.watching -= 1
            if not entry.watching:
                entry.until = self._clock.now() + LEASE_S

    def _newer(self, seen: Mapping[str, Version], prefix: str | tuple[str, ...]) -> dict[str, Snapshot]:
        news = {
            key: s
            for key, s in self._snapshots.items()
            if _has_prefix(key, prefix) and (key not in seen or seen[key] < s.version)
        }
        for key, version in seen.items():
            if key in self._snapshots:
                continue
            removed = self._removed.get(key)
            if removed is None and self._settled is not None and version.epoch < self.epoch:
                removed = Snapshot(self._settled, None)
            if removed is not None and version < removed.version:
                news[key] = removed
        return news

    async def _changed(self, timeout_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watches.add(woken)
        try:
            await within(self._clock, timeout_s, woken)
        finally:
            self._watches.discard(woken)

    # Internals

    def _next(self) -> Version:
        self._number += 1
        return Version(self.epoch, self._number)

    def _wake(self) -> None:
        for woken in self._watches:
            if not woken.done():
                woken.set_result(None)

    @staticmethod
    def _has(caller: _Caller, key: str, version: Version) -> bool:
        oldest = caller.acknowledged.get(key, caller.sent.get(key))
        return oldest is None or oldest >= version

    def _expire(self) -> None:
        now = self._clock.now()
        dead = [name for name, caller in self._callers.items() if caller.until <= now]
        for name in dead:
            del self._callers[name]


def _has_prefix(key: str, prefix: str | tuple[str, ...]) -> bool:
    return f"{key}/".startswith(prefix)
