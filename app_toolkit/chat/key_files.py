"""A file with API keys, which may change while the processes that read it run."""

import fcntl
import hashlib
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app_toolkit import ChatError, ConfigError

logger = logging.getLogger("app_toolkit.chat")

CHECK_S = 1.0
"""Seconds after which a change of the file is noticed."""

KEY_BYTES = 32
"""Random bytes of a new key."""

MIN_LENGTH = 16
"""The minimum length of a key in characters. A shorter key can be guessed, because its hash is fast to compute."""

MAX_KEYS = 10_000
"""Keys of one file. A request is compared with each."""

NAME = re.compile(r"[\w.@-]{1,64}")
KEY = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a Bearer token: RFC 6750, 2.1."""

HASH = re.compile(r"sha256:([0-9a-f]{64})")

Signature = tuple[int, int, int]


class KeyFile:
    """Entries `NAME=KEY` or `NAME=sha256:HEX`. It writes hashes only."""

    def __init__(self, path: str | Path, now: Callable[[], float] = time.monotonic) -> None:
        """Name the file, which is read later. `now`: a clock in seconds. Default: `time.monotonic`."""
        self._path = Path(path)
        self._now = now
        self._hashes: dict[str, bytes] = {}
        self._signature: Signature | None = None
        self._checked_at: float | None = None

    def __str__(self) -> str:
        return f"the file {self._path}"

    def read(self) -> None:
        """Read the file.

        Raises:
            ConfigError: It cannot be read, or an entry is invalid.
        """
        try:
            signature = self._signature_now()
            text = self._path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_keys: {self} cannot be read: {error}") from None
        self._hashes, self._signature, self._checked_at = (
            hashes_of(parse_keys(text, str(self)), str(self)),
            signature,
            self._now(),
        )

    def hashes(self) -> dict[str, bytes]:
        """Return the hashes by name, of at most `CHECK_S` ago. If the file is invalid now, the earlier ones stay."""
        now = self._now()
        if self._checked_at is None or now - self._checked_at >= CHECK_S:
            self._checked_at = now
            try:
                signature = self._signature_now()
            except OSError:
                signature = None
            if signature != self._signature:
                try:
                    self.read()
                except ConfigError as error:
                    self._signature = signature
                    logger.error("the earlier API keys stay: %s", error)
        return self._hashes

    def create(self, name: str) -> str:
        """Add a key, and return it. It is stored nowhere else. The file is created if it does not exist. Blocks.

        Raises:
            ChatError: 422, the name is invalid; 409, there is a key with this name, or there are too many keys; 503,
                the file cannot be written, or has an invalid entry.
        """
        if not NAME.fullmatch(name) or name in (".", ".."):  # they would mean something else in a URL
            raise ChatError(
                f"the name of a key must have 1 to 64 letters, digits, and _ . @ -, and not be {name[:80]!r}",
                status=422,
                code="invalid_name",
            )
        key = secrets.token_urlsafe(KEY_BYTES)
        with self._changing() as text:
            hashes = hashes_of(parse_keys(text, str(self)), str(self))
            if name in hashes:
                raise ChatError(f"there is an API key {name!r} already", status=409, code="key_exists")
            if len(hashes) >= MAX_KEYS:
                raise ChatError(
                    f"{self} has {MAX_KEYS:,} keys, and may not have more", status=409, code="too_many_keys"
                )
            separator = "" if not text or text.endswith("\n") else "\n"
            self._write(f"{text}{separator}{name}=sha256:{hash_of(key).hex()}\n")
        return key

    def revoke(self, name: str) -> None:
        """Remove a key. Blocks.

        Raises:
            ChatError: 404, there is no key with this name; 503, the file cannot be written, or has an invalid entry.
        """
        with self._changing() as text:
            if name not in dict(parse_keys(text, str(self))):
                raise ChatError(f"there is no API key {name!r}", status=404, code="key_unknown")
            self._write("".join(_lines_without(text, name)))

    @contextmanager
    def _changing(self) -> Iterator[str]:
        """Yield the text of the file, which no other process changes until the end of the block.

        Raises:
            ChatError: 503, the file cannot be read or written, or the block finds an invalid entry.
        """
        path = self._path.resolve()
        lock = path.with_name(f".{path.name}.lock")
        try:
            with os.fdopen(os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)) as locked:
                fcntl.flock(locked, fcntl.LOCK_EX)
                yield self._path.read_text("utf-8-sig") if self._path.exists() else ""
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise ChatError(f"{self} cannot be changed: {error}", status=503, code="keys_unavailable") from None
        finally:
            self._checked_at = None

    def _write(self, text: str) -> None:
        """Replace the file, so that a reader finds all of the old one or of the new one."""
        path = self._path.resolve()
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _signature_now(self) -> Signature:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _lines_without(text: str, name: str) -> Iterator[str]:
    """Yield the lines of a file without the entry of a name. Comments and other entries stay."""
    for line in text.splitlines(keepends=True):
        entries = line.split(",")
        if line.lstrip().startswith("#") or not any(entry.partition("=")[0].strip() == name for entry in entries):
            yield line
            continue
        others = [entry.strip() for entry in entries if entry.partition("=")[0].strip() not in (name, "")]
        if others:
            yield f"{','.join(others)}\n"


def parse_keys(text: str, source: str) -> list[tuple[str, str]]:
    """Return the names and the keys of entries `NAME=KEY`. An error does not show the entry, which may be a key.

    Parameters:
        text: Entries, separated by commas or lines. Lines that begin with `#` are comments.
        source: The variable or file that has the entries, for error messages.

    Raises:
        ConfigError: An entry has no name.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]
    keys = []
    for number, entry in enumerate(entries, 1):
        name, separator, key = entry.partition("=")
        if not separator or not NAME.fullmatch(name.strip()):
            raise ConfigError(f"api_keys: entry {number} of {source} has no name: write NAME=KEY")
        keys.append((name.strip(), key.strip()))
    return keys


def hashes_of(entries: list[tuple[str, str]], source: str) -> dict[str, bytes]:
    """Return the hashes by name. An error shows no name that may be a key, and no key."""
    hashes: dict[str, bytes] = {}
    digests: set[bytes] = set()
    for number, (name, key) in enumerate(entries, 1):
        if not NAME.fullmatch(name):
            raise ConfigError(f"api_keys: name {number} of {source} must have 1 to 64 letters, digits, and _ . @ -")
        if name in hashes:
            raise ConfigError(f"api_keys: {source} has two keys with the name {name!r}")
        digest = _checked_hash(key, f"key {number} of {source}")
        if digest in digests:
            raise ConfigError(f"api_keys: key {number} of {source} has two names")
        digests.add(digest)
        hashes[name] = digest
    return hashes


def _checked_hash(key: str, place: str) -> bytes:
    if (matched := HASH.fullmatch(key)) is not None:
        return bytes.fromhex(matched[1])
    if not KEY.fullmatch(key):
        raise ConfigError(
            f"api_keys: {place} must have only letters, digits and the characters -._~+/, and = at its end; a hash is "
            "sha256: and 64 hexadecimal digits"
        )
    if len(key) < MIN_LENGTH:
        raise ConfigError(f"api_keys: {place} has {len(key)} characters: it must have at least {MIN_LENGTH}")
    return hash_of(key)


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
