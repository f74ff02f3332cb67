"""The formats of streams: what a log keeps of a body, and what a client gets of it, as a browser decodes it."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from fastapi.sse import ServerSentEvent, format_sse_event
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse as SSEStarletteResponse
from sse_starlette import ServerSentEvent as SSEStarletteEvent
from starlette.responses import StreamingResponse

from app_toolkit.streaming import formats
from app_toolkit.streaming.formats import JSON_LINES, LINES, SSE

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)
DATA = st.lists(LINE, max_size=4).map("\n".join)
END = st.sampled_from(("\n", "\r", "\r\n"))
FIELD = st.one_of(
    st.builds("{}{}".format, st.sampled_from(("data:", "data: ", "event:", "event: ", "id:", "retry: ", ":")), LINE),
    st.sampled_from(("data", "event", "id", "", "", "Data: x", " data: x", "data : x")),
    LINE,
)
BODY = st.lists(st.tuples(FIELD, END)).map(lambda lines: "".join(line + end for line, end in lines))


@dataclass(frozen=True)
class Dispatched:
    """An event as a browser dispatches it."""

    type: str
    data: str
    id: str


def browser(body: bytes) -> tuple[list[Dispatched], int | None]:
    """The events of a body, and the reconnection time. WHATWG HTML, 9.2.6, "Interpreting an event stream"."""
    text = body.decode("utf-8", errors="replace").removeprefix("\ufeff")
    *lines, _ = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found: list[Dispatched] = []
    data, kind, last_id, retry = "", "", "", None
    for line in lines:
        if not line:
            if data:
                found.append(Dispatched(kind or "message", data.removesuffix("\n"), last_id))
            data = kind = ""
            continue
        if line.startswith(":"):
            continue
        name, colon, value = line.partition(":")
        if colon and value.startswith(" "):
            value = value[1:]
        if name == "event":
            kind = value
        elif name == "data":
            data += value + "\n"
        elif name == "id" and "\0" not in value:
            last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            retry = int(value)
    return found, retry


def split(media_type: str, chunks: list[Any], response: object = None) -> list[bytes]:
    async def body() -> AsyncIterator[Any]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[bytes]:
        return [event async for event in formats.split(media_type, body(), formats.chunk_encoder(response))]

    return asyncio.run(collect())


def cut(data: st.DataObject, body: bytes) -> list[bytes]:
    """The body in chunks that end anywhere."""
    ends = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]


def framed(media_type: str, events: list[bytes]) -> bytes:
    return b"".join(formats.frame(media_type, event, f"s:{number}") for number, event in enumerate(events, 1))


# Server-sent events


@given(body=BODY, tail=FIELD, data=st.data())
@example(body="data: a\r\n\r\ndata: b\r\r", tail="data: c", data=None)
def test_a_browser_gets_the_same_events_as_without_the_log(body: str, tail: str, data: st.DataObject | None) -> None:
    """Wherever the chunks end, whichever lines end with LF, CR or CRLF, and without an event that has no end."""
    encoded = (body + tail).encode()
    chunks = [encoded[at : at + 1] for at in range(len(encoded))] if data is None else cut(data, encoded)
    before, _ = browser(encoded)
    after, _ = browser(framed(SSE, split(SSE, chunks)))
    assert [(event.type, event.data) for event in after] == [(event.type, event.data) for event in before]


@given(body=BODY, data=st.data())
def test_the_events_do_not_depend_on_the_chunks(body: str, data: st.DataObject) -> None:
    encoded = body.encode()
    expected = split(SSE, [encoded])
    assert split(SSE, cut(data, encoded)) == expected
    assert split(SSE, [encoded[at : at + 1] for at in range(len(encoded))]) == expected


@given(kind=LINE, data=st.none() | DATA, number=st.integers(1, 10**9), retry=st.none() | st.integers(0, 10**6))
def test_an_event_that_is_framed_and_split_is_the_same(
    kind: str, data: str | None, number: int, retry: int | None
) -> None:
    event = formats.encode(ServerSentEvent(event=kind or None, raw_data=data, comment="kept alive"))
    if event is None:
        assert not kind
        assert data is None
        return
    assert formats.parts(event) == (kind or None, data)
    sent = formats.frame(SSE, event, f"s:{number}", retry)
    assert split(SSE, [sent]) == [event]
    dispatched, found_retry = browser(sent)
    assert found_retry == retry
    assert dispatched == ([] if data is None else [Dispatched(kind or "message", data, f"s:{number}")])


@given(events=st.lists(st.tuples(LINE, DATA)))
def test_another_decoder_finds_the_same_events(events: list[tuple[str, str]]) -> None:
    kept = [f"{kind}\n{data}".encode() for kind, data in events]
    decoder = httpx2._sse._SSEParser()
    found = [(event.event, event.data, event.id) for event in decoder.decode(framed(SSE, kept).decode())]
    assert found == [(kind or "message", data, f"s:{number}") for number, (kind, data) in enumerate(events, 1)]


@pytest.mark.parametrize(
    ("chunks", "events"),
    [
        ([], []),
        ([b"data: a\n\n"], [b"\na"]),
        ([b"data: a\n", b"\n"], [b"\na"]),
        ([b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"], [b"\na", b"\nb"]),
        ([b"data: a\r", b"", b"\ndata: b\r\n\r\n"], [b"\na\nb"]),
        ([b"data: a\r", b"\n", b"\ndata: b\n\n"], [b"\na", b"\nb"]),
        ([b"data: a\r\r"], [b"\na"]),
        ([b"\n\n\ndata: a\n\n\n\ndata: b\n\n"], [b"\na", b"\nb"]),
        ([b": ping\n\n", b":\n\n"], []),
        ([b": before\ndata: a\n: after\n\n"], [b"\na"]),
        ([b"data: a\ndata:b\ndata:  c\n\n"], [b"\na\nb\n c"]),
        ([b"data\ndata:\ndata: \n\n"], [b"\n\n\n"]),
        ([b"event: x\ndata: a\nevent: y\n\n"], [b"y\na"]),
        ([b"event: done\n\ndata: a\n\n"], [b"done", b"\na"]),
        ([b"id: 7\n\nretry: 5\n\nother: x\n\n"], []),
        ([b"data: a: b\n\n"], [b"\na: b"]),
        ([b"data: a\n\ndata: b\n"], [b"\na"]),
        ([b"data: a\n\ndata: b"], [b"\na"]),
        ([b"\xef\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"], [b"\na"]),
        (["data: \u00e9\n\n".encode()[:7], "data: \u00e9\n\n".encode()[7:]], ["\n\u00e9".encode()]),
        (["data: a", "\n\n", bytearray(b"data: b\n\n"), memoryview(b"data: c\n\n")], [b"\na", b"\nb", b"\nc"]),
    ],
)
def test_the_events_of_a_body(chunks: list[Any], events: list[bytes]) -> None:
    assert split(SSE, chunks) == events


def test_a_line_that_ends_with_cr_is_not_delayed() -> None:
    lines = formats.SSELines()
    assert list(lines.feed(b"data: a\r\r")) == [b"data: a", b""]
    assert list(lines.feed(b"\ndata: b\r")) == [b"data: b"]


def test_an_event_without_data_stays_without_data() -> None:
    event = formats.encode(ServerSentEvent(event="done"))
    assert event is not None
    assert formats.parts(event) == ("done", None)
    assert formats.frame(SSE, event, "s:1") == b"event: done\nid: s:1\n\n"


def test_invalid_utf_8_is_replaced_as_in_a_browser() -> None:
    (event,) = split(SSE, [b"data: a\xffb\n\n"])
    assert formats.parts(event) == (None, "a\ufffdb")


def test_a_long_event_in_many_chunks_takes_linear_time() -> None:
    piece = b"x" * 1_000
    (event,) = split(SSE, [b"data: ", *[piece] * 20_000, b"\n\n"])
    assert len(event) == 20_000_001


@pytest.mark.parametrize(
    ("item", "event"),
    [
        ("text", b'\n"text"'),
        (["a", "b"], b'\n["a","b"]'),
        (ServerSentEvent(data={"a": "\u00e9"}), '\n{"a":"\u00e9"}'.encode()),
        (ServerSentEvent(data="a", event="x"), b'x\n"a"'),
        (ServerSentEvent(raw_data="a\nb", event="x"), b"x\na\nb"),
        (ServerSentEvent(raw_data=""), b"\n"),
        (ServerSentEvent(event="x"), b"x"),
        (ServerSentEvent(comment="ping"), None),
        (ServerSentEvent(id="1", retry=5), None),
        ([math.nan, {"a": -math.inf}, 1.5], b'\n[null,{"a":null},1.5]'),
        ("\ud800", b'\n"\\ud800"'),
    ],
)
def test_an_item_is_encoded_as_an_event(item: Any, event: bytes | None) -> None:
    assert formats.encode(item) == event


class Aliased(BaseModel):
    long_name: str = Field(alias="n")


def test_an_item_has_the_aliases_that_it_has_in_fastapi() -> None:
    item = Aliased(n="x")
    assert formats.encode(item) == b'\n{"n":"x"}'
    assert formats.encode(ServerSentEvent(data=item)) == b'\n{"long_name":"x"}'


# sse-starlette


def test_the_items_of_sse_starlette_are_events() -> None:
    response = SSEStarletteResponse(iter(()))
    items = [
        "a",
        7,
        {"data": "b", "event": "x"},
        SSEStarletteEvent("c\nd", id="9"),
        b"data: e\r\n\r\n",
        {"comment": "ping"},
    ]
    assert split(SSE, items, response) == [b"\na", b"\n7", b"x\nb", b"\nc\nd", b"\ne"]


def test_a_string_of_another_response_is_a_part_of_the_body() -> None:
    assert split(SSE, ["data: a\n", "\n"], StreamingResponse(iter(()))) == [b"\na"]


# JSON lines and other media types


@given(items=st.lists(st.recursive(st.none() | st.integers() | LINE, st.lists, max_leaves=5)), data=st.data())
def test_json_lines_come_back_as_they_were(items: list[Any], data: st.DataObject) -> None:
    events = [event for item in items if (event := formats.encode(item)) is not None]
    body = framed(JSON_LINES, events)
    assert [json.loads(line) for line in body.splitlines()] == items
    assert split(JSON_LINES, cut(data, body)) == events
    assert [formats.decode(formats.parts(event)[1]) for event in events] == items


@pytest.mark.parametrize("media_type", sorted(LINES))
def test_a_json_line_needs_no_end_and_keeps_its_cr(media_type: str) -> None:
    events = split(media_type, [b'{"a"', b':1}\r\n\n{"b":', b"2}"])
    assert events == [b'\n{"a":1}\r', b"\n", b'\n{"b":2}']
    assert framed(media_type, events) == b'{"a":1}\r\n\n{"b":2}\n'


@given(chunks=st.lists(st.binary()))
def test_any_other_body_comes_back_byte_for_byte(chunks: list[bytes]) -> None:
    events = split("application/octet-stream", chunks)
    assert events == [chunk for chunk in chunks if chunk]
    assert framed("application/octet-stream", events) == b"".join(chunks)


@pytest.mark.parametrize(
    ("media_type", "found"),
    [("Text/Event-Stream; charset=utf-8", SSE), (" application/jsonl ", JSON_LINES), (None, ""), ("", "")],
)
def test_the_essence_of_a_media_type(media_type: str | None, found: str) -> None:
    assert formats.essence(media_type) == found


def test_the_last_event_of_a_failed_stream_names_the_error() -> None:
    error = {"error": "stream_lost"}
    assert browser(formats.error_frame(SSE, error))[0] == [Dispatched("error", json.dumps(error), "")]
    assert json.loads(formats.error_frame(JSON_LINES, error)) == error
    assert formats.error_frame("text/plain", error) == b""


def test_a_frame_is_the_one_that_fastapi_sends() -> None:
    assert formats.frame(SSE, b"x\na\nb", "s:1", 500) == format_sse_event(
        data_str="a\nb", event="x", id="s:1", retry=500
    )
