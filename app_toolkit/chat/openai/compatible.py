"""`OpenAICompatible`: a chat model on another server with OpenAI's API. It needs the extra `openai`."""

import logging
import math
import os
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from app_toolkit import ChatError, ConfigError, Deployment
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.openai.compatible_wire import ChunkReader, completion_body
from app_toolkit.chat.protocol import ChatEvent, ChatRequest, ErrorEvent

if TYPE_CHECKING:
    import httpx2
    import openai

logger = logging.getLogger("app_toolkit.chat")

FORWARDED_FIELDS = (
    "frequency_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "verbosity",
)
"""Fields of OpenAI's API that `ChatRequest` does not have."""

UNSENT_HEADERS = "OpenAI-Organization", "OpenAI-Project"
"""Header fields that the SDK takes from environment variables. They are meant for OpenAI's own server."""

BUSY_RETRY_S = 1.0
"""The `Retry-After` of a request that found no free connection, in seconds."""

MAX_RETRY_AFTER_S = 86_400.0
"""A longer `Retry-After` of the server is not passed on."""


class OpenAICompatible(
    Deployment,
    name="openai-compatible",
    max_ongoing_requests=100,
    max_open_streams=0,  # each response occupies the server until its end
    resources={"num_cpus": 0.1},
):
    """A chat model on another server with OpenAI's API: vLLM, Ollama, llama.cpp, a provider, or `openai_router`.

    ```python
    model = OpenAICompatible.bind("http://127.0.0.1:11434/v1", model="qwen3:8b")
    ```

    It streams every response. If its request is cancelled, it closes the connection, and the server stops. It sends an
    API key only if you name the variable or the file that has it.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        connect_timeout_s: float = 5.0,
        pool_timeout_s: float = 5.0,
        chunk_timeout_s: float = 120.0,
        max_connections: int = 100,
        max_retries: int = 0,
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        forwarded_fields: Collection[str] = FORWARDED_FIELDS,
        reasoning_field: str | None = None,
        continue_fields: Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        files: FileStore | None = None,
    ) -> None:
        """Create a client of the server. It connects with the first request.

        Parameters:
            base_url: URL of the API, usually with `/v1` at the end.
            model: Name of the model on the server. Default: the name in each request.
            api_key_env: Environment variable with the API key, in the replica. Default: none.
            api_key_file: File with the API key, on the replica's node. Default: none.
            connect_timeout_s: Seconds to connect. Default: 5.
            pool_timeout_s: Seconds to wait for one of `max_connections`; then the request gets 503. Default: 5.
            chunk_timeout_s: Seconds without any data, also before the first chunk. Default: 120.
            max_connections: Requests that run at the same time. Default: 100.
            max_retries: Retries of a request that fails before its response. Default: 0, because clients retry.
            max_tokens_field: Field for the limit of tokens. Newer models of OpenAI need `max_completion_tokens`.
                Default: `max_tokens`.
            reasoning_field: Field of an earlier message of the model with its reasoning, such as `reasoning_content`.
                Default: None, the reasoning of earlier messages is not sent, because many servers refuse it.
            continue_fields: Fields of a request whose last message is the beginning of the response, which the server
                continues: for vLLM `{"continue_final_message": True, "add_generation_prompt": False}`, and `{}` for a
                server that always does this. Default: None, the server cannot continue a response.
            forwarded_fields: Fields of the client's request that are sent to the server unchanged, although
                `ChatRequest` does not have them. Default: those that OpenAI's API has.
            extra_body: Fields that each request has. They override all others. Default: none.
            files: The files of the routers. The server gets the content of those that messages name, because it cannot
                read them. Default: none.

        Raises:
            ConfigError: A value is out of bounds, the API key is missing, or the package openai is not installed.
        """
        self._base_url = _checked_url(base_url)
        timeouts = {"connect": connect_timeout_s, "pool": pool_timeout_s, "chunk": chunk_timeout_s}
        for name, value in timeouts.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"OpenAICompatible: {name}_timeout_s = {value!r}: must be a number above 0")
        if max_connections < 1 or max_retries < 0:
            raise ConfigError(
                f"OpenAICompatible: max_connections = {max_connections!r} must be at least 1, and "
                f"max_retries = {max_retries!r} at least 0"
            )
        self._model = model
        self._max_tokens_field = max_tokens_field
        self._forwarded_fields = frozenset(forwarded_fields)
        self._reasoning_field = reasoning_field
        self._continue_fields = continue_fields
        self._extra_body = dict(extra_body or {})
        self._files = files
        api_key = _api_key(api_key_env, api_key_file)
        self._unsent_headers = UNSENT_HEADERS if api_key else (*UNSENT_HEADERS, "Authorization")
        self._client = _client(self._base_url, api_key, timeouts, max_connections, max_retries)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Yield the response of the server.

        Raises:
            ChatError: The server has refused the request (its status and `Retry-After`), did not answer in time (504),
                cannot be reached (502), refuses the API key (502), or all connections are in use (503). After the
                first event, an `ErrorEvent` ends the response instead.
        """
        body = completion_body(
            await self._with_contents(request),
            model=self._model,
            max_tokens_field=self._max_tokens_field,
            forwarded_fields=self._forwarded_fields,
            reasoning_field=self._reasoning_field,
            continue_fields=self._continue_fields,
            extra_body=self._extra_body,
        )
        began = False
        try:
            async with aclosing(self._events(body)) as events:
                async for event in events:
                    began = True
                    yield event
        except ChatError as error:
            if not began:
                raise
            yield ErrorEvent(error.message, error.code or "upstream_error")

    async def _with_contents(self, request: ChatRequest) -> ChatRequest:
        """Return a request that has the content of the files that it names. Raises `ChatError`."""
        if not any(attachment.file_id for message in request.messages for attachment in message.attachments):
            return request
        if self._files is None:
            raise self._upstream_error("cannot read the files of messages: OpenAICompatible has no files", 501)
        messages = []
        for message in request.messages:
            attachments = [await self._files.inline(attachment) for attachment in message.attachments]
            messages.append(replace(message, attachments=tuple(attachments)))
        return replace(request, messages=tuple(messages))

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[ChatEvent, None]:
        """Yield the events of one completion. Raises `ChatError`."""
        import openai

        reader = ChunkReader()
        try:
            create = cast(Any, self._client.chat.completions.create)
            async with await create(
                model=body["model"],
                messages=body["messages"],
                stream=True,
                extra_body=body,
                extra_headers=dict.fromkeys(self._unsent_headers, openai.omit),
            ) as chunks:
                async for chunk in chunks:
                    for event in reader.read(chunk):
                        yield event
        except openai.APIError as error:
            raise self._error_from_sdk(error) from error
        except ValueError as error:
            raise self._upstream_error("sent a chunk that is not valid JSON") from error
        if reader.finish_reason is None:
            raise self._upstream_error("ended its response early")
        for event in reader.end():
            yield event

    def _error_from_sdk(self, error: "openai.APIError") -> ChatError:
        """Convert an error of the SDK to the error for our client."""
        import httpx2
        import openai

        if isinstance(error.__cause__, httpx2.PoolTimeout):
            return self._upstream_error("has no free connection", 503, "upstream_busy", BUSY_RETRY_S)
        if isinstance(error, openai.APITimeoutError):
            return self._upstream_error("did not answer in time", 504, "upstream_timeout")
        if isinstance(error, openai.APIConnectionError):
            return self._upstream_error("cannot be reached, or closed its connection", 502, "upstream_unreachable")
        if isinstance(error, openai.APIStatusError):
            return self._error_from_status(error)
        status = _status_in(error.body) or 502
        return ChatError(error.message, status=status, code=error.code or "upstream_error")

    def _error_from_status(self, error: "openai.APIStatusError") -> ChatError:
        """Convert an error response of the server."""
        status = error.status_code
        if status in (401, 403):
            # The client's own key is not the cause, and the text of some servers shows a part of ours.
            return self._upstream_error("refused the API key", 502, "upstream_refused_key")
        message = _message_in(error.body)
        if message is None:
            return self._upstream_error(f"answered with status {status}", status if status >= 400 else 502)
        return ChatError(message, status=status, code=error.code, retry_after_s=_retry_after(error.response))

    def _upstream_error(
        self, what: str, status: int = 502, code: str = "upstream_error", retry_after_s: float | None = None
    ) -> ChatError:
        """Log an error with the URL of the server, and return it without the URL, which clients must not see."""
        logger.warning("the model server %s %s", self._base_url, what)
        return ChatError(f"the model server {what}", status=status, code=code, retry_after_s=retry_after_s)

    def __repr__(self) -> str:
        return f"<OpenAICompatible {self._model or 'any model'} at {self._base_url}>"


