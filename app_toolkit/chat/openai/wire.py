"""The requests and responses of OpenAI's API, and their translation to the interface of chat models."""

import json
import mimetypes
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app_toolkit.chat.failures import InvalidParameter, missing
from app_toolkit.chat.offered_tools import chosen_tools, named_function, note_ignored
from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, FinishReason, Tool, ToolCall

AUDIO = {"mp3": "audio/mpeg", "wav": "audio/wav"}
"""The media types of the audio formats that have another name than their format."""

MAX_TEXTS = 2_048
"""The texts of one request for embeddings, as with OpenAI."""

MAX_STOPS = 16
"""The strings of `stop`. OpenAI takes four."""


class OpenAIObject(BaseModel):
    """An object of a request. Unknown fields are ignored, because clients send fields that only some servers have."""

    model_config = ConfigDict(extra="ignore")


class OpenAIFunctionCall(OpenAIObject):
    name: str
    arguments: str = Field(default="", description="A JSON document.")


class OpenAIToolCall(OpenAIObject):
    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCall


class OpenAICustom(OpenAIObject):
    name: str
    input: str = ""


class OpenAICustomCall(OpenAIObject):
    """An earlier call of a tool whose input is any text."""

    id: str
    type: Literal["custom"]
    custom: OpenAICustom


class OpenAIImage(OpenAIObject):
    url: str = Field(description="An address, or a `data:` URL with the content.")


class OpenAIAudio(OpenAIObject):
    data: str = Field(description="The content in base64.")
    format: str


class OpenAIFile(OpenAIObject):
    file_data: str | None = Field(default=None, description="A `data:` URL, or the content in base64.")
    file_id: str | None = Field(default=None, description="A file of `/files`.")
    filename: str | None = None


class OpenAIPart(OpenAIObject):
    """A part of the content of a message. The field with the name of the type has the content."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: OpenAIImage | None = None
    input_audio: OpenAIAudio | None = None
    file: OpenAIFile | None = None


class OpenAIMessage(OpenAIObject):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[OpenAIPart] | None = None
    tool_calls: list[OpenAIToolCall | OpenAICustomCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(default=None, description="The reasoning of an earlier response.")
    reasoning: str | None = Field(default=None, description="The same, as some servers call it.")
    is_error: bool = Field(default=False, description="Of the role tool: whether the call has failed.")


class OpenAIFunction(OpenAIObject):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")


class OpenAITool(OpenAIObject):
    type: str = Field(description="`function`. Tools of other types are ignored.")
    function: OpenAIFunction | None = None


class OpenAIFunctionName(OpenAIObject):
    name: str


class OpenAIAllowedTool(OpenAIObject):
    type: str
    function: OpenAIFunctionName | None = None


class OpenAIAllowedTools(OpenAIObject):
    mode: Literal["auto", "required"]
    tools: list[OpenAIAllowedTool]


class OpenAIToolChoice(OpenAIObject):
    type: str = Field(description="`function` or `allowed_tools`. Other types are ignored.")
    function: OpenAIFunctionName | None = None
    allowed_tools: OpenAIAllowedTools | None = None


class OpenAIStreamOptions(OpenAIObject):
    include_usage: bool | None = None


class ChatCompletionRequest(BaseModel):
    """A request of `POST /chat/completions`. Fields that are not listed reach the model as `ChatRequest.extra`."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1)
    messages: list[OpenAIMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: OpenAIStreamOptions | None = None
    n: int | None = Field(default=None, ge=1, description="The number of choices.")
    tools: list[OpenAITool] | None = None
    tool_choice: Literal["auto", "none", "required"] | OpenAIToolChoice | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, description="Overrides `max_tokens`.")
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    response_format: dict[str, Any] | None = None
    user: str | None = None


