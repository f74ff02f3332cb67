"""Routers of chat protocols over one interface of chat models."""

from app_toolkit.chat.ai_sdk.router import ai_sdk_router
from app_toolkit.chat.conversations import ConversationLimits, ConversationStore, SQLiteConversationStore
from app_toolkit.chat.conversations_router import conversations_router
from app_toolkit.chat.keys import api_keys
from app_toolkit.chat.openai.router import openai_router
from app_toolkit.chat.protocol import (
    Attachment,
    ChatEvent,
    ChatMessage,
    ChatModel,
    ChatRequest,
    Embedding,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    ReasoningEvent,
    TextEvent,
    Tool,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.chat.websocket.router import websocket_router
from app_toolkit.errors import ChatError

__all__ = [
    "Attachment",
    "ChatError",
    "ChatEvent",
    "ChatMessage",
    "ChatModel",
    "ChatRequest",
    "ConversationLimits",
    "ConversationStore",
    "Embedding",
    "ErrorEvent",
    "FinishEvent",
    "FinishReason",
    "ReasoningEvent",
    "SQLiteConversationStore",
    "TextEvent",
    "Tool",
    "ToolCall",
    "ToolCallEvent",
    "ToolResultEvent",
    "UsageEvent",
    "ai_sdk_router",
    "api_keys",
    "conversations_router",
    "openai_router",
    "websocket_router",
]
