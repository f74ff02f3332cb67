"""The formats of streamed responses: server-sent events, JSON lines, and plain bytes.

A stream log keeps the events without their framing. An event of `text/event-stream` is kept as its type, a line feed,
and its data, or as its type alone if it has no data. An item of a route that yields JSON lines is kept as an event
without a type. Events of any other media type are kept as they are.
"""

import json
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from inspect import isclass
from typing import Annotated, Any, get_args, get_origin

from fastapi.encoders import jsonable_encoder
from fastapi.sse import ServerSentEvent, format_sse_event
from pydantic import (
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)

SSE = "text/event-stream"
JSON_LINES = "application/jsonl"
LINES = frozenset({JSON_LINES, "application/x-ndjson", "application/json-lines"})

STREAMS = frozenset({AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator})

MODEL_OPTIONS: Mapping[str, Any] = {
    "include": None,
    "exclude": None,
    "by_alias": True,
    "exclude_unset": False,
    "exclude_defaults": False,
    "exclude_none": False,
}
"""The options `response_model_...` of a route, and their defaults."""

HEARTBEAT = b": ping\n\n"
"""A comment of `text/event-stream`, which clients ignore."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def essence(media_type: str | None) -> str:
    """Return a media type without its parameters."""
    return (media_type or "").partition(";")[0].strip().lower()


def encode(item: Any) -> bytes | None:
    """Encode an item that a route yields, as FastAPI does. None: it has no type and no data, and is not kept."""
    if not isinstance(item, ServerSentEvent):
        return b"\n" + _json(item, by_alias=True)
    kind = (item.event or "").encode()
    if item.raw_data is not None:
        return kind + b"\n" + item.raw_data.encode()
    if item.data is not None:
        return kind + b"\n" + _json(item.data, by_alias=None)
    return kind or None


def item_type(annotation: Any) -> "TypeAdapter[Any] | None":
    """Return the declared type of the items that a route yields; None: none, or `ServerSentEvent`."""
    if get_origin(annotation) not in STREAMS or not get_args(annotation):
        return None
    declared = get_args(annotation)[0]
    if declared is Any or (isclass(declared) and issubclass(declared, ServerSentEvent)):
        return None
    return TypeAdapter(declared)


@dataclass(frozen=True, slots=True)
class LoggedItem:
    """An item of a JSON line as the log has it, which FastAPI must not validate and filter a second time."""

    document: Any


def _validated(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, LoggedItem) else handler(value)


def _serialized(value: Any, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
    # Without an annotation of the result, the JSON schema is that of the declared type.
    return value.document if isinstance(value, LoggedItem) else handler(value)


def logged(annotation: Any) -> Any:
    """Return the annotation of an endpoint that yields `LoggedItem`s of the declared type, for its documentation."""
    declared = get_args(annotation)[0]
    return AsyncIterable[Annotated[declared, WrapValidator(_validated), WrapSerializer(_serialized)]]  # type: ignore[valid-type]


def item_encoder(declared: "TypeAdapter[Any] | None", route: object) -> Callable[[Any], bytes | None]:
    """Return the function that encodes the items of a route.

    As FastAPI does, it validates an item, and sends only the fields of the declared type that the options of the route
    include. It raises `ValidationError` of pydantic for an item of another type.
    """
    if declared is None:
        return encode
    chosen = {name: getattr(route, f"response_model_{name}", default) for name, default in MODEL_OPTIONS.items()}

    def encode_declared(item: Any) -> bytes | None:
        if isinstance(item, ServerSentEvent):
            return encode(item)
        return b"\n" + declared.dump_json(declared.validate_python(item, from_attributes=True), **chosen)

    return encode_declared


def parts(event: bytes) -> tuple[str | None, str | None]:
    """Return the type and the data of an event of `text/event-stream`. Invalid UTF-8 is replaced."""
    kind, line_feed, data = event.partition(b"\n")
    return kind.decode(errors="replace") or None, data.decode(errors="replace") if line_feed else None


def decode(data: str | None, *, typed: bool = False) -> Any:
    """Return the item of a JSON line. `typed`: for an endpoint that is annotated with `logged`."""
    document = json.loads(data or "null")
    return LoggedItem(document) if typed else document


def frame(media_type: str, event: bytes, id: str, retry_ms: int | None = None) -> bytes:
    """Return an event as a client receives it."""
    if media_type == SSE:
        kind, data = parts(event)
        return format_sse_event(data_str=data, event=kind, id=id, retry=retry_ms)
    return event.partition(b"\n")[2] + b"\n" if media_type in LINES else event


def error_frame(media_type: str, error: Mapping[str, Any]) -> bytes:
    """Return the last event of a stream that has not ended by itself; nothing if the media type has none."""
    document = json.dumps(error)
    if media_type == SSE:
        return format_sse_event(data_str=document, event="error")
    return f"{document}\n".encode() if media_type in LINES else b""


def chunk_encoder(response: object) -> Callable[[Any], bytes]:
    """Return the function that encodes the chunks of a response.

    A string is a part of the body, but the `EventSourceResponse` of sse-starlette makes an event of it.
    """
    is_sse_starlette = any(cls.__module__.startswith("sse_starlette.") for cls in type(response).__mro__)
    return _sse_starlette_bytes if is_sse_starlette else _bytes


async def split(
    media_type: str, chunks: AsyncIterable[Any], encoder: Callable[[Any], bytes] | None = None
) -> AsyncIterator[bytes]:
    """Yield the events of the body of a response, whose chunks may end anywhere.

    An event of `text/event-stream` that no empty line ends is dropped, as the standard requires. A JSON line needs no
    end. Chunks of any other media type are events; empty ones are dropped.

    Parameters:
        media_type: The media type of the response, without parameters.
        chunks: The chunks of its body.
        encoder: Encodes a chunk, as `chunk_encoder` returns it. Default: chunks are bytes, strings, or what
            sse-starlette sends.
    """
    encode_chunk = encoder or _bytes
    if media_type == SSE:
        lines, block = SSELines(), list[bytes]()
        async for chunk in chunks:
            for line in lines.feed(encode_chunk(chunk)):
                if line:
                    block.append(line)
                    continue
                if (event := _unframe(block)) is not None:
                    yield event
                block = []
    elif media_type in LINES:
        pieces: list[bytes] = []
        async for chunk in chunks:
            *ends, rest = encode_chunk(chunk).split(b"\n")
            for end in ends:
                yield b"\n" + b"".join([*pieces, end])
                pieces = []
            if rest:
                pieces.append(rest)
        if pieces:
            yield b"\n" + b"".join(pieces)
    else:
        async for chunk in chunks:
            if encoded := encode_chunk(chunk):
                yield encoded


class SSELines:
    """The lines of a stream of `text/event-stream`, which LF, CRLF or CR ends. WHATWG HTML, 9.2.5."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """What follows the end of the last line."""
        self._is_first = True
        self._after_cr = False
        """Whether a CR has ended the last line. An LF that follows belongs to it."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that end in this chunk."""
        rest = chunk[1:] if self._after_cr and chunk.startswith(b"\n") else chunk
        if chunk:
            self._after_cr = rest.endswith(b"\r")
        *ends, rest = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for end in ends:
            line = b"".join([*self._pieces, end])
            yield line.removeprefix(BYTE_ORDER_MARK) if self._is_first else line
            self._pieces, self._is_first = [], False
        if rest:
            self._pieces.append(rest)


