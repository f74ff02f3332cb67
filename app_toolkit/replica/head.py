"""The head of an app's answer. One that is no HTTP is the app's mistake, which it is told before anything has left."""

import re
from collections.abc import Sequence
from functools import lru_cache

from app_toolkit.types import Header

NOT_IN_A_NAME = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
"""RFC 9110, 5.6.2."""

NOT_IN_A_VALUE = bytes(byte for byte in range(32) if byte != ord("\t")) + b"\x7f"
"""RFC 9110, 5.5."""

LONGEST_LENGTH = 18
"""Digits of the length of a body."""

STATUSES = range(200, 600)
"""Behind one below, another answer has to come."""


def checked(status: int | None, headers: Sequence[Header]) -> int | None:
    """Bytes of the body, where the head says how many; None: it does not.

    `status`: None for that of a WebSocket which is accepted. Raises `RuntimeError` for a head that is none, `TypeError`
    for fields that are not bytes.
    """
    if status is not None and status not in STATUSES:
        told = "behind which another answer has to come" if status < STATUSES.start else "and the highest is 599"
        raise RuntimeError(f"the app answers with status {status}, {told}")
    length: int | None = None
    chunked = False
    values = []
    for name, value in headers:
        values.append(value)
        name = field_name(name if type(name) is bytes else bytes(name))
        if name == b"content-length":
            if not (value.isdigit() and len(value) <= LONGEST_LENGTH):
                raise RuntimeError(f"the app announces a body of {bytes(value[:50])!r} bytes, which is no length")
            length = int(value) if length is None else length
        elif name == b"transfer-encoding":
            chunked = True
    joined = b"".join(values)
    if len(joined.translate(None, NOT_IN_A_VALUE)) != len(joined):
        name, value = next(each for each in headers if bytes(each[1]).translate(None, NOT_IN_A_VALUE) != each[1])
        said = bytes(value[:50])
        raise RuntimeError(f"the app's field {bytes(name)!r} has a control character in its value {said!r}")
    return None if chunked else length


@lru_cache(1_024)
def field_name(name: bytes) -> bytes:
    """In small letters. Raises `RuntimeError` for what is none."""
    if not name or NOT_IN_A_NAME.search(name):
        raise RuntimeError(f"the app answers with a field {name[:50]!r}, which is no name")
    return name.lower()
