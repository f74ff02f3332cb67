"""Stores of conversations: what they keep, for whom, how much of it, and beside other processes."""

import asyncio
import json
import multiprocessing
import os
import secrets
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from app_toolkit import ConfigError
from app_toolkit.chat import ChatError, ConversationLimits, Feedback, MessageTree, SQLConversationStore, StoredMessage
from app_toolkit.chat.conversations import MAX_ID_LENGTH, MessageRole
from app_toolkit.chat.sql_conversations import STEPS, migrate
from tests.chat.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

ADA, BOB = "ada", "bob"


def message(id: str, parent_id: str | None = None, text: str = "hello", role: MessageRole = "user") -> StoredMessage:
    return StoredMessage(id, role, [{"type": "text", "text": text}], parent_id=parent_id)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.end()


@pytest.fixture(params=["file", "memory", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "file":
            return str(tmp_path / "chats.db")
        case "memory":
            return ":memory:"
    url: str = request.getfixturevalue("postgres_server").database()
    return url


@pytest.fixture
async def store(database: str) -> AsyncIterator[SQLConversationStore]:
    store = SQLConversationStore(database)
    yield store
    await store.close()


@pytest.fixture(params=["file", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that several stores can open."""
    if request.param == "file":
        return str(tmp_path / "chats.db")
    url: str = request.getfixturevalue("postgres_server").database()
    return url


async def tree(store: SQLConversationStore, user: str, chat: str) -> MessageTree:
    conversation = await store.get(user, chat)
    assert conversation is not None
    return conversation.tree


async def ids(store: SQLConversationStore, user: str, chat: str) -> list[str]:
    return [each.id for each in (await tree(store, user, chat)).messages]


async def titles(store: SQLConversationStore, user: str, search: str = "") -> list[str]:
    return [each.title for each in await store.list(user, search=search)]


async def test_a_message_is_read_as_it_was_stored(store: SQLConversationStore) -> None:
    parts = [
        {"type": "text", "text": "What is \ud83d\ude00, half of it, \ud83d, or \0?"},
        {"type": "x", "at": [1.5, None]},
    ]
    first = StoredMessage("1", "user", parts, metadata={"tags": [None, True]})
    answer = StoredMessage("2", "assistant", [], parent_id="1", model="small", usage={"inputTokens": 3})
    assert await store.write(ADA, "chat", first, create=True)
    assert await store.write(ADA, "chat", answer)
    conversation = await store.get(ADA, "chat")
    assert conversation is not None
    one, two = conversation.tree.messages
    assert replace(one, created=None) == replace(first, parts=json.loads(json.dumps(parts)))
    assert replace(two, created=None) == answer
    assert conversation.created <= one.created <= two.created <= conversation.updated  # type: ignore[operator]
    assert await store.get(ADA, "another") is None


async def test_conversations_of_one_user_are_unknown_to_another(store: SQLConversationStore) -> None:
    await store.write(ADA, "chat", message("1", text="of Ada"), create=True)
    await store.write(BOB, "chat", message("1", text="of Bob"), create=True)
    assert await titles(store, ADA) == ["of Ada"]
    assert await titles(store, ADA, search="Bob") == []
    assert await store.delete(BOB, "chat")
    assert await store.get(BOB, "chat") is None
    assert not await store.rename(BOB, "chat", "mine")
    assert not await store.write(BOB, "chat", message("2"))
    assert not await store.activate(BOB, "chat", "1")
    assert not await store.rate(BOB, "chat", "1", Feedback("bad"))
    assert await ids(store, ADA, "chat") == ["1"]
    await store.write(BOB, "chat", message("1"), create=True)
    assert await ids(store, BOB, "chat") == ["1"], "the messages of the deleted conversation are deleted"


async def test_a_message_beside_another_one_begins_a_branch_and_deletes_nothing(store: SQLConversationStore) -> None:
    for added in (message("1"), message("2", "1"), message("3", "2"), message("4", "1")):
        await store.write(ADA, "chat", added, create=True)
    assert await ids(store, ADA, "chat") == ["1", "2", "3", "4"]
    assert [each.id for each in (await tree(store, ADA, "chat")).active_branch] == ["1", "4"]
    assert await store.activate(ADA, "chat", "3")
    assert [each.id for each in (await tree(store, ADA, "chat")).active_branch] == ["1", "2", "3"]
    assert not await store.activate(ADA, "chat", "9")
    with pytest.raises(ChatError, match="has no message '9', the parent of a new message") as error:
        await store.write(ADA, "chat", message("5", "9"))
    assert error.value.status == 409


async def test_a_late_message_of_another_branch_does_not_become_active(store: SQLConversationStore) -> None:
    for added in (message("1"), message("2", "1"), message("3", "1")):
        await store.write(ADA, "chat", added, create=True)
    await store.write(ADA, "chat", message("4", "2"), activate=False)
    assert (await tree(store, ADA, "chat")).active_id == "3"
    await store.write(ADA, "chat", message("5", "3"), activate=False)
    assert (await tree(store, ADA, "chat")).active_id == "5"


async def test_a_message_that_is_written_again_keeps_its_place_its_time_and_its_feedback(
    store: SQLConversationStore,
) -> None:
    await store.write(ADA, "chat", message("1"), create=True)
    await store.write(ADA, "chat", message("2", "1", role="assistant"))
    assert await store.rate(ADA, "chat", "2", Feedback("good", "so true"))
    before = (await tree(store, ADA, "chat")).find("2")
    await store.write(ADA, "chat", message("2", "another", text="more", role="assistant"))
    after = (await tree(store, ADA, "chat")).find("2")
    assert before is not None
    assert after == replace(before, parts=[{"type": "text", "text": "more"}])
    assert after.feedback == Feedback("good", "so true")
    assert await store.rate(ADA, "chat", "2", None)
    assert (await tree(store, ADA, "chat")).find("2") == replace(after, feedback=None)
    assert not await store.rate(ADA, "chat", "9", None)


async def test_the_list_begins_with_the_conversation_that_changed_last(store: SQLConversationStore) -> None:
    for chat in ("1", "2", "3"):
        await store.write(ADA, chat, message("m", text=f"question {chat}"), create=True)
    await store.write(ADA, "1", message("n", "m"))
    assert [each.id for each in await store.list(ADA)] == ["1", "3", "2"]
    assert [each.id for each in await store.list(ADA, limit=1, offset=1)] == ["3"]
    assert await store.rename(ADA, "2", "  A\nbetter   title ")
    assert [(each.id, each.title) for each in await store.list(ADA, limit=1)] == [("2", "A better title")]


async def test_a_search_finds_words_in_titles_and_in_messages_of_all_branches(store: SQLConversationStore) -> None:
    await store.write(ADA, "fruit", message("1", text="Äpfel und 100% Saft"), create=True)
    await store.write(ADA, "fruit", message("2", text="Birnen"), create=True)
    await store.write(ADA, "other", message("1", text="Straße"), create=True)
    await store.rename(ADA, "other", "Wege")
    for search, found in (
        ("äpf", ["fruit"]),
        ("SAFT birn", ["fruit"]),
        ("wege STRASSE", ["other"]),
        ("100%", ["fruit"]),
        ("%", ["fruit"]),
        ("_", []),
        ("saft wege", []),
        ("\ud83d \0", []),
        (" ", ["other", "fruit"]),
    ):
        assert [each.id for each in await store.list(ADA, search=search)] == found, search


async def test_a_change_beyond_a_limit_is_refused(database: str) -> None:
    store = SQLConversationStore(database, ConversationLimits(max_conversations=2, max_messages=2, max_bytes=300))
    for chat, added in (("1", message("1")), ("1", message("2", "1")), ("2", message("1"))):
        await store.write(ADA, chat, added, create=True)
    for chat, refused, status in (
        ("3", message("1"), 409),
        ("1", message("3", "1"), 413),
        ("2", message("1", text="ä" * 150), 413),
    ):
        with pytest.raises(ChatError, match="the limit is") as error:
            await store.write(ADA, chat, refused, create=True)
        assert error.value.status == status
    assert await ids(store, ADA, "1") == ["1", "2"]
    assert (await tree(store, ADA, "2")).messages[0].parts == message("1").parts
    await store.write(BOB, "3", message("1"), create=True)
    await store.close()


async def test_the_limits_count_what_a_conversation_has_now(database: str) -> None:
    store = SQLConversationStore(database, ConversationLimits(max_messages=2, max_bytes=300))
    long, short = "x" * 200, "x"
    await store.write(ADA, "1", message("1", text=long), message("2", "1", text=short), create=True)
    await store.write(ADA, "1", message("1", text=short), message("2", "1", text=long))
    with pytest.raises(ChatError, match="bytes, and the limit is 300"):
        await store.write(ADA, "1", message("1", text=long))
    await store.remove(ADA, "1", "2")
    await store.write(ADA, "1", message("1", text=short), message("3", "1", text=long))
    with pytest.raises(ChatError, match="has 3 messages, and the limit is 2"):
        await store.write(ADA, "1", message("4", "1", text=short))
    assert await ids(store, ADA, "1") == ["1", "3"]
    await store.close()


@pytest.mark.parametrize("id", ["", "x" * (MAX_ID_LENGTH + 1), "\ud83d", "\0"])
async def test_an_id_that_cannot_be_stored_is_refused_and_not_found(store: SQLConversationStore, id: str) -> None:
    for user, chat, added in ((id, "chat", "1"), (ADA, id, "1"), (ADA, "chat", id)):
        with pytest.raises(ChatError, match=r"the id of the (user|conversation|message) has"):
            await store.write(user, chat, message(added), create=True)
    assert await store.get(ADA, id) is None
    await store.write(ADA, "chat", message("1"), create=True)
    assert not await store.activate(ADA, "chat", id)


async def test_a_number_that_json_does_not_have_is_refused(store: SQLConversationStore) -> None:
    with pytest.raises(ChatError, match="not finite"):
        await store.write(ADA, "chat", replace(message("1"), metadata={"x": float("nan")}), create=True)


async def test_calls_at_the_same_time_do_not_mix(store: SQLConversationStore) -> None:
    await asyncio.gather(
        *(store.write(ADA, "chat", message(str(number)), create=True) for number in range(30)),
        *(store.list(ADA) for _ in range(10)),
    )
    assert sorted(await ids(store, ADA, "chat"), key=int) == [str(number) for number in range(30)]


def test_each_event_loop_has_connections_of_its_own(database: str) -> None:
    store = SQLConversationStore(database)

    async def write(prefix: str, *, last: bool = False) -> list[str]:
        await asyncio.gather(*(store.write(ADA, "chat", message(f"{prefix}{n}"), create=True) for n in range(8)))
        written = await ids(store, ADA, "chat")
        if last or database.startswith("postgresql"):
            await store.close()
        return written

    asyncio.run(write("a"))
    assert len(asyncio.run(write("b", last=True))) == 16


async def write(database: str, writer: int) -> None:
    store = SQLConversationStore(database)
    for number in range(20):
        await store.write(ADA, "shared", message(f"{writer}-{number}"), create=True)
    await store.close()


async def check_written(database: str, writers: int) -> None:
    store = SQLConversationStore(database)
    written = await ids(store, ADA, "shared")
    await store.close()
    assert len(written) == 20 * writers
    for writer in range(writers):
        of_writer = [id for id in written if id.startswith(f"{writer}-")]
        assert of_writer == [f"{writer}-{number}" for number in range(20)]


async def test_several_stores_create_and_write_one_database(shared: str) -> None:
    await asyncio.gather(*(write(shared, writer) for writer in range(4)))
    await check_written(shared, 4)


def write_when(start: Any, database: str, writer: int) -> None:
    start.wait()
    asyncio.run(write(database, writer))


@pytest.mark.slow
async def test_several_processes_create_and_write_one_database(shared: str) -> None:
    context = multiprocessing.get_context("forkserver")
    start = context.Event()
    writers = [context.Process(target=write_when, args=(start, shared, writer)) for writer in range(2)]
    for writer in writers:
        writer.start()
    start.set()
    for writer in writers:
        await asyncio.to_thread(writer.join)
    assert [writer.exitcode for writer in writers] == [0, 0]
    await check_written(shared, 2)


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    store = SQLConversationStore(tmp_path / "chats.db")
    await store.write(ADA, "chat", message("1"), create=True)
    files = list(await asyncio.to_thread(tmp_path.iterdir))
    assert len(files) == 3, "the database, its log and the index of the log"
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in files} == {0o600}
    await store.close()


async def test_a_database_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.write_text("no database " * 100)
    password = secrets.token_hex()
    for database in (other, f"postgresql://ada:{password}@127.0.0.1:1/chats"):
        store = SQLConversationStore(database)
        with pytest.raises(ChatError, match=r"the database of the conversations, .* fails") as error:
            await store.list(ADA)
        assert error.value.status == 503
        assert password not in str(error.value)
        await store.close()
    with pytest.raises(ConfigError, match="whose folder does not exist"):
        await SQLConversationStore(tmp_path / "no" / "chats.db").list(ADA)
    with pytest.raises(ConfigError, match="must be SQLite or PostgreSQL"):
        SQLConversationStore("mysql://localhost/chats")


async def test_tables_of_an_earlier_release_are_changed_and_those_of_a_newer_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = SQLConversationStore(path)
    await store.write(ADA, "chat", message("1"), create=True)
    await store.close()

    def add_pinned(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE chat_conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0"))

    engine = create_engine(f"sqlite:///{path}")
    for _ in range(2):
        with engine.begin() as connection:
            migrate(connection, [*STEPS, add_pinned])
    engine.dispose()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT id, pinned FROM chat_conversations").fetchall() == [("chat", 0)]
    database.close()
    store = SQLConversationStore(path)
    with pytest.raises(ConfigError, match="have the schema version 2, and this release of app_toolkit reads version 1"):
        await store.list(ADA)
    await store.close()


async def test_messages_that_are_written_together_are_stored_together_or_not_at_all(
    store: SQLConversationStore,
) -> None:
    assert await store.write(ADA, "chat", create=True)
    assert (await titles(store, ADA), await ids(store, ADA, "chat")) == (["New conversation"], [])
    with pytest.raises(ChatError, match="has no message '9'"):
        await store.write(ADA, "chat", message("1"), message("2", "9"))
    assert await ids(store, ADA, "chat") == []
    await store.write(ADA, "chat", message("1", text="A question"), message("2", "1"))
    assert (await titles(store, ADA), await ids(store, ADA, "chat")) == (["A question"], ["1", "2"])


async def test_the_messages_after_a_removed_one_follow_its_parent(store: SQLConversationStore) -> None:
    await store.write(ADA, "chat", message("1"), message("2", "1"), message("3", "2"), create=True)
    assert await store.remove(ADA, "chat", "2")
    assert [each.id for each in (await tree(store, ADA, "chat")).active_branch] == ["1", "3"]
    assert await store.remove(ADA, "chat", "3")
    assert (await tree(store, ADA, "chat")).active_id == "1"
    assert not await store.remove(ADA, "chat", "3")


async def test_metadata_are_those_that_were_set_last(store: SQLConversationStore) -> None:
    await store.write(ADA, "chat", create=True)
    for metadata in ({"topic": "x"}, {"place": "y"}):
        assert await store.annotate(ADA, "chat", metadata)
        conversation = await store.get(ADA, "chat")
        assert conversation is not None
        assert conversation.metadata == metadata
    assert not await store.annotate(ADA, "unknown", {})
