"""Responses over a WebSocket that belong to a stored conversation."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from app_toolkit import ChatError, StreamActive
from app_toolkit.chat.ai_sdk.messages import UIChat, UIMessage, answered_calls, chat_messages, open_calls
from app_toolkit.chat.ai_sdk.placement import placed, ui_document
from app_toolkit.chat.ai_sdk.record import MessageRecord
from app_toolkit.chat.ai_sdk.stream import MessageParts
from app_toolkit.chat.catalog import CheckedModel
from app_toolkit.chat.conversations import ConversationStore, MessageTree, StoredMessage
from app_toolkit.chat.failures import InvalidParameter, failure_of
from app_toolkit.chat.protocol import ChatEvent, ChatMessage, ChatRequest, closing
from app_toolkit.chat.stored_chat import response_of
from app_toolkit.chat.to_the_end import to_its_end
from app_toolkit.streaming import Generation, StreamLog

MAX_S = 86_400.0
"""Seconds after which a mark in the stream log ends. No response takes longer."""

logger = logging.getLogger("app_toolkit.chat")


class StoredConversation:
    """A conversation of one user, in which one question is asked, or calls of tools are approved or denied."""

    def __init__(
        self,
        store: ConversationStore,
        log: StreamLog,
        user: str,
        id: str,
        parent_id: str | None,
        denied: Mapping[str, str],
    ) -> None:
        """Name the conversation, which is created if the user has none with this id.

        Parameters:
            store: The store.
            log: The stream log, in which an answer to a request for an approval is marked as long as it has effect.
            user: The user.
            id: The conversation.
            parent_id: The message that the question follows, or that has the calls; None: the active one.
            denied: The reasons why calls were denied, by their ids.
        """
        self._store = store
        self._log = log
        self._user = user
        self._id = id
        self._parent_id = parent_id
        self._denied = denied

    async def ask(self, model: CheckedModel, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Store the question or the answers, yield the response of a model to the branch, and store it at its end.

        Raises:
            InvalidParameter: The request has no single message of the user, besides system messages, which are not
                stored. With answers to requests for an approval, it has a message of the user.
            ChatError: 409, there is no message `parent_id`, or another client has answered; or the store refuses what
                is written, or fails.
        """
        async with AsyncExitStack() as mark:
            if request.approved_calls or self._denied:
                await mark.enter_async_context(marked(self._log, json.dumps([self._user, self._id])))
                begun = await self._answer(request)
            else:
                begun = await self._begin(request)
            continued = begun.continued
            parts = MessageParts(f"msg_{secrets.token_urlsafe(12)}" if continued is None else continued.id, version=6)
            parts.deny(call.id for call in answered_calls(continued, approved=False))
            record, is_stored = MessageRecord(() if continued is None else continued.parts), False
            try:
                async with closing(model(begun.request, known_calls=open_calls(continued))) as events:
                    async for event in events:
                        for part in parts.translate(event):
                            record.add(part)
                        if record.has_ended:  # a client that reads the last event may ask or answer again
                            is_stored = True
                            await to_its_end(self._end(record, begun))
                            await mark.aclose()
                        yield event
            except Exception as error:
                for part in parts.fail(failure_of(error).message):
                    record.add(part)
                raise
            finally:
                if not is_stored and not record.is_empty:
                    await to_its_end(self._end(record, begun))

    async def _answer(self, request: ChatRequest) -> "Begun":
        """Store which calls were approved and denied. Return the message that has them, which the response continues.

        Raises:
            InvalidParameter: The request has a message of the user, too.
            ChatError: 409, the message has no request for an approval of a call, or another answer to it.
        """
        if any(message.role != "system" for message in request.messages):
            raise InvalidParameter("an answer to a request for an approval has no messages", "messages")
        tree = await self._tree()
        message = tree.find(tree.active_id if self._parent_id is None else self._parent_id)
        answers: dict[str, dict[str, Any]] = {call.id: {"approved": True} for call in request.approved_calls}
        answers |= {id: {"approved": False, "reason": reason or None} for id, reason in self._denied.items()}
        parts = []
        for part in () if message is None else message.parts:
            if "approval" in part and part.get("toolCallId") in answers:
                approval = {"id": part["approval"]["id"], **answers.pop(part["toolCallId"])}
                parts.append({**part, "state": "approval-responded", "approval": approval})
        if message is None or answers:
            raise ChatError(
                f"the message has no request for an approval of the call {next(iter(answers))!r}: name the message as "
                "parent_id",
                status=409,
                code="approval_unknown",
            )
        sent = UIMessage(id=message.id, role="assistant", parts=parts)
        placement = placed(UIChat(message=sent, messageId=None), tree)
        await self._store.write(self._user, self._id, placement.last)
        messages = [UIMessage(**ui_document(stored)) for stored in (*placement.before, placement.last)]
        asked = UIChat(messages=messages, messageId=None).request(request.model)
        system = tuple(message for message in request.messages if message.role == "system")
        asked = replace(request, messages=(*system, *asked.messages), approved_calls=asked.approved_calls)
        return Begun(asked, message.id, messages[-1])

    async def _tree(self) -> MessageTree:
        conversation = await self._store.get(self._user, self._id)
        return MessageTree() if conversation is None else conversation.tree

    async def _begin(self, request: ChatRequest) -> "Begun":
        """Store the question. Return the request with the messages before it."""
        system = tuple(message for message in request.messages if message.role == "system")
        questions = [message for message in request.messages if message.role != "system"]
        if len(questions) != 1 or questions[0].role != "user":
            raise InvalidParameter("with a conversation, messages must have one message of the user", "messages")
        tree = await self._tree()
        parent_id = tree.active_id if self._parent_id is None else self._parent_id
        if parent_id is not None and tree.find(parent_id) is None:
            raise ChatError(
                f"the conversation {self._id!r} has no message {parent_id!r}", status=409, code="message_unknown"
            )
        question = stored_question(questions[0], parent_id)
        await self._store.write(self._user, self._id, question, create=True)
        earlier = [UIMessage(**ui_document(message)) for message in tree.branch(parent_id)]
        before = tuple(message for stored in earlier for message in chat_messages(stored))
        return Begun(replace(request, messages=(*system, *before, questions[0])), question.id)

    async def _end(self, record: MessageRecord, begun: "Begun") -> None:
        response = replace(response_of(record), parent_id=begun.message_id, model=begun.request.model)
        try:
            await self._store.write(self._user, self._id, response, activate=False)
        except ChatError as error:
            logger.warning("a response of the conversation %r was not stored: %s", self._id, error)
        except Exception:  # of a store of the user's own
            logger.exception("a response of the conversation %r was not stored", self._id)


