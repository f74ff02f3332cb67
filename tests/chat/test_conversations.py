"""Stores of conversations: what they keep, for whom, how much of it, and beside other processes."""

import asyncio
import json
import multiprocessing
import os
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit import ConfigError
from app_toolkit.chat import ChatError, ConversationLimits, SQLiteConversationStore, conversations
from app_toolkit.chat.conversations import MAX_ID_LENGTH, TITLE_LENGTH, title_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ADA, BOB = "ada", "bob"


def message(id: str, text: str = "hello", role: str = "user") -> dict[str, Any]:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": text}]}


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    store = SQLiteConversationStore(":memory:" if request.param == "memory" else tmp_path / "chats.db")
    yield store
    store.close()


async def ids(store: SQLiteConversationStore, user: str, chat: str) -> list[str]:
    found = await store.get(user, chat)
    assert found is not None
    return [each["id"] for each in found.messages]


async def test_a_conversation_is_read_as_it_was_stored(store: SQLiteConversationStore) -> None:
    first = message("1", "What is \ud83d\ude00 or half of it, \ud83d?") | {
        "metadata": {"at": 1.5, "tags": [None, True]}
    }
    await store.replace(ADA, "chat", [first, message("2", role="assistant")])
    found = await store.get(ADA, "chat")
    assert found is not None
    assert found.messages == (json.loads(json.dumps(first)), message("2", role="assistant"))
    assert found.created <= found.updated
    assert await store.get(ADA, "another") is None


async def test_conversations_of_one_user_are_unknown_to_another(store: SQLiteConversationStore) -> None:
    await store.replace(ADA, "chat", [message("1", "of Ada")])
    await store.replace(BOB, "chat", [message("1", "of Bob")])
    assert [each.title for each in await store.list(ADA)] == ["of Ada"]
    assert await store.delete(BOB, "chat")
    assert await store.get(BOB, "chat") is None
    assert not await store.rename(BOB, "chat", "mine")
    assert not await store.append(BOB, "chat", message("2"))
    assert await ids(store, ADA, "chat") == ["1"]


async def test_a_message_with_a_known_id_takes_its_place_and_removes_those_after_it(
    store: SQLiteConversationStore,
) -> None:
    assert not await store.append(ADA, "chat", message("1"))
    assert await store.append(ADA, "chat", message("1"), create=True)
    for id in ("2", "3", "4"):
        assert await store.append(ADA, "chat", message(id))
    await store.append(ADA, "chat", message("2", "another question"))
    assert await ids(store, ADA, "chat") == ["1", "2"]
    await store.append(ADA, "chat", message("5"))
    assert await ids(store, ADA, "chat") == ["1", "2", "5"]
    await store.replace(ADA, "chat", [message("6")])
    assert await ids(store, ADA, "chat") == ["6"]


async def test_the_list_begins_with_the_conversation_that_changed_last(store: SQLiteConversationStore) -> None:
    for chat in ("1", "2", "3"):
        await store.append(ADA, chat, message("m", f"question {chat}"), create=True)
    await store.append(ADA, "1", message("n"))
    assert [each.id for each in await store.list(ADA)] == ["1", "3", "2"]
    assert [each.id for each in await store.list(ADA, limit=1, offset=1)] == ["3"]
    assert await store.rename(ADA, "2", "  A\nbetter   title ")
    assert [(each.id, each.title) for each in await store.list(ADA, limit=1)] == [("2", "A better title")]


async def test_a_title_that_was_given_stays(store: SQLiteConversationStore) -> None:
    await store.replace(ADA, "chat", [message("1", "A question")])
    await store.rename(ADA, "chat", "My title")
    await store.replace(ADA, "chat", [message("1", "Another question")])
    assert [each.title for each in await store.list(ADA)] == ["My title"]


async def test_a_change_beyond_a_limit_is_refused() -> None:
    store = SQLiteConversationStore(":memory:", ConversationLimits(max_conversations=2, max_messages=2, max_bytes=300))
    await store.replace(ADA, "1", [message("1"), message("2")])
    await store.replace(ADA, "2", [message("1")])
    for refused, status in (
        (store.replace(ADA, "3", [message("1")]), 409),
        (store.append(ADA, "1", message("3")), 413),
        (store.replace(ADA, "2", [message("1", "ä" * 150)]), 413),
    ):
        with pytest.raises(ChatError, match="the limit is") as error:
            await refused
        assert error.value.status == status
    assert await ids(store, ADA, "1") == ["1", "2"]
    assert await ids(store, ADA, "2") == ["1"]
    await store.replace(BOB, "3", [message("1")])
    store.close()


