"""The head of a response. An app gets an error for an invalid one before anything was sent."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from app_toolkit.types import Header
from app_toolkit.wire import hop

NOT_IN_A_NAME = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
"""RFC 9110, 5.6.2."""

NOT_IN_A_VALUE = bytes(byte for byte in range(32) if byte != ord("\t")) + b"\x7f"
"""RFC 9110, 5.5."""

LONGEST_LENGTH = 18
"""Maximum number of digits of a content length."""

STATUSES = range(200, 600)
"""After a lower status, another response has to follow."""

BODYLESS = (204, 304)
"""Statuses whose response has no body, whatever the app sends."""

REASONS = {int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus}
"""The status line of each status that has a phrase."""

CHUNKED = (b"transfer-encoding", b"chunked")
FRAMING = (b"content-length", b"transfer-encoding")

MEMOIZED = 512
"""Maximum number of checked heads that are kept."""

LONGEST_MEMOIZED = 1_024
"""Maximum number of bytes of such a head."""


class CheckedHead:
    """The head of a response that can be sent: its fields are valid, and their names are in lower case.

    It may belong to several responses, so nothing changes it.
    """

    __slots__ = ("bodyless", "closes", "fields", "length", "lines", "status", "unframed")

    def __init__(self, status: int, fields: Sequence[Header], length: int | None = None) -> None:
        """`length`: the bytes of the body, as the fields announce them. None: they do not."""
        self.status = status
        self.fields = tuple(fields)
        self.length = length
        self.bodyless = status in BODYLESS
        #: Whether the connection is closed after the response.
        self.closes = any(
            name == b"connection" and b"close" in [token.strip().lower() for token in value.split(b",")]
            for name, value in fields
        )
        #: Whether a body needs a field that says that it is sent in chunks.
        self.unframed = length is None and not self.bodyless and CHUNKED not in fields
        #: The status line and the fields, as sent before a body, without the empty line at the end.
        self.lines = encode(status, [*fields, CHUNKED] if self.unframed else fields)


def for_caller(fields: Iterable[Header]) -> list[Header]:
    """Return the fields with an internal field instead of `Connection: close`.

    The app means the connection of the client, which the caller closes.
    """
    return [
        (hop.CLOSES, b"1") if name == b"connection" and value.lower() == b"close" else (name, value)
        for name, value in fields
    ]


_memoized: dict[Any, CheckedHead] = {}


def checked_head(status: int, headers: Iterable[Header]) -> CheckedHead:
    """Return the checked head of an app's response.

    It has no internal fields that only a replica may send. A response that cannot have a body has no fields that
    announce one. Raises `RuntimeError` for an invalid head, and `TypeError` for fields that are not bytes.
    """
    key = status, tuple(headers)
    try:
        head = _memoized.get(key)
    except TypeError:  # a field that can change
        return _checked_head(*key)
    if head is None:
        head = _checked_head(*key)
        if len(head.lines) <= LONGEST_MEMOIZED:
            if len(_memoized) >= MEMOIZED:
                _memoized.clear()
            _memoized[key] = head
    return head


def _checked_head(status: int, headers: Iterable[Header]) -> CheckedHead:
    fields, length = checked(status, headers)
    if status == 503:  # only `Replica` refuses requests: a 503 of user code is a response, and must not be retried
        fields = [field for field in fields if not hop.is_internal(field[0])]
    if status in BODYLESS:
        # The next response on the connection begins directly after the head. uvicorn would expect the bytes of the
        # length that a 304 may have.
        fields, length = [field for field in fields if field[0] not in FRAMING], None
    return CheckedHead(status, fields, length)


def encode(status: int, fields: Iterable[Header]) -> bytes:
    """Encode a head without the empty line at its end."""
    pieces = [REASONS.get(status) or b"HTTP/1.1 %d " % status, b"\r\n"]
    for name, value in fields:
        pieces += (name, b": ", value, b"\r\n")
    return b"".join(pieces)


def checked(status: int | None, headers: Iterable[Header]) -> tuple[list[Header], int | None]:
    """Return the checked fields as a new list, and the length of the body in bytes; None: the fields do not give it.

    A chunked response has one `transfer-encoding`, and no `content-length`, whatever the app has sent.

    `status`: None for a WebSocket that is accepted. Raises `RuntimeError` for an invalid head, and `TypeError` for
    fields that are not bytes.
    """
    if status is not None and status not in STATUSES:
        raise RuntimeError(
            f"the app responded with status {status}: a final response must have a status from 200 to 599"
        )
    length: int | None = None
    chunked = False
    fields: list[Header] = []
    for name, value in headers:
        if not (type(name) is bytes and type(value) is bytes):
            name, value = b"".join((name,)), b"".join((value,))
        name = field_name(name)
        if name == b"content-length":
            digits = value.strip(b" \t")
            if not (digits.isdigit() and len(digits) <= LONGEST_LENGTH):
                raise RuntimeError(f"the app sent an invalid content-length: {value[:50]!r}")
            length = int(digits) if length is None else length
        elif name == b"transfer-encoding":
            if any(coding.strip(b" \t").lower() != b"chunked" for coding in value.split(b",")):
                raise RuntimeError(f"the app sent the transfer coding {value[:50]!r}: only 'chunked' is supported")
            chunked = True
            continue
        fields.append((name, value))
    if chunked:  # RFC 9112, 6.1 and 6.2: once, and without a length
        fields = [field for field in fields if field[0] != b"content-length"]
        fields.append((b"transfer-encoding", b"chunked"))
    values = b"".join([value for _, value in fields])
    if len(values.translate(None, NOT_IN_A_VALUE)) != len(values):
        name, value = next(field for field in fields if field[1].translate(None, NOT_IN_A_VALUE) != field[1])
        raise RuntimeError(f"the app's field {name!r} has a control character in its value {value[:50]!r}")
    return fields, None if chunked else length


@lru_cache(1_024)
def field_name(name: bytes) -> bytes:
    """Return the name in lower case. Raises `RuntimeError` if it is not a valid field name."""
    if not name or NOT_IN_A_NAME.search(name):
        raise RuntimeError(f"the app sent an invalid field name: {name[:50]!r}")
    return name.lower()
