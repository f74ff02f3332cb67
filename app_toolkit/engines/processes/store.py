"""The state store: one SQLite file in the private folder of the instance."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app_toolkit.errors import Conflict, ControlError, CorruptValue

BUSY_S = 10.0
"""Seconds that an operation waits while another process writes."""

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SQLiteStore:
    """Keeps values in a file. Each operation opens and closes it, so a forked process inherits no connection.

    It stays open only within `kept_open`.

    The operations are as short as a write to a local file, so they do not leave the event loop. A damaged file raises
    `CorruptValue`; `delete` then replaces it with an empty one. A full disk raises `ControlError`.
    """

    def __init__(self, path: Path) -> None:
        """`path`: the file, which is created if it does not exist."""
        self._path = path
        self._stays_open = False
        self._kept: sqlite3.Connection | None = None

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the file open within this context. Only this thread may use the store, and the process must not fork.

        When the last connection to a file closes, SQLite writes its log back to the file and waits for the disk, which
        takes most of the time of an operation.
        """
        self._stays_open = True
        try:
            yield
        finally:
            self._stays_open = False
            if self._kept is not None:
                self._kept.close()
                self._kept = None

    async def get(self, key: str) -> bytes | None:
        with self._opened() as store:
            row = store.execute("SELECT value FROM pairs WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        with self._opened() as store:
            if expected is None:
                written = store.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?)", (key, value))
            else:
                written = store.execute(
                    "UPDATE pairs SET value = ? WHERE key = ? AND value = ?", (value, key, expected)
                )
        if not written.rowcount:
            raise Conflict(f"{key} no longer holds what was expected")

    async def delete(self, key: str) -> None:
        try:
            with self._opened() as store:
                store.execute("DELETE FROM pairs WHERE key = ?", (key,))
        except CorruptValue:
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._path}{suffix}")

    async def keys(self, prefix: str) -> list[str]:
        with self._opened() as store:
            rows = store.execute(
                "SELECT key FROM pairs WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix)
            ).fetchall()
        return [key for (key,) in rows]

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        store, self._kept = self._kept, None
        try:
            if store is None:
                store = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
                store.execute("PRAGMA synchronous = NORMAL")
                if not store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'pairs'").fetchone():
                    store.execute("PRAGMA journal_mode = WAL")
                    store.execute("CREATE TABLE IF NOT EXISTS pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
            yield store
            if self._stays_open:
                self._kept, store = store, None
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) in DAMAGED:
                raise CorruptValue(f"the state store {self._path} is damaged: {error}") from error
            raise ControlError(f"the state store {self._path} cannot be used: {error}") from error
        finally:
            if store is not None:
                store.close()
