"""A store of conversations in SQLite or PostgreSQL. It needs the extra `conversations`.

A transaction that writes locks its conversation: SQLite with `BEGIN IMMEDIATE`, PostgreSQL with the row. The text of a
message is stored a second time in a form in which `list(search=...)` compares it, because databases ignore case in
different ways.
"""

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat.conversations import (
    UNTITLED,
    Conversation,
    ConversationLimits,
    Feedback,
    MessageRole,
    MessageTree,
    StoredMessage,
    Summary,
    check_ids,
    encodable,
    shortened,
    text_of,
    title_of,
)

try:
    from sqlalchemy import (
        URL,
        BigInteger,
        Column,
        Connection,
        Engine,
        Float,
        ForeignKey,
        Index,
        Integer,
        MetaData,
        Table,
        Text,
        UniqueConstraint,
        bindparam,
        create_engine,
        delete,
        event,
        func,
        make_url,
        or_,
        select,
        text,
        update,
    )
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    from sqlalchemy.pool import QueuePool
except ImportError as error:
    raise ConfigError("a store of conversations needs SQLAlchemy: pip install 'app-toolkit[conversations]'") from error

Result = TypeVar("Result")

BUSY_S = 5.0
"""Seconds for which a call waits while another process writes to a SQLite database."""

BUSY_AGAIN_S = 0.01
"""Seconds between two attempts where SQLite itself does not wait."""

POOL_SIZE = 5
"""Connections to a SQLite file, or of one event loop to PostgreSQL."""

CONNECTION_S = 30.0
"""Seconds for which a call waits for a connection."""

MEMORY = ":memory:"

MIGRATION_LOCK = 7_091_326_415
"""The advisory lock of PostgreSQL under which one process creates or changes the tables."""

MAX_WORDS = 10
"""Words of a search. Further ones are ignored."""

TABLES = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER is numbered by SQLite

SCHEMA = Table("chat_schema", TABLES, Column("version", Integer, nullable=False))

