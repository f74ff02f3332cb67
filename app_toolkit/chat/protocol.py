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
    file_id: str | None = None
    """The file of a `FileStore`, whose method `read` returns the content. None: it is in none."""


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
    is_error: bool = False
    """Of the role `tool`: whether the call has failed, and the text says why."""


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
    approved_calls: tuple[ToolCall, ...] = ()
    """The calls of an earlier `ApprovalRequest` that the user has approved. The model runs them, and yields a
    `ToolResultEvent` for each. They are not in `messages`. A call comes again if the response before was interrupted.
    """
    continue_from: ChatMessage | None = None
    """The beginning of the response, which was interrupted. The model yields what follows it, from the next character
    on. Only models in `continued` get it.
    """

    @property
    def prompt(self) -> str:
        """The text of the last message of the user; empty if there is none."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")


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
    stop_string: str | None = None
    """The string of `ChatRequest.stop` before which the text ends; None: the model has stopped by itself."""


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """A page on which the response is based."""

    url: str
    title: str = ""
    id: str = ""
    """A source without an id gets one. Clients get the first one of several sources with the same id."""


@dataclass(frozen=True, slots=True)
class DocumentEvent:
    """A document without an address on which the response is based."""

    title: str
    media_type: str = "text/plain"
    name: str = ""
    """The name of its file."""
    id: str = ""
    """Identifies it in the response, among pages and documents. Empty: one is made."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A file that the model has made, such as an image. It has either a `url` or `data`."""

    media_type: str
    url: str = ""
    """An address, or a `data:` URL. Routers get `data` as such a URL."""
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class DataEvent:
    """Data for the front end of an application."""

    name: str
    """What the data are: ASCII letters, digits, `-` and `_`. The names `error` and `status` are reserved."""
    data: Any
    """Plain data."""
    id: str = ""
    """Later data with the same name and id replace these. Empty: nothing replaces them."""
    transient: bool = False
    """True: the front end gets the data while they arrive, and they are no part of the message."""


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """What the model does now, for example `Searching`. It is no part of the message."""

    text: str
    """Empty: nothing to show."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call of a tool that the model runs only if the user approves it. The model ends its response after it.

    The next request has the call in `approved_calls` if the user has approved it. Otherwise its messages have the call
    with a result that says why it was denied.
    """

    call: ToolCall
    """Without an id, it gets one."""


OptionalEvent = SourceEvent | DocumentEvent | FileEvent | DataEvent | StatusEvent | ApprovalRequest
"""What only some protocols express. A router names the types that its protocol expresses; the others are left out."""

ChatEvent = (
    TextEvent | ReasoningEvent | ToolCallEvent | ToolResultEvent | UsageEvent | ErrorEvent | FinishEvent | OptionalEvent
)
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

DENIED = "The call of the tool was denied."
"""What a model reads as the result of a call that its user has denied without a reason."""

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