def _client(
    base_url: str, api_key: str | None, timeouts: Mapping[str, float], max_connections: int, max_retries: int
) -> "openai.AsyncOpenAI":
    try:
        import httpx2
        import openai
    except ImportError as error:
        raise ConfigError("OpenAICompatible needs the package openai: pip install 'app-toolkit[openai]'") from error
    timeout = httpx2.Timeout(timeouts["chunk"], connect=timeouts["connect"], pool=timeouts["pool"])
    limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    return openai.AsyncOpenAI(
        api_key=api_key or "none",
        base_url=base_url,
        max_retries=max_retries,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpxClient(timeout=timeout, limits=limits),
    )


def _checked_url(base_url: str) -> str:
    """Return the URL. It must not have a password, because it is in logs."""
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"OpenAICompatible: base_url = {base_url!r}: must be a URL with http:// or https://")
    if parts.username is not None or parts.query:
        raise ConfigError("OpenAICompatible: base_url must not have a user, a password or a query: use api_key_env")
    return base_url


def _api_key(variable: str | None, file: str | None) -> str | None:
    if variable is not None and file is not None:
        raise ConfigError("OpenAICompatible: give api_key_env or api_key_file, not both")
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ConfigError(f"OpenAICompatible: the environment variable {variable}, for the API key, is not set")
        return key
    if file is not None:
        try:
            key = Path(file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"OpenAICompatible: api_key_file {file!r} cannot be read: {reason}") from None
        if not key:
            raise ConfigError(f"OpenAICompatible: api_key_file {file!r} is empty")
        return key
    return None


def _message_in(body: object) -> str | None:
    """Return the text of an error, from which the SDK has unwrapped `error`. FastAPI's errors have `detail`."""
    fields = body if isinstance(body, Mapping) else {}
    return next((fields[name] for name in ("message", "detail") if isinstance(fields.get(name), str)), None) or None


def _status_in(body: object) -> int | None:
    """Return the status in an error that is an event of a stream; vLLM sends it as the code."""
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _retry_after(response: "httpx2.Response") -> float | None:
    """Return the seconds of `Retry-After`. None for an HTTP date, because the clocks of the servers may differ."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds <= MAX_RETRY_AFTER_S else None