class CompletionRequest(BaseModel):
    """A request of `POST /completions`. Fields that are not listed reach the model as `ChatRequest.extra`."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1)
    prompt: str | list[str] | list[int] | list[list[int]] = Field(description="Texts. Tokens are not supported.")
    stream: bool | None = None
    stream_options: OpenAIStreamOptions | None = None
    n: int | None = Field(default=None, ge=1, description="The number of choices of each prompt.")
    echo: bool | None = Field(default=None, description="Whether each choice begins with its prompt.")
    best_of: int | None = Field(default=None, ge=1, description="Not supported, unless it is `n`.")
    suffix: str | None = Field(default=None, description="Not supported.")
    logprobs: int | None = Field(default=None, description="Not supported.")
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None


class EmbeddingRequest(OpenAIObject):
    """A request of `POST /embeddings`."""

    model: str = Field(min_length=1)
    input: str | list[str] | list[int] | list[list[int]] = Field(description="Texts. Tokens are not supported.")
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(default=None, ge=1)

    def texts(self) -> list[str]:
        """Return the texts. Raises `InvalidParameter`."""
        return _texts(self.input, "input", "send texts (in LangChain: check_embedding_ctx_length=False)")


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class CompletionUsage(BaseModel):
    """The tokens of all choices together. Zeros: the model does not count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class UrlCitation(BaseModel):
    """A page on which the response is based. It is cited at the end of the text so far."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(BaseModel):
    type: Literal["url_citation"]
    url_citation: UrlCitation


class ChatCompletionMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(default=None, description="Only if the model has reasoned.")
    annotations: list[Annotation] | None = Field(default=None, description="Only if the model names sources.")
    tool_calls: list[OpenAIToolCall] | None = Field(default=None, description="Only if the model calls tools.")


class ChatCompletionChoice(BaseModel):
    index: int
    message: ChatCompletionMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """A response of `POST /chat/completions` without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatCompletionChoice]
    usage: CompletionUsage


class TextCompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason


