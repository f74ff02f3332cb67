"""The format of the values in the state store: a header with a checksum, then the content.

The header is one line with the schema version, and a SHA-256 of it, of the key and of the content. A value that is
truncated, changed, or stored under another key is therefore detected. No value is ever unpickled.
"""

import re
from hashlib import sha256

from app_toolkit.errors import CorruptValue

SCHEMA_VERSION = 1
"""Increases when earlier controllers cannot read the values of later ones."""

HEAD = re.compile(rb"app_toolkit (\d{1,9}) ([0-9a-f]{64})", re.ASCII)


def encode_checkpoint(key: str, content: bytes) -> bytes:
    """Return the value to store under this key."""
    version = b"%d" % SCHEMA_VERSION
    return b"app_toolkit %b %b\n%b" % (version, _checksum(key, version, content), content)


def decode_checkpoint(key: str, value: bytes) -> bytes:
    """Return the content of a value that is stored under this key.

    Raises `CorruptValue` if no controller wrote the value under this key, or if it has a later schema version.
    """
    line, end, content = value.partition(b"\n")
    head = HEAD.fullmatch(line)
    if head is None or not end:
        raise corrupt(key, "it does not begin with the header of a checkpoint")
    version, checksum = head.groups()
    if int(version) > SCHEMA_VERSION:
        raise corrupt(key, f"its schema version is {int(version)}, and this version reads {SCHEMA_VERSION} at most")
    if checksum != _checksum(key, version, content):
        raise corrupt(key, "its checksum is not that of its content")
    return content


def corrupt(key: str, why: str, remedy: str = "use the version of app_toolkit that wrote the value") -> CorruptValue:
    """Return the error for a value that cannot be read. `why` must not quote the content, which may be secret."""
    return CorruptValue(
        f"the value of {key!r} in the state store cannot be read: {why}; what runs goes on without a controller: "
        f"{remedy}, or shut down the instance and deploy again"
    )


def _checksum(key: str, version: bytes, content: bytes) -> bytes:
    return sha256(b"\n".join((key.encode(), version, content))).hexdigest().encode()
