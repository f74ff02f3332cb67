"""A record is shown as one line of text or JSON, whatever it contains, and within the bound."""

import json
import logging
import re
import sys
import unicodedata
from types import TracebackType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app_toolkit.observability.log_formats import (
    MOST_BYTES,
    JsonFormatter,
    TextFormatter,
    bounded,
    escaped,
    indented,
    shown,
)
from app_toolkit.observability.log_query import LoggedRecord
from tests.docs.pages import page

FORGED = "tea\r\n2026-05-04 09:30:00.123 INFO shop [1]: paid\x1b[2K\x00\x9b\u2028\u202e"
texts = st.text(st.characters(codec=None) | st.sampled_from("\n\r\x1b\x00\x85\u2028\U0001f375\ud800\\"))


def record_of(message: str, *args: object, name: str = "shop", error: BaseException | None = None) -> logging.LogRecord:
    exc_info: tuple[type[BaseException], BaseException, TracebackType | None] | None = None
    if error is not None:
        exc_info = (type(error), error, error.__traceback__)
    record = logging.LogRecord(name, logging.INFO, __file__, 1, message, args, exc_info)
    record.created, record.msecs = 1_777_887_000.123, 123.0
    return record


def is_printable(text: str) -> bool:
    return not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in text)


@given(texts)
@example(FORGED)
def test_escaped_text_is_one_printable_line(text: str) -> None:
    result = escaped(text)
    assert is_printable(result)
    assert len(result.splitlines()) <= 1
    if is_printable(text) and not any("\u202a" <= each <= "\u2069" for each in text):
        assert result == text


@given(texts)
@example(FORGED)
def test_each_line_of_an_indented_text_begins_as_no_record_does(text: str) -> None:
    first, *lines = indented(text).split("\n")
    assert first == ""
    assert len(lines) == text.count("\n") + 1
    assert all(line.startswith("  ") and is_printable(line) for line in lines)


@given(texts, st.integers(1, 100), st.integers(100, 200))
def test_bounded_text_has_its_beginning_its_end_and_the_number_of_bytes_that_are_cut(
    text: str, times: int, most: int
) -> None:
    text *= times
    for escape in (escaped, indented, lambda part: json.dumps(part)[1:-1]):
        result = bounded(text, most, escape)
        assert len(result.encode()) <= most
        if result == escape(text):
            continue
        assert len(escape(text).encode()) > most
        head, _, rest = result.partition(" ... [")
        number, _, tail = rest.partition(" bytes cut] ... ")
        lengths = range(min(len(text), most) + 1)  # no character is shorter when it is escaped
        kept = [count for count in lengths if escape(text[:count]) == head]
        assert any(
            escape(text[len(text) - count :]) == tail
            and len(text[each : len(text) - count].encode("utf-8", "surrogatepass")) == int(number)
            for each in kept
            for count in lengths
            if count <= len(text) - each
        )
        if escape is escaped:
            assert len(result.encode()) >= most - 60, "no more is cut than must be"


@given(texts, texts, texts)
@example(FORGED, FORGED, FORGED)
@example("tea" * MOST_BYTES, "shop" * MOST_BYTES, "sold out" * MOST_BYTES)
def test_a_formatted_record_is_within_the_bound_and_begins_once(message: str, name: str, error: str) -> None:
    record = record_of("%s", message, name=name, error=ValueError(error))
    first, *rest = TextFormatter().format(record).split("\n")
    assert len("\n".join([first, *rest]).encode()) < MOST_BYTES
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:", first)
    assert all(line.startswith("  ") for line in rest)
    assert is_printable("".join([first, *rest]))

    line = JsonFormatter().format(record)
    assert len(line.encode()) < MOST_BYTES
    assert is_printable(line)
    found = json.loads(line)
    assert list(found) == ["time", "level", "logger", "message", "exception"]
    if len(json.dumps(message)) < MOST_BYTES // 4:
        assert found["message"] == message.rstrip("\n")


def test_a_record_in_json_has_the_fields_that_it_has_not_empty() -> None:
    record = record_of("sold %s", "tea")
    own = {"application": "shop", "revision": 13, "deployment": "chat", "replica": None}
    vars(record).update(request_id="5f1c", trace_id="", **own)
    assert JsonFormatter().format(record) == (
        '{"time":"2026-05-04T09:30:00.123Z","level":"INFO","logger":"shop","message":"sold tea",'
        '"request_id":"5f1c","application":"shop","revision":13,"deployment":"chat"}'
    )


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_the_stack_of_a_record_follows_its_traceback(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("sold out")
    except ValueError:
        record = record_of("failed")
        record.exc_info, record.stack_info = sys.exc_info(), "Stack (most recent call last):\n  here"
    shown: Any = formatter.format(record)
    assert shown.index("ValueError: sold out") < shown.index("Stack (most recent call last):") < shown.index("here")


def test_a_record_of_a_file_is_shown_with_its_replica() -> None:
    lines = [
        shown(LoggedRecord(f"2026-05-04T09:30:00.{each}Z", "INFO", logger, message, "5f1c-2a", replica="shop.chat-1-1"))
        for each, logger, message in (("123", "shop.chat", "12 tokens"), ("124", "stdout", "what it prints"))
    ]
    time = r"2026-05-0\d \d\d:\d\d"  # of this machine
    example = page("docs/observability.md").part("Logs").shown("text")[0].rstrip()
    assert re.sub(time, "", "\n".join(lines)) == re.sub(time, "", example)


@given(texts, texts, texts)
@example(FORGED, FORGED, FORGED)
def test_a_record_of_a_file_is_shown_in_printable_lines(message: str, name: str, error: str) -> None:
    first, *rest = shown(LoggedRecord("now", "INFO", name, message, name, replica=name, exception=error)).split("\n")
    assert is_printable("".join([first, *rest]))
    assert all(line.startswith("  ") for line in rest)
