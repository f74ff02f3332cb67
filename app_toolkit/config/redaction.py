"""Texts without the secrets of a deployment.

These are the values of references to environment variables (`${NAME}`), and what `config.secrets` finds in its options.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from app_toolkit.config import references
from app_toolkit.config.models import DeploymentSpec
from app_toolkit.config.secrets import MASK, secrets_in

SHORTEST = 6
"""The least number of characters of a secret. Shorter texts are parts of many words, and are shown."""


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
            if len(secret) >= SHORTEST and not secret.isspace()
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
    values = config.uninterpreted
    secrets = [*secrets_in(values)]
    for option, written in deployment.written.items():
        secrets += referenced(written, values[option])
    return tuple(dict.fromkeys(secrets))


def redact_error(error: BaseException, redactor: Redactor) -> None:
    """Redact the texts of an error: its arguments, its notes, and other attributes, such as `HTTPException.detail`."""
    args = tuple(redactor.redact(argument) if isinstance(argument, str) else argument for argument in error.args)
    if args != error.args:
        error.args = args
    for name, value in vars(error).items():
        if isinstance(value, str) and redactor.redact(value) != value:
            setattr(error, name, redactor.redact(value))
    if notes := getattr(error, "__notes__", None):
        notes[:] = map(redactor.redact, notes)
