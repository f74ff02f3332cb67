"""The backend of a chat page with app_toolkit."""

import json
from collections.abc import AsyncIterator

from models import KEYS, answer, title

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    SQLConversationStore,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    ai_sdk_router,
    api_keys,
    conversations_router,
    titled,
)


async def assistant(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    async for event in answer([message.text for message in request.messages if message.text]):
        match event:
            case "text", text, _, _:
                yield TextEvent(text)
            case "call", id, name, input:
                yield ToolCallEvent(0, id, name, json.dumps(input), executed=True)
            case "result", id, output, _:
                yield ToolResultEvent(id, output)


async def titles(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent(await title(request.prompt))


keys = api_keys(KEYS)
store = titled(SQLConversationStore("chats.db"), titles)

app = Toolkit()
app.include_router(ai_sdk_router(assistant, conversations=store, user=keys), prefix="/api/chat")
app.include_router(conversations_router(store, user=keys), prefix="/api/conversations")
