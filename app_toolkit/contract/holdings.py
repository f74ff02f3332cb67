"""What a replica holds: the keys for which it has what their requests need, such as the models that it has loaded."""

from dataclasses import dataclass

MOST_KEYS = 128
"""The maximum number of keys in one report. The others count as keys that the replica does not hold."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """The keys of one replica, as it reports them."""

    version: int
    """Increases with each change. A report with a lower version than a previous one is out of date."""
    keys: tuple[str, ...]
    """The most recently used key first. The last one is given up first."""
    free: int
    """The number of keys that the replica can hold in addition, without giving up another one."""

    def with_key(self, key: str) -> "Holdings":
        """Return what the replica will report when a request with this key has arrived."""
        others = self.keys if key in self.keys or self.free > 0 else self.keys[:-1]
        keys = (key, *(other for other in others if other != key))
        return Holdings(self.version, keys, self.free - (len(keys) - len(self.keys)))
