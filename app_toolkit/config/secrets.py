"""Which values of options are secret, and options without them.

A value is secret if its name says so, as `api_key` and `DB_PASSWORD` do. The password in a URL is secret, too. Where
options are shown, `MASK` stands for a secret that is plain text. References are shown as written.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app_toolkit.config import references
from app_toolkit.config.document import Place

MASK = "***"

_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|\bpass|_pass|secret|token|credentials?"
    r"|(api|access|private|secret|signing|encryption|account|auth|master)[_-]?key)$",
    re.IGNORECASE,
)
_TOKEN_OF_MODEL = re.compile(r"(bos|eos|pad|unk|sep|cls|mask|stop)_token$", re.IGNORECASE)
"""Special tokens of a language model, such as `<|endoftext|>`, are no secrets."""

# The scheme may be a reference. A password may contain @: the last one in the authority of the URL is its end.
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/\s:@]*:)([^/\s@]+(?:@[^/?#\s@]+)*)(?=@)")


def is_secret_name(name: str) -> bool:
    """Return whether the value with this name is secret: whether the name ends with a word such as `key` or `token`."""
    return _SECRET_NAME.search(name) is not None and _TOKEN_OF_MODEL.search(name) is None


def secrets_in(value: Any, place: Place = ()) -> Iterator[str]:
    """Yield the secrets in plain data at this place, by the names of its keys, and the passwords in its URLs."""
    for inner, text in references.texts(value, place):
        if any(map(is_secret_name, inner)):
            yield text
        if "://" in text:
            for matched in _PASSWORD_IN_URL.finditer(text):
                yield matched[2]


def masked(value: Any, place: Place = ()) -> Any:
    """Return options as written with `MASK` instead of each secret. Secrets with references stay as written."""
    if isinstance(value, Mapping):
        return {key: masked(inner, (*place, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner, place) for inner in value]
    if not isinstance(value, str):
        return value
    if any(map(is_secret_name, place)) and _is_plain(value):
        return MASK
    return _PASSWORD_IN_URL.sub(lambda matched: matched[1] + (MASK if _is_plain(matched[2]) else matched[2]), value)


def _is_plain(text: str) -> bool:
    return text != "" and not any(True for _ in references.names(text))