@pytest.mark.parametrize("id", ["", "x" * (MAX_ID_LENGTH + 1), "\ud83d"])
async def test_an_id_that_cannot_be_stored_is_refused(store: SQLiteConversationStore, id: str) -> None:
    for user, chat in ((id, "chat"), (ADA, id)):
        with pytest.raises(ChatError, match=r"the id of the (user|conversation) has"):
            await store.replace(user, chat, [message("1")])


async def test_a_number_that_json_does_not_have_is_refused(store: SQLiteConversationStore) -> None:
    with pytest.raises(ChatError, match="not finite"):
        await store.replace(ADA, "chat", [message("1") | {"metadata": float("nan")}])


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    store = SQLiteConversationStore(tmp_path / "chats.db")
    await store.replace(ADA, "chat", [message("1")])
    files = list(await asyncio.to_thread(tmp_path.iterdir))
    assert len(files) == 3, "the database, its log and the index of the log"
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in files} == {0o600}
    store.close()


async def test_a_file_that_is_no_database_of_this_release_is_refused(tmp_path: Path) -> None:
    newer, other = tmp_path / "newer.db", tmp_path / "other.db"
    database = sqlite3.connect(newer)
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(ConfigError, match="has the schema version 2, and this release"):
        await SQLiteConversationStore(newer).list(ADA)
    other.write_text("no database " * 100)
    with pytest.raises(ChatError, match="file is not a database") as error:
        await SQLiteConversationStore(other).list(ADA)
    assert error.value.status == 503
    with pytest.raises(ConfigError, match="whose folder does not exist"):
        await SQLiteConversationStore(tmp_path / "no" / "chats.db").list(ADA)


async def write(path: Path, writer: int) -> None:
    store = SQLiteConversationStore(path)
    for number in range(20):
        await store.append(ADA, "shared", message(f"{writer}-{number}"), create=True)
    store.close()


def write_when(start: Any, path: Path, writer: int) -> None:
    start.wait()
    asyncio.run(write(path, writer))


async def check_written(path: Path, writers: int) -> None:
    store = SQLiteConversationStore(path)
    found = await ids(store, ADA, "shared")
    assert len(found) == 20 * writers
    for writer in range(writers):
        own = [id for id in found if id.startswith(f"{writer}-")]
        assert own == [f"{writer}-{number}" for number in range(20)]
    store.close()


async def test_several_stores_create_and_write_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "BUSY_S", PATIENCE_S)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the threads take turns as often as processes on a busy machine
    try:
        await asyncio.gather(*(write(tmp_path / "chats.db", writer) for writer in range(4)))
    finally:
        sys.setswitchinterval(interval)
    await check_written(tmp_path / "chats.db", 4)


@pytest.mark.slow
async def test_several_processes_create_and_write_one_database(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    context = multiprocessing.get_context("forkserver")
    start = context.Event()
    writers = [context.Process(target=write_when, args=(start, path, writer)) for writer in range(2)]
    for each in writers:
        each.start()
    start.set()
    for each in writers:
        await asyncio.to_thread(each.join)
    assert [each.exitcode for each in writers] == [0, 0]
    await check_written(path, 2)


async def test_calls_at_the_same_time_do_not_mix(store: SQLiteConversationStore) -> None:
    await asyncio.gather(
        *(store.append(ADA, "chat", message(str(number)), create=True) for number in range(30)),
        *(store.list(ADA) for _ in range(10)),
    )
    assert sorted(await ids(store, ADA, "chat"), key=int) == [str(number) for number in range(30)]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text())))
def test_a_title_is_one_short_line_of_the_first_text_of_the_user(said: list[tuple[str, str]]) -> None:
    title = title_of([message(str(number), text, role) for number, (role, text) in enumerate(said)])
    assert 0 < len(title) <= TITLE_LENGTH
    assert title == " ".join(title.split())
    title.encode()
    first = next((text for role, text in said if role == "user" and text.strip()), None)
    if first is None:
        assert title == "New conversation"
    else:
        assert title.removesuffix("…") in " ".join(first.split()).encode(errors="replace").decode()
