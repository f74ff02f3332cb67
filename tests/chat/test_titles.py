"""A store whose conversations get titles from a model."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app_toolkit import ConfigError, Deployment, Toolkit
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    ConversationStore,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    SQLConversationStore,
    StoredMessage,
    TextEvent,
    ai_sdk_router,
    titled,
)
from app_toolkit.chat.titles import MAX_RUNNING, MAX_TEXT, TitledStore, written_title
from app_toolkit.declare.planning import plan
from tests.chat.scripted import Scripted
from tests.chat.served import PausedModel
from tests.patience import until

pytestmark = pytest.mark.anyio

TITLE = [ReasoningEvent("Hm."), TextEvent('"Rain '), TextEvent('in\nOslo"'), FinishEvent()]


def message(id: str, text: str = "Will it rain in Oslo?", parent_id: str | None = None) -> StoredMessage:
    return StoredMessage(id, "user", [{"type": "text", "text": text}], parent_id=parent_id)


@pytest.fixture
async def kept() -> AsyncIterator[SQLConversationStore]:
    store = SQLConversationStore(":memory:")
    yield store
    await store.close()


async def title(store: ConversationStore) -> str:
    conversation = await store.get("ada", "chat")
    assert conversation is not None
    return conversation.title


async def ended() -> None:
    """Wait until no title is being made."""
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "app-toolkit chat title"])


async def test_a_model_writes_the_title_of_a_new_conversation(kept: SQLConversationStore) -> None:
    model = Scripted(TITLE)
    store = titled(kept, model)
    assert await store.write("ada", "chat", message("m1"), create=True)
    assert await title(store) == "Will it rain in Oslo?"
    await ended()
    assert await title(store) == "Rain in Oslo"
    (request,) = model.requests
    assert request.prompt == "Will it rain in Oslo?"
    answer = StoredMessage("m2", "assistant", [{"type": "text", "text": "Yes."}], parent_id="m1")
    assert await store.write("ada", "chat", answer, activate=False)
    assert await store.write("ada", "chat", message("m3", "And today?", "m2"), create=True)
    assert await store.write("ada", "chat", message("m4", "Will it snow?"), create=True)
    await ended()
    assert len(model.requests) == 1


async def test_a_title_that_the_user_has_set_meanwhile_stays(kept: SQLConversationStore) -> None:
    model = PausedModel()
    store = titled(kept, model)
    await store.write("ada", "chat", message("m1"), create=True)
    await until(lambda: model.running == 1)
    await store.rename("ada", "chat", "Weather")
    model.released.set()
    await ended()
    assert await title(store) == "Weather"


async def test_a_conversation_that_is_deleted_meanwhile_stays_deleted(kept: SQLConversationStore) -> None:
    model = PausedModel()
    store = titled(kept, model)
    await store.write("ada", "chat", message("m1"), create=True)
    await until(lambda: model.running == 1)
    await store.delete("ada", "chat")
    model.released.set()
    await ended()
    assert await store.get("ada", "chat") is None


@pytest.mark.parametrize(
    "script",
    [[ChatError("busy")], [TextEvent("Ra"), ErrorEvent("broken")], [RuntimeError()], [TextEvent(' "" ')]],
    ids=str,
)
async def test_a_model_that_fails_leaves_the_beginning_of_the_message(
    script: list[ChatEvent | Exception], kept: SQLConversationStore
) -> None:
    store = titled(kept, Scripted(script))
    await store.write("ada", "chat", message("m1"), create=True)
    await ended()
    assert await title(store) == "Will it rain in Oslo?"


async def test_a_model_that_takes_too_long_is_closed(kept: SQLConversationStore) -> None:
    model = PausedModel()
    await titled(kept, model, within_s=0.05).write("ada", "chat", message("m1"), create=True)
    await ended()
    assert model.running == 0
    assert await title(kept) == "Will it rain in Oslo?"


async def test_a_store_that_is_closed_closes_the_models(kept: SQLConversationStore) -> None:
    model = PausedModel()
    store = titled(kept, model)
    for number in range(MAX_RUNNING + 2):
        await store.write("ada", f"chat{number}", message(f"m{number}"), create=True)
    await until(lambda: model.running == MAX_RUNNING)
    await store.aclose()
    assert model.running == 0


async def test_a_model_gets_a_part_of_a_long_message_and_is_closed_after_a_long_title() -> None:
    endless = Scripted([TextEvent("title ")] * 1_000)
    assert len(await written_title(endless, "x" * 5_000)) < 600
    assert len(endless.requests[0].prompt) == MAX_TEXT
    assert endless.running == 0


async def test_the_other_methods_are_those_of_the_store(kept: SQLConversationStore) -> None:
    store = titled(kept, Scripted(TITLE))
    await store.write("ada", "chat", message("m1"), create=True)
    await ended()
    assert [each.id for each in await store.list("ada", search="oslo")] == ["chat"]
    assert await store.activate("ada", "chat", "m1")
    assert await store.rate("ada", "chat", "m1", None)
    assert await store.delete("ada", "chat")


def test_a_router_finds_the_deployment_of_the_model() -> None:
    class Small(Deployment):
        async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
            yield TextEvent("small")

    app = Toolkit(title="Titles")
    store = titled(SQLConversationStore(":memory:"), Small.bind())
    app.include_router(ai_sdk_router(PausedModel(), conversations=store), prefix="/api/chat")
    assert "small" in {each.config.name for each in plan(app, target="app:app", app_dir=".").deployments}


def test_options_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="within_s = 0"):
        titled(SQLConversationStore(":memory:"), Scripted(TITLE), within_s=0)
    assert isinstance(titled(SQLConversationStore(":memory:"), Scripted(TITLE)), TitledStore)