class TextCompletionDocument(BaseModel):
    """A response of `POST /completions` without `stream`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextCompletionChoice]
    usage: CompletionUsage


class ServedModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "app_toolkit"


class ServedModels(BaseModel):
    object: Literal["list"] = "list"
    data: list[ServedModel]


class EmbeddingVector(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(description="Numbers, or with `base64` their 32-bit floats.")


class EmbeddingUsage(BaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage = Field(description="Zeros: the function returns no `Embedding`.")


class OpenAIErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = Field(description="The field of the request that is wrong.")
    code: str | None


class OpenAIErrorDocument(BaseModel):
    """The body of every response that is an error."""

    error: OpenAIErrorDetail


def chat_request(body: ChatCompletionRequest) -> ChatRequest:
    """Return the request as chat models get it. Raises `InvalidParameter`."""
    extra = dict(body.model_extra or {})
    _refuse_logprobs(extra.pop("logprobs", None), extra.pop("top_logprobs", None))
    tools, tool_choice = _chosen_tools(body.tools or (), body.tool_choice)
    return ChatRequest(
        messages=tuple(_message(message, f"messages[{number}]") for number, message in enumerate(body.messages)),
        model=body.model,
        tools=tools,
        tool_choice=tool_choice,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=_stop(body.stop),
        seed=body.seed,
        response_format=body.response_format,
        user=body.user,
        extra=extra or None,
    )


def _chosen_tools(
    offered: Sequence[OpenAITool], choice: str | OpenAIToolChoice | None
) -> tuple[tuple[Tool, ...], str | None]:
    """Return the functions that the model may call, and its choice among them. Raises `InvalidParameter`."""
    tools: list[Tool] = []
    for number, tool in enumerate(offered):
        if tool.type != "function":
            note_ignored("tools", tool.type)
        elif tool.function is None:
            raise missing(f"tools[{number}].function")
        else:
            tools.append(Tool(tool.function.name, tool.function.description or "", tool.function.parameters))
    if not isinstance(choice, OpenAIToolChoice):
        return chosen_tools(tools, choice if tools or not offered else None)
    match choice.type:
        case "function":
            if choice.function is None:
                raise missing("tool_choice.function")
            return chosen_tools(tools, named_function(choice.function.name, tools))
        case "allowed_tools":
            if choice.allowed_tools is None:
                raise missing("tool_choice.allowed_tools")
            allowed = [tool.function.name for tool in choice.allowed_tools.tools if tool.function is not None]
            return chosen_tools(tools, choice.allowed_tools.mode, allowed)
    note_ignored("choices of tools", choice.type)
    return chosen_tools(tools, "auto" if tools else None)


def free_text_arguments(input: str) -> str:
    """Return the input of a tool that takes any text as the arguments of a function."""
    return json.dumps({"input": input}, ensure_ascii=False)


def prompt_requests(body: CompletionRequest) -> list[ChatRequest]:
    """Return one request for each prompt, as chat models get it: the prompt is the message of a user.

    Raises:
        InvalidParameter: The request asks for something that chat models do not have.
    """
    _refuse_logprobs(body.logprobs is not None, None)
    if body.suffix:
        raise InvalidParameter("suffix is not supported: chat models do not fill in the middle of a text", "suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidParameter(f"best_of is {body.best_of}: it is not supported, unless it is n", "best_of")
    return [
        ChatRequest(
            messages=(ChatMessage("user", prompt),),
            model=body.model,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            stop=_stop(body.stop),
            seed=body.seed,
            user=body.user,
            extra=dict(body.model_extra or {}) or None,
        )
        for prompt in _texts(body.prompt, "prompt", "send texts")
    ]


def _texts(given: str | list[str] | list[int] | list[list[int]], param: str, advice: str) -> list[str]:
    """Return the texts of a field. Raises `InvalidParameter` if it has tokens, no text, or too many."""
    values = [given] if isinstance(given, str) else given
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise InvalidParameter(f"{param} has tokens, which this server cannot read; {advice}", param)
    if not 0 < len(texts) <= MAX_TEXTS:
        raise InvalidParameter(f"{param} has {len(texts)} texts: it must have from 1 to {MAX_TEXTS}", param)
    return texts


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOPS or not all(strings):
        raise InvalidParameter(f"stop must have at most {MAX_STOPS} strings, and no empty one", "stop")
    return strings


def _refuse_logprobs(logprobs: Any, top: Any) -> None:
    """Raise `InvalidParameter` if a request asks for the probabilities of tokens."""
    if logprobs or top:
        name = "logprobs" if logprobs else "top_logprobs"
        raise InvalidParameter(f"{name} is not supported: chat models do not tell the probabilities of tokens", name)


def _message(message: OpenAIMessage, param: str) -> ChatMessage:
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidParameter("a message of the role tool needs tool_call_id", f"{param}.tool_call_id")
    if message.content is None and message.role != "assistant":
        raise InvalidParameter(f"a message of the role {message.role} needs content", f"{param}.content")
    texts: list[str] = []
    attachments: list[Attachment] = []
    if isinstance(message.content, str):
        texts.append(message.content)
    else:
        for number, part in enumerate(message.content or ()):
            content = _part(part, f"{param}.content[{number}]")
            (texts if isinstance(content, str) else attachments).append(content)  # type: ignore[arg-type]
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        text="\n".join(texts),
        tool_calls=tuple(
            ToolCall(call.id, call.custom.name, free_text_arguments(call.custom.input))
            if isinstance(call, OpenAICustomCall)
            else ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        attachments=tuple(attachments),
        reasoning=message.reasoning_content or message.reasoning or "" if message.role == "assistant" else "",
        is_error=message.is_error and message.role == "tool",
    )


def _part(part: OpenAIPart, param: str) -> str | Attachment:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type == "image_url" and part.image_url is not None:
        return Attachment(media_type_of(part.image_url.url, "image/*"), part.image_url.url)
    if part.type == "input_audio" and part.input_audio is not None:
        audio = part.input_audio
        media_type = AUDIO.get(audio.format, f"audio/{audio.format}")
        return Attachment(media_type, f"data:{media_type};base64,{audio.data}")
    if part.type == "file" and part.file is not None:
        return file_attachment(part.file, f"{param}.file")
    raise InvalidParameter(f"a part of the type {part.type} needs {part.type}", f"{param}.{part.type}")


def file_attachment(file: OpenAIFile, param: str) -> Attachment:
    """Return a file as an attachment. Raises `InvalidParameter` if it has no content."""
    if file.file_id is not None:
        return Attachment(_guessed(file.filename, "application/octet-stream"), "", file.filename, file.file_id)
    if file.file_data is None:
        raise InvalidParameter("a file needs file_data or file_id", f"{param}.file_data")
    if file.file_data.startswith(("data:", "http:", "https:")):
        url = file.file_data
        media_type = media_type_of(url, _guessed(file.filename, "application/octet-stream"))
    else:
        media_type = _guessed(file.filename, "application/octet-stream")
        url = f"data:{media_type};base64,{file.file_data}"
    return Attachment(media_type, url, file.filename)


def media_type_of(url: str, otherwise: str) -> str:
    """Return the media type that a `data:` URL has, or that the name in an address has."""
    if url.startswith("data:"):
        return url[5:].partition(",")[0].partition(";")[0] or otherwise
    return _guessed(url.partition("?")[0].partition("#")[0], otherwise)


def _guessed(name: str | None, otherwise: str) -> str:
    return mimetypes.guess_type(name or "")[0] or otherwise
