"""The facts that callers need about the methods of a class: their kinds, and whether they are idempotent."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from app_toolkit.types import Kind

M = TypeVar("M", bound=Callable[..., Any])

STREAMS: frozenset[Kind] = frozenset({"stream", "sync stream"})

_IDEMPOTENT = "__app_toolkit_idempotent__"

MANY = ".many"
"""Suffix of the name of a `@batch` method in a call that has many items."""

TAKES_MANY = "__app_toolkit_many__"
"""The attribute of a `@batch` function with the function that takes many items."""


def idempotent(method: M) -> M:
    """Mark a method of a deployment's class that is safe to run twice.

    With `retry="idempotent"`, the default, a call that is lost with its replica is retried on another one.
    """
    setattr(method, _IDEMPOTENT, True)
    return method


def is_idempotent(method: object) -> bool:
    return getattr(method, _IDEMPOTENT, False) is True


def many_of(method: object) -> Callable[..., Any] | None:
    """Return the function that calls a `@batch` function with many items; None: it is no such function."""
    many = getattr(method, TAKES_MANY, None)
    return many if many is None or not inspect.ismethod(method) else partial(many, method.__self__)


def kind_of(method: Callable[..., Any]) -> Kind:
    if inspect.iscoroutinefunction(method):
        return "coroutine"
    if inspect.isasyncgenfunction(method):
        return "stream"
    return "sync stream" if inspect.isgeneratorfunction(method) else "sync"


def kebab(name: str) -> str:
    """Return the name of the deployment of a class: `text-encoder` for `TextEncoder`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower().strip("_-")
