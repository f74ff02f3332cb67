"""Decides when a batch closes, and which items it contains.

Items keep the order in which they were added. A batch closes as soon as it is full, or once its first item has waited
for `batch_wait_timeout_s`, but only while fewer than `max_concurrent_batches` run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeGuard, TypeVar

from app_toolkit.errors import ConfigError

T = TypeVar("T")

BOUNDS: dict[str, tuple[type, int, int]] = {
    "max_batch_size": (int, 1, 1_000_000_000),
    "batch_wait_timeout_s": (float, 0, 3_600),
    "max_concurrent_batches": (int, 1, 1_000),
}
"""The type, the minimum and the maximum of each limit."""


@dataclass(slots=True)
class BatchSettings:
    """The limits of batches. They can be set at any time. A value out of bounds raises `ConfigError`.

    A new value takes effect when the next item is added or the next batch ends.
    """

    max_batch_size: int = 8
    """The maximum number of items in one batch, or of the sum of their sizes. An item that is larger runs alone."""
    batch_wait_timeout_s: float = 0.01
    """The maximum number of seconds for which the first item of a batch waits for others."""
    max_concurrent_batches: int = 1
    """The maximum number of batches that run at the same time. Meanwhile, items wait for longer."""

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
    """The limits of a batch method for one object, whose deployment overrides some of them."""

    def __init__(self, limits: BatchSettings, given: Mapping[str, Any]) -> None:
        """`given` has the overrides, which do not change. All other limits are the present values of `limits`."""
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
    """The items that are not in a batch yet. The owner calls a method for each event.

    An item is a token of type T, which must be hashable. `now` is in seconds and never decreases.
    """

    limits: BatchSettings | OverriddenBatch
    items: dict[T, tuple[int, float]] = field(default_factory=dict)
    """The size of each item and when it was added, oldest first."""
    size: int = 0
    """The sum of the sizes of all items."""
    running: int = 0
    """The number of batches that have closed and not ended."""

    def add(self, item: T, size: int, now: float) -> None:
        """Add an item at the end."""
        self.items[item] = size, now
        self.size += size

    def remove(self, item: T) -> bool:
        """Remove an item. Return False if it is not in the buffer, because it is in a batch already."""
        entry = self.items.pop(item, None)
        if entry is None:
            return False
        self.size -= entry[0]
        return True

    def close(self, now: float) -> list[T]:
        """Close a batch and return its items; an empty list if no batch closes now.

        Call this until the list is empty. The batch counts as running until `ended`.
        """
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
        """Note that a running batch has ended."""
        self.running -= 1

    @property
    def closes_at(self) -> float | None:
        """When the next batch closes at the latest; None: there are no items, or a running batch must end first."""
        if not self.items or self.running >= self.limits.max_concurrent_batches:
            return None
        _, came = next(iter(self.items.values()))
        return came + self.limits.batch_wait_timeout_s


def is_batched(function: object) -> TypeGuard[Callable[..., Any]]:
    """Return whether a function, or a method of a class, is made by `@batch`, so that `call_many` can call it."""
    return isinstance(getattr(function, "batch", None), BatchSettings)