CONVERSATIONS = Table(
    "chat_conversations",
    TABLES,
    Column("number", Number, primary_key=True),
    Column("user", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("search", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("updated", Float(53), nullable=False),
    Column("active_id", Text),
    Column("metadata", Text, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    UniqueConstraint("user", "id"),
    Index("chat_conversations_by_update", "user", "updated"),
)

MESSAGES = Table(
    "chat_messages",
    TABLES,
    Column("number", Number, primary_key=True),
    Column("conversation", Number, ForeignKey(CONVERSATIONS.c.number, ondelete="CASCADE"), nullable=False),
    Column("id", Text, nullable=False),
    Column("parent_id", Text),
    Column("role", Text, nullable=False),
    Column("parts", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("model", Text),
    Column("usage", Text),
    Column("feedback", Text),
    Column("created", Float(53), nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("search", Text, nullable=False),
    UniqueConstraint("conversation", "id"),
)

Step = Callable[[Connection], None]

STEPS: Sequence[Step] = (lambda connection: TABLES.create_all(connection),)
"""What each version of the schema adds to the one before. A step is never changed once it is released: the first one
creates the tables as they are then, and the next one lists its own statements.
"""

# Statements that every response executes, as few as possible: the thread of each one waits for the event loop several
# times. Building one takes longer than SQLite takes to execute it.

SUMMARY = ("id", "title", "created", "updated")
"""The columns of a `Summary`."""

IS_CONVERSATION = (CONVERSATIONS.c.user == bindparam("of_user"), CONVERSATIONS.c.id == bindparam("of_id"))
IS_MESSAGE = (MESSAGES.c.conversation == bindparam("of_number"), MESSAGES.c.id == bindparam("of_message"))

OF_CONVERSATION = len(SUMMARY) + 2
"""The columns of `READ` that are the same in each row."""

READ = (
    select(
        *(CONVERSATIONS.c[name] for name in (*SUMMARY, "active_id", "metadata")),
        *(MESSAGES.c[column.name].label(f"message_{column.name}") for column in fields(StoredMessage)),
    )
    .outerjoin_from(CONVERSATIONS, MESSAGES, MESSAGES.c.conversation == CONVERSATIONS.c.number)
    .where(*IS_CONVERSATION)
    .order_by(MESSAGES.c.number)
)
"""A row for each message of a conversation. One without messages has one row."""

LOCK = (
    select(*(CONVERSATIONS.c[name] for name in ("number", "active_id", "messages", "bytes")))
    .where(*IS_CONVERSATION)
    .with_for_update()
)
FIND = select(MESSAGES.c.number, MESSAGES.c.parent_id, MESSAGES.c.bytes).where(*IS_MESSAGE)
REPLACE = (
    update(MESSAGES)
    .where(*IS_MESSAGE)
    .values({name: bindparam(name) for name in ("role", "parts", "metadata", "model", "usage", "bytes", "search")})
)
CHANGE = (
    update(CONVERSATIONS)
    .where(CONVERSATIONS.c.number == bindparam("of_number"))
    .values({name: bindparam(name) for name in ("active_id", "updated", "messages", "bytes")})
)

COUNT = select(func.count()).where(CONVERSATIONS.c.user == bindparam("of_user"))

INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""By dialect: a function that returns an INSERT, which may return no row if there is one with the same id."""

CREATE: Mapping[str, Any] = {
    dialect: insert(CONVERSATIONS).on_conflict_do_nothing().returning(CONVERSATIONS.c.number)
    for dialect, insert in INSERTS.items()
}
"""It returns no row if another process has created the conversation meanwhile."""

ADD: Mapping[str, Any] = {
    dialect: insert(MESSAGES).on_conflict_do_nothing().returning(MESSAGES.c.number)
    for dialect, insert in INSERTS.items()
}
"""It returns no row if the conversation has a message with this id."""


class SQLConversationStore:
    """Conversations in a SQLite database, which all processes of one machine can share, or in PostgreSQL.

    The first call creates the tables, or changes those of an earlier release. Their names begin with `chat_`. The file
    of a SQLite database is readable and writable only for the user of the process that creates it.
    """

    def __init__(self, database: str | os.PathLike[str], limits: ConversationLimits | None = None) -> None:
        """Name the database. The first call opens it.

        Parameters:
            database: The path of a SQLite file on a local disk, which is created in a folder that exists; or a URL of
                SQLAlchemy, such as `postgresql://user@host/database`. `:memory:`: the memory of this process.
            limits: Default: `ConversationLimits()`.

        Raises:
            ConfigError: The URL names another kind of database.
        """
        self._limits = limits or ConversationLimits()
        self._url = _database_url(os.fspath(database))
        kind = SQLiteDatabase if self._url.get_backend_name() == "sqlite" else PostgresDatabase
        self._database: SQLiteDatabase | PostgresDatabase = kind(self._url)

    async def list(self, user: str, *, search: str = "", limit: int = 100, offset: int = 0) -> Sequence[Summary]:
        query = select(*(CONVERSATIONS.c[name] for name in SUMMARY)).where(CONVERSATIONS.c.user == encodable(user))
        for word in _comparable(search).split()[:MAX_WORDS]:
            of_messages = select(MESSAGES.c.number).where(
                MESSAGES.c.conversation == CONVERSATIONS.c.number, MESSAGES.c.search.contains(word, autoescape=True)
            )
            query = query.where(or_(CONVERSATIONS.c.search.contains(word, autoescape=True), of_messages.exists()))
        query = query.order_by(CONVERSATIONS.c.updated.desc(), CONVERSATIONS.c.id).limit(limit).offset(offset)

        def read(connection: Connection) -> Sequence[Summary]:
            return [Summary(**_dated(dict(row))) for row in connection.execute(query).mappings()]

        return await self._run(read)

    async def get(self, user: str, id: str) -> Conversation | None:
        def read(connection: Connection) -> Conversation | None:
            rows = connection.execute(READ, _conversation(user, id)).all()
            if not rows:
                return None
            *summary, active_id, metadata = rows[0][:OF_CONVERSATION]
            messages = (row[OF_CONVERSATION:] for row in rows)
            tree = MessageTree(tuple(_message(*columns) for columns in messages if columns[0] is not None), active_id)
            dated = _dated(dict(zip(SUMMARY, summary, strict=True)))
            return Conversation(**dated, tree=tree, metadata=json.loads(metadata))

        return await self._run(read)

    async def write(
        self, user: str, id: str, *messages: StoredMessage, create: bool = False, activate: bool = True
    ) -> bool:
        check_ids(user=user, conversation=id)
        contents = [_content(message) for message in messages]

        def write(connection: Connection) -> bool:
            now = _now()
            title = title_of(messages[0]) if messages else UNTITLED
            conversation = _locked(connection, user, id)
            if conversation is None:
                if not create:
                    return False
                conversation = self._created(connection, user, id, title, now)
            elif conversation.active_id is None:
                _title(connection, conversation.number, title)
            number, active_id, count, size = conversation
            add = ADD[connection.dialect.name]
            for message, content in zip(messages, contents, strict=True):
                added = {"conversation": number, "id": message.id, "parent_id": message.parent_id, "created": now}
                if connection.scalar(add, added | content | _feedback(message.feedback)) is not None:
                    count += 1
                    if message.parent_id is not None and message.parent_id != active_id:
                        _check_parent(connection, number, message)
                else:
                    size -= connection.execute(FIND, _key(number, message.id)).one().bytes
                    connection.execute(REPLACE, content | _key(number, message.id))
                size += content["bytes"]
                if activate or active_id == message.parent_id:
                    active_id = message.id
            self._check_size(count, size)
            changed = {"active_id": active_id, "updated": now, "messages": count, "bytes": size}
            connection.execute(CHANGE, {"of_number": number, **changed})
            return True

        return await self._run(write, writes=True)

    async def activate(self, user: str, id: str, message_id: str) -> bool:
        def write(connection: Connection) -> bool:
            number = _locked_with(connection, user, id, message_id)
            is_conversation = CONVERSATIONS.c.number == number
            if number is not None:
                connection.execute(update(CONVERSATIONS).where(is_conversation).values(active_id=message_id))
            return number is not None

        return await self._run(write, writes=True)

    async def rate(self, user: str, id: str, message_id: str, feedback: Feedback | None) -> bool:
        def write(connection: Connection) -> bool:
            number = _locked_with(connection, user, id, message_id)
            if number is not None:
                rating = update(MESSAGES).where(*IS_MESSAGE).values(_feedback(feedback))
                connection.execute(rating, _key(number, message_id))
            return number is not None

        return await self._run(write, writes=True)

    async def remove(self, user: str, id: str, message_id: str) -> bool:
        def write(connection: Connection) -> bool:
            number = _locked_with(connection, user, id, message_id)
            if number is None:
                return False
            removed = connection.execute(FIND, _key(number, message_id)).one()
            parent_id = removed.parent_id
            connection.execute(delete(MESSAGES).where(*IS_MESSAGE), _key(number, message_id))
            is_child = MESSAGES.c.conversation == number, MESSAGES.c.parent_id == message_id
            connection.execute(update(MESSAGES).where(*is_child).values(parent_id=parent_id))
            is_conversation = CONVERSATIONS.c.number == number
            less = {"messages": CONVERSATIONS.c.messages - 1, "bytes": CONVERSATIONS.c.bytes - removed.bytes}
            connection.execute(update(CONVERSATIONS).where(is_conversation).values(less))
            is_active = is_conversation, CONVERSATIONS.c.active_id == message_id
            connection.execute(update(CONVERSATIONS).where(*is_active).values(active_id=parent_id))
            return True

        return await self._run(write, writes=True)

    async def annotate(self, user: str, id: str, metadata: Mapping[str, str]) -> bool:
        return await self._update(user, id, {"metadata": _encode(metadata)})

    async def rename(self, user: str, id: str, title: str) -> bool:
        title = shortened(title)
        values = {"title": title, "search": _comparable(title), "updated": _now()}
        return await self._update(user, id, values)

    async def delete(self, user: str, id: str) -> bool:
        removal = delete(CONVERSATIONS).where(*IS_CONVERSATION)
        key = _conversation(user, id)
        return await self._run(lambda connection: connection.execute(removal, key).rowcount > 0, writes=True)

    async def close(self) -> None:
        """Close the connections: with PostgreSQL, those of this event loop. A later call opens them again.

        The conversations of `:memory:` are lost.
        """
        await self._database.close()

    async def _update(self, user: str, id: str, values: Mapping[str, Any]) -> bool:
        change = update(CONVERSATIONS).where(*IS_CONVERSATION).values(values)
        key = _conversation(user, id)
        return await self._run(lambda connection: connection.execute(change, key).rowcount > 0, writes=True)

    async def _run(self, work: Callable[[Connection], Result], *, writes: bool = False) -> Result:
        """Return the result of a function in a transaction, which is rolled back if the function raises.

        Parameters:
            work: The function.
            writes: Whether it writes. Default: False.

        Raises:
            ChatError: 503, the database fails.
        """
        try:
            return await self._database.run(work, writes)
        except (SQLAlchemyError, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise ChatError(
                f"the database of the conversations, {self._url.render_as_string()}, fails: {cause}",
                status=503,
                code="conversations_unavailable",
            ) from error

    def _created(self, connection: Connection, user: str, id: str, title: str, now: float) -> "Locked":
        """Create a conversation, unless another process has done so meanwhile, and lock it."""
        count = connection.scalar(COUNT, {"of_user": encodable(user)}) or 0
        if count >= self._limits.max_conversations:
            limit = f"{self._limits.max_conversations:,}"
            raise ChatError(
                f"there are {count:,} conversations, and the limit is {limit}: delete one first",
                status=409,
                code="too_many_conversations",
            )
        names = {"user": user, "id": id, "title": title, "search": _comparable(title), "metadata": "{}"}
        new = {**names, "created": now, "updated": now, "messages": 0, "bytes": 0}
        number = connection.scalar(CREATE[connection.dialect.name], new)
        if number is not None:
            return Locked(number, None, 0, 0)
        conversation = _locked(connection, user, id)
        assert conversation is not None
        _title(connection, conversation.number, title)
        return conversation

    def _check_size(self, count: int, size: int) -> None:
        """Raise `ChatError` if a conversation with so many messages and bytes is over a limit."""
        for value, limit, unit in (
            (count, self._limits.max_messages, "messages"),
            (size, self._limits.max_bytes, "bytes"),
        ):
            if value > limit:
                raise ChatError(
                    f"the conversation has {value:,} {unit}, and the limit is {limit:,}: begin a new one",
                    status=413,
                    code="conversation_too_long",
                )


class Locked(NamedTuple):
    """A conversation that no other transaction may change now."""

    number: int
    active_id: str | None
    messages: int
    """How many there are in all branches."""
    bytes: int
    """Of all messages."""


class SQLiteDatabase:
    """A SQLite database. A transaction runs in a thread: an asynchronous driver changes threads for each statement."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._path = url.database or ""
        self._opening = threading.Lock()
        self._writing = threading.Lock()
        """SQLite itself would let the writers of one process wait longer than they have to."""
        self._engine: Engine | None = None

    async def run(self, work: Callable[[Connection], Result], writes: bool) -> Result:
        """Return the result of a function in a transaction. Raises `SQLAlchemyError`, and what the function raises."""
        return await asyncio.to_thread(self._transaction, work, writes)

    async def close(self) -> None:
        """Close the connections."""
        with self._opening:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def _transaction(self, work: Callable[[Connection], Result], writes: bool) -> Result:
        with self._opening:
            if self._engine is None:
                self._engine = self._opened()
            engine = self._engine
        with self._writing if writes else nullcontext():
            return _in_transaction(engine, work, writes)

    def _opened(self) -> Engine:
        size = 1 if self._path == MEMORY else POOL_SIZE
        if self._path != MEMORY:
            if not Path(self._path).parent.is_dir():
                raise ConfigError(
                    f"the database of the conversations is {self._path}, whose folder does not exist: create it"
                )
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        engine = create_engine(
            self._url,
            poolclass=QueuePool,
            pool_size=size,
            max_overflow=0,
            pool_timeout=CONNECTION_S,
            connect_args={"timeout": BUSY_S, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        try:
            _in_transaction(engine, migrate, True)
        except BaseException:
            engine.dispose()
            raise
        return engine


class PostgresDatabase:
    """A PostgreSQL database, with connections for each event loop."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._engines: dict[asyncio.AbstractEventLoop, AsyncEngine] = {}
        self._is_current = False
        """Whether the tables have the current schema."""

    async def run(self, work: Callable[[Connection], Result], writes: bool) -> Result:
        """Return the result of a function in a transaction. Raises `SQLAlchemyError`, and what the function raises."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            engine = self._engines[loop] = self._opened()
        if not self._is_current:
            async with engine.begin() as connection:
                await connection.run_sync(migrate)
            self._is_current = True
        async with engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        engine = self._engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.dispose()

    def _opened(self) -> AsyncEngine:
        for closed in [loop for loop in self._engines if loop.is_closed()]:
            del self._engines[closed]  # its connections have ended with it
        return create_async_engine(
            self._url, pool_size=POOL_SIZE, max_overflow=0, pool_timeout=CONNECTION_S, pool_pre_ping=True
        )


def migrate(connection: Connection, steps: Sequence[Step] = STEPS) -> None:
    """Bring the tables to the schema of the last step. The connection is in a transaction that writes.

    Raises:
        ConfigError: A newer release has changed the tables.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    SCHEMA.create(connection, checkfirst=True)
    version = connection.scalar(select(SCHEMA.c.version)) or 0
    if version > len(steps):
        raise ConfigError(
            f"the tables of the conversations have the schema version {version}, and this release of app_toolkit reads "
            f"version {len(steps)}: use another database"
        )
    for step in steps[version:]:
        step(connection)
    if version < len(steps):
        connection.execute(delete(SCHEMA))
        connection.execute(SCHEMA.insert().values(version=len(steps)))


def _database_url(database: str) -> URL:
    url = make_url(database) if "://" in database else URL.create("sqlite", database=database)
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+asyncpg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(
            f"the database of the conversations is {url.render_as_string()}: it must be SQLite or PostgreSQL"
        )
    return url


def _in_transaction(engine: Engine, work: Callable[[Connection], Result], writes: bool) -> Result:
    with engine.connect().execution_options(writes=writes) as connection, connection.begin():
        return work(connection)


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy begins the transactions
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    _use_write_ahead_log(connection)


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


def _begin_sqlite(connection: Connection) -> None:
    if connection.get_execution_options().get("writes"):  # who reads executes one statement
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _conversation(user: str, id: str) -> dict[str, Any]:
    """Return the parameters of a statement about a conversation."""
    return {"of_user": encodable(user), "of_id": encodable(id)}


def _key(number: int, message_id: str) -> dict[str, Any]:
    """Return the parameters of a statement about a message."""
    return {"of_number": number, "of_message": encodable(message_id)}


def _locked(connection: Connection, user: str, id: str) -> Locked | None:
    """Lock a conversation, and return it; None: there is none."""
    row = connection.execute(LOCK, _conversation(user, id)).one_or_none()
    return None if row is None else Locked(*row)


def _locked_with(connection: Connection, user: str, id: str, message_id: str) -> int | None:
    """Return the number of a conversation that has a message, and lock it; None: there is none."""
    conversation = _locked(connection, user, id)
    if conversation is None:
        return None
    number = conversation.number
    return None if connection.execute(FIND, _key(number, message_id)).first() is None else number


def _title(connection: Connection, number: int, title: str) -> None:
    """Set the title of a conversation that has none."""
    if title == UNTITLED:
        return
    is_untitled = CONVERSATIONS.c.number == number, CONVERSATIONS.c.title == UNTITLED
    values = {"title": title, "search": _comparable(title)}
    connection.execute(update(CONVERSATIONS).where(*is_untitled).values(values))


def _check_parent(connection: Connection, number: int, message: StoredMessage) -> None:
    """Raise `ChatError` 409 if the parent of a new message is not in the conversation."""
    parent_id = message.parent_id or ""
    if parent_id == message.id or connection.execute(FIND, _key(number, parent_id)).first() is None:
        raise ChatError(
            f"the conversation has no message {parent_id!r}, the parent of a new message",
            status=409,
            code="message_unknown",
        )


def _content(message: StoredMessage) -> dict[str, Any]:
    """Return the columns of a message that can be replaced. Raises `ChatError` 400 if its id cannot be stored."""
    check_ids(message=message.id)
    parts, metadata = _encode(message.parts), _encode(message.metadata)
    return {
        "role": message.role,
        "parts": parts,
        "metadata": metadata,
        "model": message.model,
        "usage": None if message.usage is None else _encode(message.usage),
        "bytes": len(parts.encode()) + len(metadata.encode()),
        "search": _comparable(text_of(message)),
    }


def _feedback(feedback: Feedback | None) -> dict[str, str | None]:
    if feedback is None:
        return {"feedback": None}
    return {"feedback": _encode({"rating": feedback.rating, "comment": feedback.comment})}


def _message(
    id: str,
    role: MessageRole,
    parts: str,
    parent_id: str | None,
    metadata: str,
    model: str | None,
    usage: str | None,
    created: float,
    feedback: str | None,
) -> StoredMessage:
    return StoredMessage(
        id,
        role,
        json.loads(parts),
        parent_id,
        {} if metadata == "{}" else json.loads(metadata),
        model,
        None if usage is None else json.loads(usage),
        datetime.fromtimestamp(created, UTC),
        None if feedback is None else Feedback(**json.loads(feedback)),
    )


def _dated(row: Mapping[str, Any]) -> dict[str, Any]:
    dates = {name: datetime.fromtimestamp(row[name], UTC) for name in ("created", "updated")}
    return {**row, **dates}


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _comparable(text: str) -> str:
    """Return a text in the form in which searches compare it."""
    return encodable(text).casefold()


def _encode(document: Any) -> str:
    """Return a document as JSON. Raises `ChatError` 400 if it has a number that JSON does not have."""
    try:
        encoded = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise ChatError("a message has a number that is not finite, which JSON does not have") from None
    return encoded if encoded == encodable(encoded) else json.dumps(document, separators=(",", ":"))
