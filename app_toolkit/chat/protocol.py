"""What a chat model gets and yields. Each router translates its wire format to this and back."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why a model stopped."""

Role = Literal["system", "user", "assistant", "tool"]
"""Who wrote a message. The role `developer` of OpenAI is `system` here."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as a model asked for it in an earlier message."""

    id: str
    name: str
    arguments: str
    """A JSON document."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image or a file in a message."""

    media_type: str
    url: str
    """An address, or a `data:` URL with the content."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the role `assistant`: the tools that the model called."""
    tool_call_id: str | None = None
    """Of the role `tool`: the call that the text is the result of."""
    attachments: tuple[Attachment, ...] = ()
    reasoning: str = ""
    """Of the role `assistant`: what the model wrote before its response."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask its client to call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """A JSON schema."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks a model. None: the client has not set the option."""

    messages: tuple[ChatMessage, ...]
    model: str = "default"
    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or the name of a tool."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    response_format: Mapping[str, Any] | None = None
    """As in OpenAI's chat completions: `{"type": "json_object"}` or `{"type": "json_schema", ...}`."""
    user: str | None = None
    choice: int = 0
    """Which of several responses to the same request this is, from 0 on."""
    extra: Mapping[str, Any] | None = None
    """Fields of the client's request that have no place here."""

    @property
    def prompt(self) -> str:
        """The text of the last message of the user; empty if there is none."""
        return next((each.text for each in reversed(self.messages) if each.role == "user"), "")


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A part of the response."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningEvent:
    """A part of what the model writes before its response."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A part of a tool call. The first part with an `index` has the id, the name, and who runs the tool.

    A part with an `index` and another id begins another call. A call without an id gets one.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    """The next part of a JSON document."""
    executed: bool | None = None
    """True: the model runs the tool, and yields its result. False: the client runs it. None: the model has run it if it
    yields a result. Clients that cannot see results get such a call at the end of the response, if there was no result.
    """


@dataclass(frozen=True, slots=True)
class ToolResultEvent:
    """The result of a tool that the model has run itself, after its `ToolCallEvent`. A call has one result."""

    id: str
    result: Any
    """Plain data."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """What the response cost, in tokens."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The model failed after it had begun. Nothing follows."""

    message: str
    code: str = "model_error"


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of the response. Only a `UsageEvent` counts after it.

    `stop` and `tool_calls` count as the same: the client gets `tool_calls` if there are calls without a result that it
    has to run, and `stop` otherwise, also if the model yields no `FinishEvent`.
    """

    reason: FinishReason = "stop"


ChatEvent = TextEvent | ReasoningEvent | ToolCallEvent | ToolResultEvent | UsageEvent | ErrorEvent | FinishEvent
"""What a model yields."""


class ChatModel(Protocol):
    """A chat model: a deployment, its handle, or any object with this method.

    A model that counts tokens also has `async def count_tokens(self, request: ChatRequest) -> int`, which returns the
    tokens of the prompt.
    """

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the response to a request. It is closed when the client stops or disconnects.

        Raises:
            ChatError: The request cannot be served; before the first event it is the response, with its status.
        """


INTERRUPTED = "The response was interrupted."
"""What users read if a process that took part in a response has died. The log has the details."""

ChatFunction = Callable[[ChatRequest], AsyncIterator[ChatEvent]]
"""A model may also be an async generator function."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one text, and the tokens that the text has."""

    vector: Sequence[float]
    tokens: int


Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float] | Embedding]]]
"""Returns one vector for each text."""


def closing(events: AsyncIterator[ChatEvent]) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
    """Close the events of a model at the end of the block, if they can be closed."""
    if hasattr(events, "aclose"):
        return cast(AbstractAsyncContextManager[AsyncIterator[ChatEvent]], aclosing(cast(Any, events)))
    return nullcontext(events)
