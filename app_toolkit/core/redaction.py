"""Secrets, and texts without them.

A value is secret if it comes from a reference to an environment variable (`${NAME}`), or if its name says so, as
`api_key` and `DB_PASSWORD` do. The password in a URL is secret, too.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from app_toolkit.config import references
from app_toolkit.config.models import DeploymentSpec

MASK = "***"

SHORTEST = 6
"""The least number of characters of a secret. Shorter texts are parts of many words, and are shown."""

_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|\bpass|_pass|secret|token|credentials?"
    r"|(api|access|private|secret|signing|encryption|account|auth|master)[_-]?key)$",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@")


def is_secret_name(name: str) -> bool:
    """Return whether the value with this name is secret: whether the name ends with a word such as `key` or `token`."""
    return _SECRET_NAME.search(name) is not None


def secrets_in(value: Any) -> Iterator[str]:
    """Yield the secrets in plain data, by the names of its keys, and the passwords in its URLs."""
    for place, text in references.texts(value):
        if any(map(is_secret_name, place)):
            yield text
        yield from _PASSWORD_IN_URL.findall(text)


def referenced(written: Any, value: Any) -> Iterator[str]:
    """Yield the values that the references of `written` have in `value`, which is the same data without references."""
    for (_, text), (_, resolved) in zip(references.texts(written), references.texts(value), strict=True):
        yield from references.values(text, resolved)


class Redactor:
    """Replaces secrets in texts by `MASK`.

    A secret is also found as `repr`, JSON and URLs show it. Other forms, such as Base64, are not.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {
            form
            for secret in secrets
            if len(secret) >= SHORTEST
            for form in (
                secret,
                repr(secret)[1:-1],
                json.dumps(secret)[1:-1],
                quote(secret, safe="", errors="surrogatepass"),
            )
        }
        # Longest first: a secret may begin with another one.
        ordered = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def redact(self, text: str) -> str:
        """Return the text with `MASK` instead of each secret."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)


def secrets_of(deployment: DeploymentSpec) -> tuple[str, ...]:
    """Return the secrets in the options of a deployment that may have references (`config.files`)."""
    config = deployment.config
    values = {
        "ray_actor_options.runtime_env": config.ray_actor_options.runtime_env,
        "user_config": getattr(config, "user_config", None),
    }
    found = [*secrets_in(values)]
    for option, written in deployment.written.items():
        found += referenced(written, values[option])
    return tuple(dict.fromkeys(found))


def redact_error(error: BaseException, redactor: Redactor) -> None:
    """Redact the texts of an error: its arguments, its notes, and other attributes, such as `HTTPException.detail`."""
    args = tuple(redactor.redact(each) if isinstance(each, str) else each for each in error.args)
    if args != error.args:
        error.args = args
    for name, value in vars(error).items():
        if isinstance(value, str) and redactor.redact(value) != value:
            setattr(error, name, redactor.redact(value))
    if notes := getattr(error, "__notes__", None):
        notes[:] = map(redactor.redact, notes)
