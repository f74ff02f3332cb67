"""What may be the head of an app's answer: what passes, a parser reads as it was meant."""

from typing import Any

import pytest
from httptools import HttpResponseParser
from hypothesis import example, given
from hypothesis import strategies as st

from app_toolkit.replica.http.head import MEMOIZED, checked, checked_head


class Reader:
    def __init__(self, said: bytes) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.ended = False
        self.parser = HttpResponseParser(self)
        self.parser.feed_data(said)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.ended = True


fields = st.tuples(
    st.binary(max_size=6) | st.sampled_from([b"x", b"X-Y", b"content-type", b"Content-Length"]),
    st.binary(max_size=8) | st.sampled_from([b"1", b"018", b"a b", b"\xff", b"a\r\nb: c", b"+1", b"1_0"]),
)


@given(status=st.integers(-1, 700), headers=st.lists(fields, max_size=4))
@example(status=200, headers=[(b"", b"")])
@example(status=200, headers=[(b"content-length", b"9" * 19)])
def test_a_head_that_is_accepted_has_one_meaning(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    try:
        fields, length = checked(status, headers)
    except RuntimeError:
        return
    assert 200 <= status < 600
    assert fields == [(name.lower(), value) for name, value in headers]
    lengths = [int(value) for name, value in headers if name.lower() == b"content-length"]
    assert length == (lengths[0] if lengths else None)
    if len(lengths) < 2:  # no parser takes more
        read = Reader(b"HTTP/1.1 %d \r\n%b\r\n" % (status, b"".join(b"%b: %b\r\n" % field for field in headers)))
        assert read.ended
        assert [(name, value.strip(b" \t")) for name, value in headers] == read.fields


TEXT = (b"content-type", b"text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("status", "headers", "length"),
    [
        (200, [], None),
        (200, [TEXT, (b"Content-Length", b"5")], 5),
        (200, [(b"content-length", b" 5")], 5),
        (200, [(b"content-length", b"5"), (b"content-length", b"6")], 5),
        (200, [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")], None),
        (299, [(bytearray(b"X-Y"), memoryview(b"z"))], None),
        (599, [(b"x", b"\t\xff")], None),
        (None, [TEXT], None),
    ],
)
def test_the_length_of_a_body_is_read_from_its_head(status: int | None, headers: Any, length: int | None) -> None:
    fields, found = checked(status, headers)
    assert found == length
    assert all(type(each) is bytes for field in fields for each in field)


CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    "headers",
    [
        [CHUNKED],
        [CHUNKED, CHUNKED],
        [(b"Transfer-Encoding", b"Chunked"), CHUNKED],
        [(b"transfer-encoding", b"chunked, chunked")],
        [(b"content-length", b"5"), CHUNKED],
        [CHUNKED, (b"content-length", b"5"), CHUNKED],
    ],
)
def test_chunked_response_has_one_transfer_encoding_and_no_length(headers: Any) -> None:
    assert checked(200, [TEXT, *headers]) == ([TEXT, CHUNKED], None)


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"identity", b"", b"chunked, gzip"])
def test_response_with_another_transfer_coding_is_refused(coding: bytes) -> None:
    with pytest.raises(RuntimeError, match="only 'chunked' is supported"):
        checked(200, [TEXT, (b"transfer-encoding", coding)])


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (103, [], "the app responded with status 103: a final response must have a status from 200 to 599"),
        (600, [], "the app responded with status 600: a final response must have a status from 200 to 599"),
        (200, [(b"x:", b"")], "the app sent an invalid field name: b'x:'"),
        (200, [(b"", b"")], "the app sent an invalid field name: b''"),
        (200, [TEXT, (b"x", b"a\nb")], "the app's field b'x' has a control character in its value b'a\\nb'"),
        (200, [(b"content-length", b"-1")], "the app sent an invalid content-length: b'-1'"),
    ],
)
def test_an_invalid_head_has_an_error_of_one_sentence(status: int, headers: Any, message: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        checked(status, headers)
    assert str(raised.value) == message


@pytest.mark.parametrize("field", [("x", b"1"), (b"x", "1"), (b"x", None)])
def test_fields_are_bytes(field: Any) -> None:
    with pytest.raises(TypeError):
        checked(200, [field])


def test_a_memoized_head_is_that_of_its_fields() -> None:
    for number in [*range(MEMOIZED + 1), *range(MEMOIZED + 1)]:
        head = checked_head(200, [(b"X-Number", b"%d" % number)])
        assert head.fields == ((b"x-number", b"%d" % number),)
        assert head.lines == b"HTTP/1.1 200 OK\r\nx-number: %d\r\ntransfer-encoding: chunked\r\n" % number


def test_a_field_that_changes_is_checked_again() -> None:
    value = bytearray(b"1")
    headers: Any = [(b"x", value)]
    assert checked_head(200, headers).fields == ((b"x", b"1"),)
    value[:] = b"\n"
    with pytest.raises(RuntimeError, match="control character"):
        checked_head(200, headers)
