"""The formats of streamed responses: server-sent events, JSON lines, and plain bytes.

A stream log keeps the events without their framing. An event of `text/event-stream` is kept as its type, a line feed,
and its data; of any other media type as it is.
"""

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from fastapi.encoders import jsonable_encoder
from fastapi.sse import ServerSentEvent, format_sse_event

SSE = "text/event-stream"
JSON_LINES = "application/jsonl"
LINES = frozenset({JSON_LINES, "application/x-ndjson", "application/json-lines"})


def essence(media_type: str | None) -> str:
    """Return a media type without its parameters."""
    return (media_type or "").partition(";")[0].strip().lower()


def encode(item: Any) -> bytes | None:
    """Encode an item that a route yields. None: it is only a comment, which is not kept."""
    if not isinstance(item, ServerSentEvent):
        return b"\n" + _json(item)
    if item.raw_data is not None:
        data = item.raw_data.encode()
    elif item.data is not None:
        data = _json(item.data)
    elif item.event is None:
        return None
    else:
        data = b""
    return (item.event or "").encode() + b"\n" + data


def parts(event: bytes) -> tuple[str | None, str]:
    """Return the type and the data of an event of `text/event-stream`."""
    kind, _, data = event.partition(b"\n")
    return kind.decode() or None, data.decode()


def decode(data: str) -> Any:
    """Return the item of a JSON line."""
    return json.loads(data)


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


async def split(media_type: str, chunks: AsyncIterable[Any]) -> AsyncIterator[bytes]:
    """Yield the events of the body of a response, whose chunks may end anywhere."""
    if media_type == SSE:
        buffer = b""
        async for chunk in chunks:
            buffer += _bytes(chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *blocks, buffer = buffer.split(b"\n\n")
            for block in blocks:
                if (event := _unframe(block.split(b"\n"))) is not None:
                    yield event
    elif media_type in LINES:
        buffer = b""
        async for chunk in chunks:
            *lines, buffer = (buffer + _bytes(chunk)).split(b"\n")
            for line in lines:
                yield b"\n" + line
        if buffer:
            yield b"\n" + buffer
    else:
        async for chunk in chunks:
            yield _bytes(chunk)


def _unframe(lines: Iterable[bytes]) -> bytes | None:
    """Return the event of a block, or None if the block is only a comment. WHATWG HTML, 9.2.6."""
    kind, data = b"", []
    for line in lines:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value
        elif name == b"data":
            data.append(value)
    return kind + b"\n" + b"\n".join(data) if data or kind else None


def _bytes(chunk: Any) -> bytes:
    if isinstance(chunk, bytes | bytearray | memoryview):
        return bytes(chunk)
    if isinstance(chunk, str):
        return chunk.encode()
    # What the generators of sse-starlette yield. Its user has imported it, which changes uvicorn's signal handlers.
    from sse_starlette.event import ensure_bytes

    return bytes(ensure_bytes(chunk, "\n"))


def _json(value: Any) -> bytes:
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json()).encode()
    return json.dumps(jsonable_encoder(value), separators=(",", ":"), ensure_ascii=False).encode()
