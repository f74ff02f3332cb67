"""A state store in memory, for tests."""

from app_toolkit.errors import Conflict


class MemoryStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        there = self.values.get(key)
        if there != expected:
            raise Conflict(f"{key!r} holds {there!r}, not {expected!r}")
        self.values[key] = value

    async def delete(self, key: str) -> None:
        self.values.pop(key, None)

    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))
