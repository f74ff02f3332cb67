"""The secrets that this process knows, and its texts without them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from app_toolkit.config.redaction import Redactor, redact_error

_lock = threading.Lock()
_known: set[str] = set()
_redactor = Redactor()


def add_secrets(secrets: Iterable[str]) -> None:
    """Replace these secrets, too, in what this process logs and reports from now on. They are never forgotten."""
    global _redactor
    with _lock:
        _known.update(secrets)
        _redactor = Redactor(_known)


def redacted(text: str) -> str:
    """Return the text without the secrets that this process knows."""
    return _redactor.redact(text)


def redact(error: BaseException) -> None:
    """Remove the secrets that this process knows from the texts of an error."""
    redact_error(error, _redactor)


@contextmanager
def redacting() -> Iterator[None]:
    """Remove secrets from the errors that leave the block."""
    try:
        yield
    except BaseException as error:
        redact(error)
        raise
