"""The format of the values in the state store: a header with a checksum, then the content.

The header is one line with the schema version, the epoch of the controller that wrote the value, and a SHA-256 of both,
of the key and of the content. A value that is truncated, changed, or stored under another key is therefore detected.
No value is ever unpickled.
"""

import re
from dataclasses import dataclass
from hashlib import sha256

from app_toolkit.errors import CorruptValue

SCHEMA_VERSION = 1
"""Increases when earlier controllers cannot read the values of later ones."""

HEAD = re.compile(rb"app_toolkit (\d{1,9}) (\d{1,18}) ([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    content: bytes
    epoch: int
    """The epoch of the controller that wrote the value."""


def encode_checkpoint(key: str, checkpoint: Checkpoint) -> bytes:
    """Return the value to store under this key."""
    version, epoch = b"%d" % SCHEMA_VERSION, b"%d" % checkpoint.epoch
    checksum = _checksum(key, version, epoch, checkpoint.content)
    return b"app_toolkit %b %b %b\n%b" % (version, epoch, checksum, checkpoint.content)


def decode_checkpoint(key: str, value: bytes) -> Checkpoint:
    """Return the checkpoint in a value that is stored under this key.

    Raises `CorruptValue` if no controller wrote the value under this key, or if it has a later schema version.
    """
    line, end, content = value.partition(b"\n")
    head = HEAD.fullmatch(line)
    if head is None or not end:
        raise CorruptValue("it does not begin with the header of a checkpoint")
    version, epoch, checksum = head.groups()
    if int(version) > SCHEMA_VERSION:
        raise CorruptValue(f"its schema version is {int(version)}, and this controller reads {SCHEMA_VERSION} at most")
    if checksum != _checksum(key, version, epoch, content):
        raise CorruptValue("its checksum is not that of its content")
    return Checkpoint(content, int(epoch))


def _checksum(key: str, version: bytes, epoch: bytes, content: bytes) -> bytes:
    return sha256(b"\n".join((key.encode(), version, epoch, content))).hexdigest().encode()
