"""The facts that callers need about the methods of a class: their kinds, and whether they are idempotent."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from app_toolkit.types import Kind

M = TypeVar("M", bound=Callable[..., Any])

STREAMS: frozenset[Kind] = frozenset({"stream", "sync stream"})

_IDEMPOTENT = "__app_toolkit_idempotent__"


def idempotent(method: M) -> M:
    """Mark a method of a deployment's class that is safe to run twice.

    With `retry="idempotent"`, the default, a call that is lost with its replica is retried on another one.
    """
    setattr(method, _IDEMPOTENT, True)
    return method


def is_idempotent(method: object) -> bool:
    return getattr(method, _IDEMPOTENT, False) is True


def kind_of(method: Callable[..., Any]) -> Kind:
    if inspect.iscoroutinefunction(method):
        return "coroutine"
    if inspect.isasyncgenfunction(method):
        return "stream"
    return "sync stream" if inspect.isgeneratorfunction(method) else "sync"


def kebab(name: str) -> str:
    """Return the name of the deployment of a class: `text-encoder` for `TextEncoder`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower().strip("_-")
