"""The media type and the name of a file that a client sends, both of which may be wrong."""

import mimetypes
import re
import unicodedata
from collections.abc import Iterable

HEAD_BYTES = 512
"""The bytes at the beginning of a file that tell its media type."""

MAX_NAME = 200
"""Characters of the name of a file."""

MAX_SENT = 8 * MAX_NAME
"""Characters of a name that are looked at: its beginning and its end. A request may have a name of many megabytes."""

UNKNOWN = "application/octet-stream"

IMAGES = frozenset({"image/avif", "image/gif", "image/jpeg", "image/png", "image/webp"})
"""Images that browsers show and that cannot have scripts."""

SIGNED = IMAGES | {"application/pdf"}
"""The media types that `detected_type` finds. No other content may claim to be one of them."""

ALIASES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "application/x-pdf": "application/pdf"}

MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,63}/[a-z0-9!#$&^_.+-]{1,63}")

MEDIA_TYPES = re.compile(rf"\*/\*|[a-z0-9-]+/\*|{MEDIA_TYPE.pattern}")
"""A media type, all of one kind such as `image/*`, or `*/*`."""


def detected_type(head: bytes) -> str | None:
    """Return the media type that the first bytes of a file show; None: they show none of `SIGNED`."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return "application/pdf" if head.startswith(b"%PDF-") else None


def type_of_file(head: bytes, name: str, declared: str) -> tuple[str, bool]:
    """Return the media type of a file, and whether its content may have it.

    The content decides if it shows its type. Otherwise the client does, or else the name of the file.

    Parameters:
        head: The first bytes of the file, at most `HEAD_BYTES`.
        name: The name of the file.
        declared: The media type that the client has sent. Empty: none.
    """
    detected = detected_type(head)
    if detected is not None:
        return detected, True
    media_type = declared.partition(";")[0].strip().lower()
    media_type = ALIASES.get(media_type, media_type)
    if media_type == UNKNOWN or not MEDIA_TYPE.fullmatch(media_type):
        media_type = mimetypes.guess_type(name)[0] or ("text/plain" if _is_text(head) else UNKNOWN)
    return media_type, media_type not in SIGNED


def is_allowed(media_type: str, allowed: Iterable[str]) -> bool:
    """Return whether a media type is one of those that are allowed, such as `image/png`, `image/*` or `*/*`."""
    kind = media_type.partition("/")[0]
    return not {media_type, f"{kind}/*", "*/*"}.isdisjoint(allowed)


def file_name(name: str) -> str:
    """Return the name of a file without folders and without control characters, of at most `MAX_NAME` characters."""
    last = re.split(r"[/\\]", name.encode(errors="replace").decode())[-1]
    if len(last) > MAX_SENT:
        last = last[: MAX_SENT // 2] + last[-MAX_SENT // 2 :]
    visible = "".join(char for char in last if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    stripped = visible.strip().lstrip(".") or "file"
    stem, dot, suffix = stripped.rpartition(".")
    if len(stripped) <= MAX_NAME or not dot or len(suffix) > 20:
        return stripped[:MAX_NAME]
    return f"{stem[: MAX_NAME - len(suffix) - 1]}.{suffix}"


def _is_text(head: bytes) -> bool:
    """Return whether the beginning of a file is text in UTF-8. Its last character may be incomplete."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or error.reason != "unexpected end of data":
            return False
    return b"\0" not in head