def _unframe(lines: Iterable[bytes]) -> bytes | None:
    """Return the event of a block, or None if the block has no type and no data. WHATWG HTML, 9.2.6."""
    kind, data = b"", []
    for line in lines:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value
        elif name == b"data":
            data.append(value)
    return kind + b"\n" + b"\n".join(data) if data else kind or None


def _bytes(chunk: Any) -> bytes:
    if isinstance(chunk, bytes | bytearray | memoryview):
        return bytes(chunk)
    return chunk.encode() if isinstance(chunk, str) else _sse_starlette_bytes(chunk)


def _sse_starlette_bytes(chunk: Any) -> bytes:
    # Imported here, because the import changes the signal handlers of uvicorn.
    from sse_starlette.event import ensure_bytes

    return bytes(ensure_bytes(chunk, "\n"))


def _json(value: Any, *, by_alias: bool | None) -> bytes:
    """Return the JSON of a value, without infinities and NaN, which JSON does not have."""
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json(by_alias=by_alias)).encode()
    document = jsonable_encoder(value)
    try:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), separators=(",", ":"), ensure_ascii=False)
    # Only a lone surrogate is no valid UTF-8, and only in a string, where JSON has this escape.
    return text.encode(errors="backslashreplace")


def _finite(document: Any) -> Any:
    """Return a JSON document with null instead of infinities and NaN."""
    if isinstance(document, dict):
        return {key: _finite(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document
