"""Where the controller posts what callers need to know, and who has taken note of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app_toolkit.clock import Clock
from app_toolkit.interfaces import Snapshot, Version

LEASE_S = 10.0
"""How long after its last watch a caller is taken for alive. One that lives watches again at once."""

LONGEST_WATCH_S = 30.0
"""A longer one is cut to this, so that the lease of a caller that died in it ends in a known time."""

TOMBSTONES = 1_000
"""Removed keys that are remembered, so that whoever watched them is told."""


@dataclass(slots=True)
class _Caller:
    until: float
    holds: dict[str, Version] = field(default_factory=dict)
    """What it said it has seen."""
    told: dict[str, Version] = field(default_factory=dict)
    """What it was given since; it may not have taken it up yet."""
    watching: int = 0


class Board:
    """Versioned snapshots by key.

    * A key's version moves only when its value does, and is newer than any of an earlier epoch.
    * A watch never misses the last snapshot of a key; it may miss those between.
    * A snapshot is acknowledged once every caller that lives and was ever told of its key has come back with
      it.
    * A key that this board has never had is not told as removed until `settle` says that the board is
      complete.

    Belongs to one event loop.
    """

    def __init__(self, epoch: int, clock: Clock) -> None:
        self.epoch = epoch
        self._clock = clock
        self._number = 0
        self._snapshots: dict[str, Snapshot] = {}
        self._removed: dict[str, Snapshot] = {}
        self._settled: Version | None = None
        self._unsettled: tuple[str, ...] = ()
        self._callers: dict[str, _Caller] = {}
        self._watches: set[asyncio.Future[None]] = set()
        # Callers of the controller before this one live on and are not known here until they come.
        self._unknown_until = clock.now() + LEASE_S if epoch > 1 else clock.now()

    # The controller's side

    def post(self, key: str, value: Any) -> Version:
        """Post plain data under a key; gives the version under which it stands."""
        there = self._snapshots.get(key)
        if there is not None and there.value == value:
            return there.version
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

    def settle(self, but: tuple[str, ...] = ()) -> None:
        """From now on a key that is not here does not exist: whoever saw it in an earlier epoch is told.

        Unless it begins like one of these.
        """
        self._settled, self._unsettled = self._next(), but
        self._wake()

    def version(self, key: str) -> Version | None:
        snapshot = self._snapshots.get(key)
        return None if snapshot is None else snapshot.version

    def acknowledged(self, key: str, version: Version) -> bool:
        """Whether nobody alive goes by an older snapshot of this key."""
        self._forget_the_dead()
        if self._clock.now() < self._unknown_until:
            return False
        return all(self._has(caller, key, version) for caller in self._callers.values())

    def next_expiry(self) -> float | None:
        """When the next lease ends if its caller does not come back."""
        ends = [caller.until for caller in self._callers.values()]
        if self._clock.now() < self._unknown_until:
            ends.append(self._unknown_until)
        return min(ends, default=None)

    def forgive(self, seconds: float) -> None:
        """Set every lease forward: nobody could come while we did not look."""
        self._unknown_until += seconds
        for caller in self._callers.values():
            caller.until += seconds

    def forget(self, caller: str) -> None:
        """End a caller's lease now: it is known to be gone."""
        self._callers.pop(caller, None)

    @property
    def callers(self) -> list[str]:
        self._forget_the_dead()
        return sorted(self._callers)

    def callers_of(self, beginning: str) -> list[str]:
        """Those that live and go by a snapshot of a key with this beginning, as `watch` reads it."""
        self._forget_the_dead()
        return sorted(
            name
            for name, caller in self._callers.items()
            if any(_begins(key, beginning) for key in (*caller.holds, *caller.told))
        )

    def close(self) -> None:
        """Send every watch home."""
        self._wake()

    # The callers' side

    async def watch(
        self, caller: str, seen: Mapping[str, Version], timeout_s: float, beginning: str | tuple[str, ...] = ""
    ) -> dict[str, Snapshot]:
        """The keys that are newer than `seen`, at once or as soon as there are any; none after `timeout_s`.

        Only keys with this `beginning`, or one of these: of what a caller is never told, it need not take note; a key
        with a slash behind it is the beginning of that one alone. What is passed as seen is thereby acknowledged. A
        removed key is told as a snapshot of None.
        """
        self._forget_the_dead()
        timeout_s = min(timeout_s, LONGEST_WATCH_S)
        known = self._callers.setdefault(caller, _Caller(0.0))
        known.until = max(known.until, self._clock.now() + timeout_s + LEASE_S)
        known.holds = dict(seen)
        known.told.clear()
        known.watching += 1
        try:
            news = self._newer(seen, beginning)
            if not news:
                await self._changed(timeout_s)
                news = self._newer(seen, beginning)
            known.told.update((key, snapshot.version) for key, snapshot in news.items())
            return news
        finally:
            known.watching -= 1
            if not known.watching:
                known.until = self._clock.now() + LEASE_S

    def _newer(self, seen: Mapping[str, Version], beginning: str | tuple[str, ...]) -> dict[str, Snapshot]:
        news = {
            key: s
            for key, s in self._snapshots.items()
            if _begins(key, beginning) and (key not in seen or seen[key] < s.version)
        }
        for key, version in seen.items():
            if key in self._snapshots:
                continue
            removed = self._removed.get(key)
            if removed is None and self._settled is not None and version.epoch < self.epoch:
                removed = None if key.startswith(self._unsettled) else Snapshot(self._settled, None)
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

    # Inside

    def _next(self) -> Version:
        self._number += 1
        return Version(self.epoch, self._number)

    def _wake(self) -> None:
        for woken in self._watches:
            if not woken.done():
                woken.set_result(None)

    @staticmethod
    def _has(caller: _Caller, key: str, version: Version) -> bool:
        oldest = caller.holds.get(key, caller.told.get(key))
        return oldest is None or oldest >= version

    def _forget_the_dead(self) -> None:
        now = self._clock.now()
        dead = [name for name, caller in self._callers.items() if caller.until <= now]
        for name in dead:
            del self._callers[name]


def _begins(key: str, beginning: str | tuple[str, ...]) -> bool:
    return f"{key}/".startswith(beginning)


async def within(clock: Clock, seconds: float, future: asyncio.Future[Any]) -> bool:
    """Wait for a future on a clock of our own; False when the time was over first."""
    alarm = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
    try:
        await asyncio.wait({alarm, future}, return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        alarm.cancel()
        await asyncio.gather(alarm, return_exceptions=True)
