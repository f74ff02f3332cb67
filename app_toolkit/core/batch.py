"""When a batch closes, and which items are in it.

Items keep the order in which they came. A batch closes as soon as it is full, or once its first item has been there for
`batch_wait_timeout_s`, and only while fewer than `max_concurrent_batches` run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from app_toolkit.errors import ConfigError

T = TypeVar("T")

BOUNDS: dict[str, tuple[type, int, int]] = {
    "max_batch_size": (int, 1, 1_000_000_000),
    "batch_wait_timeout_s": (float, 0, 3_600),
    "max_concurrent_batches": (int, 1, 1_000),
}
"""What kind of number each limit is, its least and its most."""


@dataclass(slots=True)
class BatchSettings:
    """What batches keep to. Each can be set while items come and go, and raises `ConfigError` out of its bounds.

    What is set is seen when the next item comes or the next batch ends.
    """

    max_batch_size: int = 8
    """Items in one batch, or the sum of their sizes. An item that is larger by itself goes alone."""
    batch_wait_timeout_s: float = 0.01
    """Seconds that the first item of a batch waits for others."""
    max_concurrent_batches: int = 1
    """Batches that run at a time; while so many do, items wait for longer."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in BOUNDS:
            raise ConfigError(f"batch has no limit {name!r}, only {', '.join(BOUNDS)}")
        kind, least, most = BOUNDS[name]
        allowed = int if kind is int else (int, float)
        if not isinstance(value, allowed) or isinstance(value, bool) or not least <= value <= most:
            what = "a whole number" if kind is int else "a number"
            raise ConfigError(f"batch: {name} = {value!r}: must be {what} from {least:,} to {most:,}")
        object.__setattr__(self, name, value)


class OverriddenBatch:
    """The limits of a batch method for one object, whose deployment says some of them."""

    def __init__(self, limits: BatchSettings, given: Mapping[str, Any]) -> None:
        """What `given` has stands, whatever `limits` become; the rest is what they are at each moment."""
        self._limits = limits
        self._given = given

    @property
    def max_batch_size(self) -> int:
        return int(self._given.get("max_batch_size", self._limits.max_batch_size))

    @property
    def batch_wait_timeout_s(self) -> float:
        return float(self._given.get("batch_wait_timeout_s", self._limits.batch_wait_timeout_s))

    @property
    def max_concurrent_batches(self) -> int:
        return int(self._given.get("max_concurrent_batches", self._limits.max_concurrent_batches))


@dataclass(slots=True)
class Buffer(Generic[T]):
    """The items that no batch has taken yet. It is told all that happens.

    An item is a token of type T, which can be hashed; `now` counts seconds and never falls.
    """

    limits: BatchSettings | OverriddenBatch
    items: dict[T, tuple[int, float]] = field(default_factory=dict)
    """Each item's size, and when it came; the oldest is first."""
    size: int = 0
    """Of all items together."""
    running: int = 0
    """Batches that were closed and have not ended."""

    def add(self, item: T, size: int, now: float) -> None:
        """An item came."""
        self.items[item] = size, now
        self.size += size

    def remove(self, item: T) -> bool:
        """An item goes unserved. False: it is not here, for a batch has taken it."""
        entry = self.items.pop(item, None)
        if entry is None:
            return False
        self.size -= entry[0]
        return True

    def close(self, now: float) -> list[T]:
        """The items of a batch that is to run now; ask until there are none. It runs until `ended`."""
        closes_at, most = self.closes_at, self.limits.max_batch_size
        if closes_at is None or (self.size < most and now < closes_at):
            return []
        batch: list[T] = []
        room = most
        for item, (size, _) in self.items.items():
            if batch and size > room:
                break
            batch.append(item)
            room -= size
        for item in batch:
            self.remove(item)
        self.running += 1
        return batch

    def ended(self) -> None:
        """A batch that ran has ended."""
        self.running -= 1

    @property
    def closes_at(self) -> float | None:
        """When the next batch closes at the latest. None: nobody is here, or a batch that runs has to end first."""
        if not self.items or self.running >= self.limits.max_concurrent_batches:
            return None
        _, came = next(iter(self.items.values()))
        return came + self.limits.batch_wait_timeout_s
