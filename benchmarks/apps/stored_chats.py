"""A chat whose conversations are stored where `CHAT_DATABASE` says; without it, nowhere."""

import asyncio
import os
from collections.abc import AsyncIterator

from app_toolkit import Toolkit
from app_toolkit.chat import ChatRequest, ConversationLimits, SQLConversationStore, TextEvent, ai_sdk_router

TOKENS = int(os.environ["CHAT_TOKENS"])
PERIOD_S = float(os.environ["CHAT_PERIOD_S"])
DATABASE = os.environ.get("CHAT_DATABASE")

app = Toolkit()


async def model(request: ChatRequest) -> AsyncIterator[TextEvent]:
    for _ in range(TOKENS):
        yield TextEvent("word ")
        await asyncio.sleep(PERIOD_S)


@app.get("/health")
def health() -> None:
    pass


conversations = SQLConversationStore(DATABASE, ConversationLimits(max_conversations=1_000_000)) if DATABASE else None
app.include_router(ai_sdk_router(model, conversations=conversations), prefix="/api/chat")
