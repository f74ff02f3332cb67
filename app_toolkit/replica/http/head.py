"""Checks the head of an app's response. The app gets an error for an invalid one before anything was sent."""

import re
from collections.abc import Iterable
from functools import lru_cache

from app_toolkit.types import Header

NOT_IN_A_NAME = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
"""RFC 9110, 5.6.2."""

NOT_IN_A_VALUE = bytes(byte for byte in range(32) if byte != ord("\t")) + b"\x7f"
"""RFC 9110, 5.5."""

LONGEST_LENGTH = 18
"""Maximum number of digits of a content length."""

STATUSES = range(200, 600)
"""After a lower status, another response has to follow."""


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
