"""What kinds of methods a class has, as those who call them see it."""

import inspect
from collections.abc import Callable
from typing import Any

from app_toolkit.types import Kind

STREAMS: frozenset[Kind] = frozenset({"stream", "sync stream"})


def kind_of(method: Callable[..., Any]) -> Kind:
    if inspect.iscoroutinefunction(method):
        return "coroutine"
    if inspect.isasyncgenfunction(method):
        return "stream"
    return "sync stream" if inspect.isgeneratorfunction(method) else "sync"
