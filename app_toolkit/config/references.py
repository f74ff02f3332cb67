"""References to environment variables in a file: `${NAME}` stands for the value when the file is applied.

A literal `${` is written `$${`. Text with unresolved references is called *as written*. Users see only this form.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TOKEN = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def names(text: str) -> Iterator[str]:
    """Yield the variables that a text refers to. Raises `ValueError` for a reference without a valid name."""
    for token in _TOKEN.finditer(text):
        if token[1] is None:
            continue
        if not token[2] or not _NAME.fullmatch(token[1]):
            raise ValueError("a reference to the environment is ${NAME}, and a literal ${ is written $${")
        yield token[1]


def resolve(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with references replaced by values. `variables` must contain all variables of the text."""
    return _TOKEN.sub(lambda token: "${" if token[1] is None else variables[token[1]], text)


def values(text: str, resolved: str) -> list[str]:
    """Return the values that the references of a text have in the resolved text, which `resolve` has returned.

    If several references follow each other without a text between them, the division between their values is not known,
    and one of them has all of it.
    """
    parts, end = [], 0
    for token in _TOKEN.finditer(text):
        parts += [re.escape(text[end : token.start()]), re.escape("${") if token[1] is None else "(.*)"]
        end = token.end()
    matched = re.fullmatch("".join([*parts, re.escape(text[end:])]), resolved, re.DOTALL)
    return [] if matched is None else [value for value in matched.groups() if value]


def escape(text: str) -> str:
    """Escape each `${`, so that the text contains no reference."""
    return text.replace("${", "$${")


def unescape(text: str) -> str:
    """Return a text that contains no reference as it is meant: the inverse of `escape`."""
    return text.replace("$${", "${")


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with `change` applied to each text in it, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: each_text(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(inner, change) for inner in value]
    return value


def texts(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each text in a value, with its path."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts(inner, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts(inner, (*place, str(number)))
