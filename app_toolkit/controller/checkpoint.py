"""The form of what a controller leaves for the next one: an envelope that says whether it is whole, and in its place.

An envelope is one line, and then the content as it was written. The line has the schema version, the epoch of who wrote
it, and a SHA-256 of these, of the key and of the content. So what was cut or changed, or belongs under another key, is
told from what a controller has written there. Nothing of it is ever unpickled.
"""

import re
from dataclasses import dataclass
from hashlib import sha256

from app_toolkit.errors import Unreadable

SCHEMA_VERSION = 1
"""Counts up when a controller of today could not read what the next one's writes."""

HEAD = re.compile(rb"app_toolkit (\d{1,9}) (\d{1,18}) ([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    content: bytes
    epoch: int
    """Of the controller that wrote it."""


def enveloped(key: str, checkpoint: Checkpoint) -> bytes:
    """What the store is to have under this key."""
    version, epoch = b"%d" % SCHEMA_VERSION, b"%d" % checkpoint.epoch
    checksum = _checksum(key, version, epoch, checkpoint.content)
    return b"app_toolkit %b %b %b\n%b" % (version, epoch, checksum, checkpoint.content)


def opened(key: str, value: bytes) -> Checkpoint:
    """What was written under this key. Raises `Unreadable` where that was no controller, or one of a later version."""
    line, end, content = value.partition(b"\n")
    head = HEAD.fullmatch(line)
    if head is None or not end:
        raise Unreadable("it does not begin as what a controller writes")
    version, epoch, checksum = head.groups()
    if int(version) > SCHEMA_VERSION:
        raise Unreadable(f"its schema version is {int(version)}, and this controller reads {SCHEMA_VERSION} at most")
    if checksum != _checksum(key, version, epoch, content):
        raise Unreadable("its checksum is not that of its content")
    return Checkpoint(content, int(epoch))


def _checksum(key: str, version: bytes, epoch: bytes, content: bytes) -> bytes:
    return sha256(b"\n".join((key.encode(), version, epoch, content))).hexdigest().encode()
