"""A chat whose conversations are stored, with a model in replicas of its own.

The model writes what it has read, so that a client can compare it with the branch that it shows. The ledger has each
execution of a tool by the id of its call.
"""

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.chat import (
    ApprovalRequest,
    ChatEvent,
    ChatRequest,
    FileStore,
    KeyLimits,
    SQLConversationStore,
    TextEvent,
    ToolCall,
    ToolResultEvent,
    UsageEvent,
    ai_sdk_router,
    api_keys,
    conversations_router,
    files_router,
)
from app_toolkit.streaming import SharedStreamLog, StreamLogDeployment
from benchmarks.chaos.victim import note, noted
from benchmarks.redis_server import url

PAUSE_S = 0.05
WORDS = 20
PAY = "pay"
"""The first word of a question for which the model asks for an approval."""

TOKENS = "tokens"
"""The entry of the ledger with a chunk for each token that the model has written or reported."""

KEY, FRUGAL_KEY = "the-key-of-the-conversations", "the-key-with-a-small-budget"
BUDGET, FRUGAL_BUDGET = 1_000_000, 500
"""Tokens of these keys in a day."""
FRUGAL_AT_ONCE = 8

log = StreamLogDeployment.bind()


folder = Path(os.environ.get("VICTIM_LEDGER", os.devnull)).parent
files = FileStore(folder / "files", url="/conversations/files", max_user_files=10_000)
store = SQLConversationStore(folder / "conversations.db")


def response_to(questions: list[str]) -> str:
    """Return what the model writes after these messages of the user."""
    read = hashlib.sha256(json.dumps(questions).encode()).hexdigest()
    return "".join(f"{read[number % 60 : number % 60 + 4]}-{number} " for number in range(WORDS))


async def questions_of(request: ChatRequest, files: FileStore) -> list[str]:
    """Return the texts of the messages of the user, each with the hashes of its files."""
    questions = []
    for message in request.messages:
        if message.role == "user":
            hashes = [hashlib.sha256(await files.read(file)).hexdigest() for file in message.attachments]
            questions.append(" ".join([message.text, *hashes]))
    return questions


class Writer(Deployment, num_replicas=2, health_check_period_s=0.5, resources={"num_cpus": 0.1}):
    """Writes slowly, and asks before it pays."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for call in request.approved_calls:
            with noted(call.id):
                await asyncio.sleep(PAUSE_S)
            yield ToolResultEvent(call.id, "paid")
        questions = await questions_of(request, files)
        answers_approval = bool(request.approved_calls) or request.messages[-1].role != "user"
        if questions[-1].startswith(PAY) and not answers_approval:
            yield ApprovalRequest(ToolCall(f"call_{secrets.token_hex(8)}", PAY, "{}"))
            return
        for word in response_to(questions).split(" ")[:-1]:
            await asyncio.sleep(PAUSE_S)
            note("chunk", TOKENS)
            yield TextEvent(f"{word} ")
        for _ in questions:
            note("chunk", TOKENS)
        yield UsageEvent(len(questions), WORDS)


app = Toolkit(
    title="Conversations",
    deployment=DeploymentConfig(name="app", num_replicas=2, health_check_period_s=0.5, graceful_shutdown_timeout_s=30),
)
keys = api_keys(
    {"ada": KEY, "frugal": FRUGAL_KEY},
    max_tokens_per_day=BUDGET,
    limits={"frugal": KeyLimits(max_concurrent=FRUGAL_AT_ONCE, max_tokens_per_day=FRUGAL_BUDGET)},
    storage=url(folder),
)
for prefix, router in {
    "/chat": ai_sdk_router(Writer.bind(), log=SharedStreamLog(), conversations=store, files=files, version=6),
    "/files": files_router(files),
    "/conversations": conversations_router(store, files=files),
}.items():
    app.include_router(router, prefix=prefix, dependencies=[Depends(keys)])  # each key has conversations of its own
