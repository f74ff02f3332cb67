"""Conversations: where the messages of chats are kept, for each user."""

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from app_toolkit.errors import ChatError, ConfigError

Message = Mapping[str, Any]
"""A UI message of the AI SDK as JSON: `id`, `role`, `parts`, and optional `metadata`."""

Result = TypeVar("Result")

UNTITLED = "New conversation"
TITLE_LENGTH = 80
"""Characters of a title."""

MAX_ID_LENGTH = 200
"""Characters of the id of a conversation or a user."""

BUSY_S = 5.0
"""Seconds for which a call waits while another process writes."""

BUSY_AGAIN_S = 0.01
"""Seconds between two attempts where SQLite itself does not wait."""

SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE conversations (
    user TEXT NOT NULL, id TEXT NOT NULL, title TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
    PRIMARY KEY (user, id)
) WITHOUT ROWID;
CREATE INDEX conversations_by_update ON conversations (user, updated);
CREATE TABLE messages (
    user TEXT NOT NULL, conversation TEXT NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (user, conversation, position),
    FOREIGN KEY (user, conversation) REFERENCES conversations (user, id) ON DELETE CASCADE
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation without its messages."""

    id: str
    title: str
    created: datetime
    updated: datetime
    """When a message was added, or the title was changed."""


@dataclass(frozen=True, slots=True)
class Conversation(Summary):
    """A conversation."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """The limits of a conversation store."""

    max_conversations: int = 1_000
    """Conversations of one user."""
    max_messages: int = 2_000
    """Messages of one conversation."""
    max_bytes: int = 8 * 2**20
    """Bytes of all messages of one conversation, as JSON in UTF-8."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"ConversationLimits: {name} = {getattr(self, name)!r}: must be 1 or above")


class ConversationStore(Protocol):
    """Keeps the conversations of each user. All methods may raise `ChatError`, which carries an HTTP status."""

    async def list(self, user: str, *, limit: int = 100, offset: int = 0) -> Sequence[Summary]:
        """Return the conversations of a user, the one that changed last first."""

    async def get(self, user: str, id: str) -> Conversation | None:
        """Return a conversation; None: the user has no conversation with this id."""

    async def replace(self, user: str, id: str, messages: Sequence[Message]) -> None:
        """Set the messages of a conversation, which is created if the user has none with this id."""

    async def append(self, user: str, id: str, message: Message, *, create: bool = False) -> bool:
        """Add a message to a conversation.

        If the conversation has a message with the same id, the new one takes its place, and the messages after it are
        removed. Return False, and change nothing, if the conversation does not exist and `create` is false.
        """

    async def rename(self, user: str, id: str, title: str) -> bool:
        """Set the title of a conversation. Return False if it does not exist."""

    async def delete(self, user: str, id: str) -> bool:
        """Delete a conversation. Return False if it does not exist."""


class SQLiteConversationStore:
    """Conversations in a SQLite database, which all processes of one machine can share.

    The calls run in a thread. The file is readable and writable only for the user of the process that creates it.
    """

    def __init__(self, path: str | os.PathLike[str], limits: ConversationLimits | None = None) -> None:
        """Name the database. It is opened, and created if necessary, by the first call.

        Parameters:
            path: The file, on a local disk, in a folder that exists. `:memory:`: the memory of this process.
            limits: Default: `ConversationLimits()`.
        """
        self._path = os.fspath(path)
        self._limits = limits or ConversationLimits()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def list(self, user: str, *, limit: int = 100, offset: int = 0) -> Sequence[Summary]:
        query = """SELECT id, title, created, updated FROM conversations WHERE user = ?
            ORDER BY updated DESC, id LIMIT ? OFFSET ?"""

        def read(database: sqlite3.Connection) -> Sequence[Summary]:
            return [Summary(*_row(row)) for row in database.execute(query, (user, limit, offset))]

        return await self._run(read)

    async def get(self, user: str, id: str) -> Conversation | None:
        def read(database: sqlite3.Connection) -> Conversation | None:
            found = database.execute(
                "SELECT id, title, created, updated FROM conversations WHERE user = ? AND id = ?", (user, id)
            ).fetchone()
            if found is None:
                return None
            documents = database.execute(
                "SELECT document FROM messages WHERE user = ? AND conversation = ? ORDER BY position", (user, id)
            )
            return Conversation(*_row(found), tuple(json.loads(document) for (document,) in documents))

        return await self._run(read)

    async def replace(self, user: str, id: str, messages: Sequence[Message]) -> None:
        encoded = [(_encodable(str(message["id"])), _encode(message)) for message in messages]

        def write(database: sqlite3.Connection) -> None:
            self._touch(database, user, id, title_of(messages))
            database.execute("DELETE FROM messages WHERE user = ? AND conversation = ?", (user, id))
            database.executemany(
                "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
                [(user, id, position, *message) for position, message in enumerate(encoded)],
            )
            self._check_size(database, user, id)

        _check_ids(user, id)
        await self._run(write, "IMMEDIATE")

    async def append(self, user: str, id: str, message: Message, *, create: bool = False) -> bool:
        message_id, document = _encodable(str(message["id"])), _encode(message)

        def write(database: sqlite3.Connection) -> bool:
            if not create and not _exists(database, user, id):
                return False
            self._touch(database, user, id, title_of([message]))
            (position,) = database.execute(
                """SELECT coalesce(min(position) FILTER (WHERE id = ?), max(position) + 1, 0) FROM messages
                WHERE user = ? AND conversation = ?""",
                (message_id, user, id),
            ).fetchone()
            database.execute(
                "DELETE FROM messages WHERE user = ? AND conversation = ? AND position >= ?", (user, id, position)
            )
            database.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", (user, id, position, message_id, document))
            self._check_size(database, user, id)
            return True

        _check_ids(user, id)
        return await self._run(write, "IMMEDIATE")

    async def rename(self, user: str, id: str, title: str) -> bool:
        title, now = _shortened(title), _now()
        update = "UPDATE conversations SET title = ?, updated = ? WHERE user = ? AND id = ?"

        def write(database: sqlite3.Connection) -> bool:
            return database.execute(update, (title, now, user, id)).rowcount > 0

        return await self._run(write, "IMMEDIATE")

    async def delete(self, user: str, id: str) -> bool:
        delete = "DELETE FROM conversations WHERE user = ? AND id = ?"

        def write(database: sqlite3.Connection) -> bool:
            return database.execute(delete, (user, id)).rowcount > 0

        return await self._run(write, "IMMEDIATE")

    def close(self) -> None:
        """Close the database. A later call opens it again; the content of `:memory:` is lost."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _touch(self, database: sqlite3.Connection, user: str, id: str, title: str) -> None:
        """Note that a conversation changes now. Create it if it does not exist."""
        now = _now()
        if database.execute("UPDATE conversations SET updated = ? WHERE user = ? AND id = ?", (now, user, id)).rowcount:
            return
        (count,) = database.execute("SELECT count(*) FROM conversations WHERE user = ?", (user,)).fetchone()
        if count >= self._limits.max_conversations:
            limit = f"{self._limits.max_conversations:,}"
            raise ChatError(
                f"there are {count:,} conversations, and the limit is {limit}: delete one first",
                status=409,
                code="too_many_conversations",
            )
        database.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?)", (user, id, title, now, now))

    def _check_size(self, database: sqlite3.Connection, user: str, id: str) -> None:
        """Raise `ChatError` if a conversation is over a limit. The transaction is rolled back then."""
        query = """SELECT count(*), coalesce(sum(length(CAST(document AS BLOB))), 0) FROM messages
            WHERE user = ? AND conversation = ?"""
        count, size = database.execute(query, (user, id)).fetchone()
        for found, limit, unit in (
            (count, self._limits.max_messages, "messages"),
            (size, self._limits.max_bytes, "bytes"),
        ):
            if found > limit:
                raise ChatError(
                    f"the conversation has {found:,} {unit}, and the limit is {limit:,}: begin a new one",
                    status=413,
                    code="conversation_too_long",
                )

    async def _run(
        self, work: Callable[[sqlite3.Connection], Result], mode: Literal["DEFERRED", "IMMEDIATE"] = "DEFERRED"
    ) -> Result:
        """Run a function in one transaction, in a thread. A transaction that writes has the mode `IMMEDIATE`."""
        return await asyncio.to_thread(self._transaction, work, mode)

    def _transaction(self, work: Callable[[sqlite3.Connection], Result], mode: str) -> Result:
        with self._lock, self._database_errors():
            if self._connection is None:
                self._connection = _opened(self._path)
            database = self._connection
            database.execute(f"BEGIN {mode}")
            try:
                result = work(database)
                database.execute("COMMIT")
                return result
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")

    @contextmanager
    def _database_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ChatError(
                f"the database of the conversations, {self._path}, fails: {error}",
                status=503,
                code="conversations_unavailable",
            ) from error


def title_of(messages: Sequence[Message]) -> str:
    """Return the title of a conversation: the beginning of the first text of the user."""
    for message in messages:
        if message.get("role") == "user":
            texts = [str(part.get("text") or "") for part in message.get("parts", ()) if part.get("type") == "text"]
            if any(text.strip() for text in texts):
                return _shortened(" ".join(texts))
    return UNTITLED


def _shortened(text: str) -> str:
    """Return a text as a title: one line of at most `TITLE_LENGTH` characters."""
    line = _encodable(" ".join(text.split()))
    return (line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1].rstrip()}…") or UNTITLED


def _opened(path: str) -> sqlite3.Connection:
    """Open a database, and create its tables if it has none. Raises `ConfigError` if it is not ours."""
    if path != ":memory:":
        if not Path(path).parent.is_dir():
            raise ConfigError(f"the database of the conversations is {path}, whose folder does not exist: create it")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN EXCLUSIVE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in SCHEMA.split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")
        if version not in (0, SCHEMA_VERSION):
            raise ConfigError(
                f"the database of the conversations, {path}, has the schema version {version}, and this release of "
                f"app_toolkit reads version {SCHEMA_VERSION}: use another file"
            )
        _use_write_ahead_log(database)
    except BaseException:
        database.close()
        raise
    return database


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    """Let readers and a writer work at the same time. SQLite itself does not wait if the database is in use."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the higher bits have details
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_AGAIN_S)
        else:
            return


