"""Routers of chat protocols over one interface of chat models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from app_toolkit import ChatError
from app_toolkit.chat.ai_sdk.router import ai_sdk_router
from app_toolkit.chat.anthropic.router import anthropic_router
from app_toolkit.chat.attempts import fallback, first_token_within, retried
from app_toolkit.chat.budgets import Cost
from app_toolkit.chat.chain import Chain
from app_toolkit.chat.continued import continued
from app_toolkit.chat.conversations import (
    Conversation,
    ConversationLimits,
    ConversationStore,
    Feedback,
    MessageTree,
    StoredMessage,
    Summary,
)
from app_toolkit.chat.conversations_router import conversations_router
from app_toolkit.chat.files import FileStore, StoredFile
from app_toolkit.chat.files_router import files_router
from app_toolkit.chat.key_files import KeyFile
from app_toolkit.chat.keys import api_keys
from app_toolkit.chat.keys_router import keys_router
from app_toolkit.chat.mcp import McpServers, with_mcp_tools
from app_toolkit.chat.moderation import moderated
from app_toolkit.chat.ollama.router import ollama_router
from app_toolkit.chat.openai.router import openai_router
from app_toolkit.chat.protocol import (
    ApprovalRequest,
    Attachment,
    ChatEvent,
    ChatMessage,
    ChatModel,
    ChatRequest,
    DataEvent,
    DocumentEvent,
    Embedding,
    ErrorEvent,
    FileEvent,
    FinishEvent,
    FinishReason,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    Tool,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.chat.rate_limits import KeyLimits
from app_toolkit.chat.titles import titled
from app_toolkit.chat.websocket.router import websocket_router

if TYPE_CHECKING:
    from app_toolkit.chat.ag_ui.router import ag_ui_router as ag_ui_router
    from app_toolkit.chat.sql_conversations import SQLConversationStore as SQLConversationStore


NEEDS_EXTRA = {
    "SQLConversationStore": "app_toolkit.chat.sql_conversations",
    "ag_ui_router": "app_toolkit.chat.ag_ui.router",
}
"""Public names that need an extra, and their modules. `__all__` is without them: `import *` would import them."""


def __getattr__(name: str) -> Any:
    """Import what needs an extra when a program takes it, because most programs do not have the extra."""
    if name in NEEDS_EXTRA:
        return getattr(import_module(NEEDS_EXTRA[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ApprovalRequest",
    "Attachment",
    "Chain",
    "ChatError",
    "ChatEvent",
    "ChatMessage",
    "ChatModel",
    "ChatRequest",
    "Conversation",
    "ConversationLimits",
    "ConversationStore",
    "Cost",
    "DataEvent",
    "DocumentEvent",
    "Embedding",
    "ErrorEvent",
    "Feedback",
    "FileEvent",
    "FileStore",
    "FinishEvent",
    "FinishReason",
    "KeyFile",
    "KeyLimits",
    "McpServers",
    "MessageTree",
    "ReasoningEvent",
    "SourceEvent",
    "StatusEvent",
    "StoredFile",
    "StoredMessage",
    "Summary",
    "TextEvent",
    "Tool",
    "ToolCall",
    "ToolCallEvent",
    "ToolResultEvent",
    "UsageEvent",
    "ai_sdk_router",
    "anthropic_router",
    "api_keys",
    "continued",
    "conversations_router",
    "fallback",
    "files_router",
    "first_token_within",
    "keys_router",
    "moderated",
    "ollama_router",
    "openai_router",
    "retried",
    "titled",
    "websocket_router",
    "with_mcp_tools",
]