@dataclass(frozen=True, slots=True)
class Begun:
    """What a model is asked in a conversation."""

    request: ChatRequest
    message_id: str
    """The message that the response follows, or continues."""
    continued: UIMessage | None = None
    """The message that the response continues; None: it is a new one."""


@asynccontextmanager
async def marked(log: StreamLog, conversation: str) -> AsyncIterator[None]:
    """Mark a conversation as one in which calls are run, for all replicas and until the process of the caller dies.

    Raises:
        ChatError: 409, it is marked already.
    """
    end = asyncio.Event()

    async def nothing() -> AsyncGenerator[bytes, None]:
        await end.wait()
        return
        yield

    mark = Generation(
        log, nothing(), "text/plain", key=f"chat-answer:{conversation}", linger_s=MAX_S, max_duration_s=MAX_S
    )
    try:
        await mark.begin()
    except StreamActive:
        raise ChatError(
            "a call of a tool has been answered already, and the response is being generated: load the conversation "
            "again",
            status=409,
            code="approval_answered",
        ) from None
    try:
        yield
    finally:
        end.set()
        await mark.ended()


def stored_question(message: ChatMessage, parent_id: str | None) -> StoredMessage:
    """Return a message of the user as the store keeps it."""
    parts = [{"type": "text", "text": message.text}] if message.text else []
    for attachment in message.attachments:
        named = {} if attachment.name is None else {"filename": attachment.name}
        parts.append({"type": "file", "mediaType": attachment.media_type, "url": attachment.url, **named})
    return StoredMessage(f"msg_{secrets.token_urlsafe(12)}", "user", parts, parent_id=parent_id)
