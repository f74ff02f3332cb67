"""The backend of a chat page with FastAPI, SQLAlchemy, Redis and sse-starlette.

It implements the protocol of the AI SDK by hand: https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol.
"""

import asyncio
import hmac
import json
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from models import KEYS, answer, title
from pydantic import BaseModel, Field
from redis.asyncio import Redis
from sqlalchemy import JSON, ForeignKeyConstraint, delete, event, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sse_starlette import EventSourceResponse

ALIVE_S = 10
"""Seconds after which the response of a process that has died is lost."""
KEPT_S = 600
"""Seconds for which the parts of a response are kept after its end."""
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}

redis = Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
engine = create_async_engine("sqlite+aiosqlite:///chats.db")
sessions = async_sessionmaker(engine, expire_on_commit=False)
tasks: set[asyncio.Task[None]] = set()


@event.listens_for(engine.sync_engine, "connect")
def set_up_sqlite(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("PRAGMA foreign_keys = ON")


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON, list[dict[str, Any]]: JSON}  # noqa: RUF012


class Conversation(Base):
    __tablename__ = "conversations"

    user: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    title: Mapped[str]
    active_id: Mapped[str | None]
    created: Mapped[datetime]
    updated: Mapped[datetime]


class Message(Base):
    __tablename__ = "messages"
    __table_args__ = (
        ForeignKeyConstraint(["user", "chat"], ["conversations.user", "conversations.id"], ondelete="CASCADE"),
    )

    user: Mapped[str] = mapped_column(primary_key=True)
    chat: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    parent_id: Mapped[str | None]
    role: Mapped[str]
    parts: Mapped[list[dict[str, Any]]]
    meta: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class Tree:
    """The messages of a conversation, the oldest first."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.by_id = {message.id: message for message in messages}

    def branch(self, id: str | None) -> list[Message]:
        """Return the messages from the first one to this one."""
        branch: list[Message] = []
        while id is not None:
            branch.append(self.by_id[id])
            id = self.by_id[id].parent_id
        return branch[::-1]

    def siblings(self, message: Message) -> list[str]:
        place = (message.parent_id, message.role)
        return [other.id for other in self.messages if (other.parent_id, other.role) == place]

    def newest_leaf(self, id: str) -> str:
        """Return the last message of the newest branch that has this message."""
        return next(other.id for other in reversed(self.messages) if self.by_id[id] in self.branch(other.id))


class UIMessage(BaseModel):
    id: str
    role: str
    parts: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return text_of(self.parts)


class ChatBody(BaseModel):
    id: str = Field(max_length=100)
    message: UIMessage
    message_id: str | None = Field(None, alias="messageId")


class Change(BaseModel):
    title: str | None = None
    active_id: str | None = None


def text_of(parts: Sequence[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in parts if part["type"] == "text")


async def current_user(authorization: Annotated[str, Header()] = "") -> str:
    key = authorization.removeprefix("Bearer ").encode()
    for name, value in KEYS.items():
        if hmac.compare_digest(key, value.encode()):
            return name
    raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})


User = Annotated[str, Depends(current_user)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.dispose()
    await redis.aclose()


app = FastAPI(lifespan=lifespan)


def run(coroutine: Any) -> None:
    """Run a task that outlives its request."""
    task = asyncio.create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def tree_of(session: AsyncSession, user: str, chat: str) -> Tree:
    query = select(Message).where(Message.user == user, Message.chat == chat).order_by(Message.created)
    return Tree((await session.scalars(query)).all())


async def conversation_of(session: AsyncSession, user: str, chat: str) -> Conversation:
    conversation = await session.get(Conversation, (user, chat))
    if conversation is None:
        raise HTTPException(404, "There is no such conversation.")
    return conversation


async def add(session: AsyncSession, conversation: Conversation, message: Message) -> None:
    session.add(message)
    conversation.active_id, conversation.updated = message.id, message.created
    await session.commit()


@app.post("/api/chat")
async def chat(body: ChatBody, user: User) -> EventSourceResponse:
    if body.message.role != "user" or not body.message.text:
        raise HTTPException(400, "The last message must be a text of the user.")
    await stop_active(user, body.id)
    async with sessions() as session:
        now = datetime.now(UTC)
        conversation = await session.get(Conversation, (user, body.id))
        if conversation is None:
            beginning = body.message.text[:80]
            conversation = Conversation(
                user=user, id=body.id, title=beginning, active_id=None, created=now, updated=now
            )
            session.add(conversation)
            await session.flush()
        tree = await tree_of(session, user, body.id)
        question = tree.by_id.get(body.message.id)
        if question is None:
            edited = tree.by_id.get(body.message_id or "")
            question = Message(
                **{"user": user, "chat": body.id, "id": body.message.id, "role": "user"},
                parent_id=conversation.active_id if edited is None else edited.parent_id,
                parts=body.message.parts,
                meta={},
                created=now,
            )
            await add(session, conversation, question)
            tree = Tree([*tree.messages, question])
        texts = [text_of(message.parts) for message in tree.branch(question.id)]
    if len(tree.messages) == 1:
        run(set_title(user, body.id, texts[0]))
    stream = f"msg_{secrets.token_urlsafe(12)}"
    await redis.set(active_key(user, body.id), stream, ex=ALIVE_S)
    run(respond(user, body.id, stream, question.id, texts))
    return EventSourceResponse(parts_of(user, body.id, stream), headers=HEADERS)


async def set_title(user: str, chat: str, text: str) -> None:
    written = await title(text)
    async with sessions() as session:
        conversation = await session.get(Conversation, (user, chat))
        if conversation is not None and conversation.title == text[:80]:
            conversation.title = written
            await session.commit()


async def respond(user: str, chat: str, stream: str, parent_id: str, texts: Sequence[str]) -> None:
    """Run the model, write its parts to Redis, and store the message at the end or after a stop."""
    message = Message(
        **{"user": user, "chat": chat, "id": stream, "parent_id": parent_id, "role": "assistant"}, parts=[], meta={}
    )
    generating = asyncio.create_task(generate(stream, message, texts))
    watching = asyncio.create_task(watch(user, chat, stream, generating))
    try:
        await generating
    except asyncio.CancelledError:
        message.meta = {"incomplete": True}
    except Exception as error:
        message.meta = {"incomplete": True, "error": str(error)}
        await emit(stream, {"type": "error", "errorText": "An error occurred."})
    finally:
        watching.cancel()
    for part in message.parts:
        if part["type"] == "text":
            part["state"] = "done"
    async with sessions() as session:
        conversation = await session.get(Conversation, (user, chat))
        if conversation is not None:
            message.created = datetime.now(UTC)
            await add(session, conversation, message)
    if await redis.get(active_key(user, chat)) == stream:
        await redis.delete(active_key(user, chat))
    await emit(stream, None)
    await redis.expire(parts_key(stream), KEPT_S)


async def generate(stream: str, message: Message, texts: Sequence[str]) -> None:
    await emit(stream, {"type": "start", "messageId": message.id})
    await begin_step(stream, message)
    text: dict[str, Any] | None = None
    after_result = False
    async for kind, first, second, third in answer(texts):
        if kind != "text" and text is not None:
            await emit(stream, {"type": "text-end", "id": text_id(message)})
            text = None
        if kind != "result" and after_result:
            after_result = False
            await emit(stream, {"type": "finish-step"})
            await begin_step(stream, message)
        if kind == "text":
            if text is None:
                text = {"type": "text", "text": "", "state": "streaming"}
                message.parts = [*message.parts, text]
                await emit(stream, {"type": "text-start", "id": text_id(message)})
            text["text"] += first
            await emit(stream, {"type": "text-delta", "id": text_id(message), "delta": first})
        elif kind == "call":
            call = {"toolCallId": first, "providerExecuted": True}
            part = {"type": f"tool-{second}", **call, "state": "input-available", "input": third}
            message.parts = [*message.parts, part]
            await emit(stream, {"type": "tool-input-available", **call, "toolName": second, "input": third})
        else:
            part = next(part for part in message.parts if part.get("toolCallId") == first)
            part |= {"state": "output-available", "output": second}
            after_result = True
            output = {"type": "tool-output-available", "toolCallId": first, "output": second, "providerExecuted": True}
            await emit(stream, output)
    if text is not None:
        await emit(stream, {"type": "text-end", "id": text_id(message)})
    await emit(stream, {"type": "finish-step"})
    await emit(stream, {"type": "finish"})


async def begin_step(stream: str, message: Message) -> None:
    message.parts = [*message.parts, {"type": "step-start"}]
    await emit(stream, {"type": "start-step"})


def text_id(message: Message) -> str:
    return f"text-{sum(part['type'] == 'text' for part in message.parts)}"


def active_key(user: str, chat: str) -> str:
    return f"active:{user}:{chat}"


def parts_key(stream: str) -> str:
    return f"parts:{stream}"


def stop_key(stream: str) -> str:
    return f"stop:{stream}"


async def emit(stream: str, part: dict[str, Any] | None) -> None:
    """Write a part, or the end, for all clients that follow the response."""
    await redis.xadd(parts_key(stream), {"part": "[DONE]" if part is None else json.dumps(part)})


async def watch(user: str, chat: str, stream: str, generating: asyncio.Task[None]) -> None:
    """Say that the process lives, and cancel the response when another process asks for it."""
    while True:
        if await redis.blpop([stop_key(stream)], timeout=ALIVE_S / 3):
            generating.cancel()
            return
        await redis.expire(active_key(user, chat), ALIVE_S)
        await redis.expire(parts_key(stream), KEPT_S)


async def stop_active(user: str, chat: str) -> bool:
    """Stop the active response, and return when it is stored. False: there is none."""
    stream = await redis.get(active_key(user, chat))
    if stream is None:
        return False
    await redis.rpush(stop_key(stream), "stop")
    await redis.expire(stop_key(stream), ALIVE_S)
    async for _ in parts_of(user, chat, stream):
        pass
    return True


async def parts_of(user: str, chat: str, stream: str) -> AsyncIterator[str]:
    """Yield all parts of a response from its start, and those that follow."""
    position = "0"
    while True:
        found = await redis.xread({parts_key(stream): position}, block=5_000)
        if not found and await redis.get(active_key(user, chat)) != stream:
            yield json.dumps({"type": "error", "errorText": "The response was interrupted."})
            yield "[DONE]"
            return
        for id, fields in found[0][1] if found else []:
            position = id
            yield fields["part"]
            if fields["part"] == "[DONE]":
                return


@app.get("/api/chat/{chat}/stream")
async def resume(chat: str, user: User) -> Response:
    stream = await redis.get(active_key(user, chat))
    if stream is None:
        return Response(status_code=204)
    return EventSourceResponse(parts_of(user, chat, stream), headers=HEADERS)


@app.post("/api/chat/{chat}/stop")
async def stop(chat: str, user: User) -> dict[str, bool]:
    return {"success": True, "stopped": await stop_active(user, chat)}


def summary(conversation: Conversation) -> dict[str, Any]:
    return {name: getattr(conversation, name) for name in ("id", "title", "created", "updated")}


@app.get("/api/conversations")
async def conversations(user: User, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
    newest = select(Conversation).where(Conversation.user == user).order_by(Conversation.updated.desc())
    async with sessions() as session:
        return [summary(conversation) for conversation in await session.scalars(newest.limit(limit).offset(offset))]


@app.get("/api/conversations/{chat}")
async def conversation(chat: str, user: User) -> dict[str, Any]:
    async with sessions() as session:
        found = await conversation_of(session, user, chat)
        tree = await tree_of(session, user, chat)
    messages = [
        {
            **{name: getattr(message, name) for name in ("id", "role", "parts", "parent_id", "created")},
            "metadata": message.meta,
            "siblings": tree.siblings(message),
        }
        for message in tree.branch(found.active_id)
    ]
    return {**summary(found), "active_id": found.active_id, "messages": messages}


@app.patch("/api/conversations/{chat}", status_code=204)
async def change(chat: str, body: Change, user: User) -> None:
    async with sessions() as session:
        found = await conversation_of(session, user, chat)
        if body.title is not None:
            found.title = body.title
        if body.active_id is not None:
            tree = await tree_of(session, user, chat)
            if body.active_id not in tree.by_id:
                raise HTTPException(404, "There is no such message.")
            found.active_id = tree.newest_leaf(body.active_id)
        await session.commit()


@app.delete("/api/conversations/{chat}", status_code=204)
async def remove(chat: str, user: User) -> None:
    await stop_active(user, chat)
    async with sessions() as session:
        await conversation_of(session, user, chat)
        await session.execute(delete(Conversation).where(Conversation.user == user, Conversation.id == chat))
        await session.commit()
