"""Commands and their results as JSON, for the admin API and its client."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from app_toolkit.control.command import Command
from app_toolkit.control.status import Load
from app_toolkit.errors import ConfigError
from app_toolkit.observability.log_query import MOST_RECORDS, LogPage, LogQuery
from app_toolkit.observability.slowest import SlowRequest

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LogsRequest:
    """The arguments of `Client.logs`."""

    query: LogQuery
    last: Annotated[int, Field(ge=1, le=MOST_RECORDS)] = MOST_RECORDS
    after: Mapping[str, Mapping[str, str]] | None = None


LOADS: TypeAdapter[Mapping[str, Load]] = TypeAdapter(Mapping[str, Load])
"""The result of `Client.load`."""

LOGS_REQUEST = TypeAdapter(LogsRequest)

LOGS = TypeAdapter(LogPage)
"""The result of `Client.logs`."""

SLOW: TypeAdapter[Sequence[SlowRequest]] = TypeAdapter(Sequence[SlowRequest])
"""The result of `Client.slow`."""


def path_of(command: type[Command[Any]]) -> str:
    """Return the path of a command: `/api/set-traffic` for `SetTraffic`, and `/api/status` for `GetStatus`."""
    words = re.findall("[A-Z][a-z]*", command.__name__.removeprefix("Get"))
    return f"/api/{'-'.join(words).lower()}"


@functools.cache
def adapter_of(command: type[Command[R]]) -> TypeAdapter[Command[R]]:
    """Return the adapter that encodes and decodes commands of this type."""
    return TypeAdapter(command)


def check_arguments(command: Callable[..., Command[Any]], arguments: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if an argument of a command has not the type of its field. `True` and `"2"` are no numbers.

    Parameters:
        command: The class of the command.
        arguments: The arguments by the name of the field.
    """
    fields = _fields_of(command)
    for name, value in arguments.items():
        try:
            fields[name].validate_python(value)
        except ValidationError as error:
            mistake = error.errors(include_url=False)[0]
            where = "".join(f"[{key!r}]" for key in mistake["loc"])
            raise ConfigError(f"{name}{where} = {mistake['input']!r}: {mistake['msg']}") from None


@functools.cache
def _fields_of(command: Callable[..., Command[Any]]) -> Mapping[str, TypeAdapter[Any]]:
    hints = get_type_hints(command, include_extras=True)
    return {name: TypeAdapter(hints[name], config=ConfigDict(strict=True)) for name in signature(command).parameters}


def result_type(command: type[Command[Any]]) -> Any:
    """Return the type of the results of a command."""
    return next(argument for base in getattr(command, "__orig_bases__", ()) for argument in get_args(base))


@functools.cache
def result_adapter_of(command: type[Command[R]]) -> TypeAdapter[R]:
    """Return the adapter that encodes and decodes the results of a command."""
    return TypeAdapter(result_type(command))
