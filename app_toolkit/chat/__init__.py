"""Routers of chat protocols over one interface of chat models."""

from app_toolkit.chat.protocol import (
    Attachment,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatModel,
    ChatRequest,
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

__all__ = [
    "Attachment",
    "ChatError",
    "ChatEvent",
    "ChatMessage",
    "ChatModel",
    "ChatRequest",
    "ErrorEvent",
    "FinishEvent",
    "FinishReason",
    "ReasoningEvent",
    "TextEvent",
    "Tool",
    "ToolCall",
    "ToolCallEvent",
    "ToolResultEvent",
    "UsageEvent",
]