def _exists(database: sqlite3.Connection, user: str, id: str) -> bool:
    query = "SELECT 1 FROM conversations WHERE user = ? AND id = ?"
    return database.execute(query, (user, id)).fetchone() is not None


def _row(row: tuple[Any, ...]) -> tuple[str, str, datetime, datetime]:
    id, title, created, updated = row
    return id, title, datetime.fromtimestamp(created, UTC), datetime.fromtimestamp(updated, UTC)


def _encode(message: Message) -> str:
    """Return a message as JSON. Raises `ChatError` 400 if it has a number that JSON does not have."""
    try:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise ChatError("a message has a number that is not finite, which JSON does not have") from None
    return text if text == _encodable(text) else json.dumps(message, separators=(",", ":"))


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which SQLite refuses."""
    return text.encode(errors="replace").decode()


def _check_ids(user: str, id: str) -> None:
    """Raise `ChatError` 400 if an id is empty or too long."""
    for name, value in (("user", user), ("conversation", id)):
        if not 0 < len(value) <= MAX_ID_LENGTH:
            raise ChatError(
                f"the id of the {name} has {len(value):,} characters: it must have 1 to {MAX_ID_LENGTH} characters",
                code="bad_id",
            )
        if value != _encodable(value):
            raise ChatError(
                f"the id of the {name} has half of a surrogate pair, which UTF-8 cannot have", code="bad_id"
            )


def _now() -> float:
    return datetime.now(UTC).timestamp()
