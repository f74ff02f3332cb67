"""Commands and their results as JSON, for the admin API and its client."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, TypeAdapter

from app_toolkit.client import commands
from app_toolkit.client.commands import Command, DriverCommand, Query
from app_toolkit.core.logs import MOST_RECORDS, LogPage, LogQuery
from app_toolkit.core.slow import SlowRequest
from app_toolkit.core.status import Load

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


def api_commands() -> list[type[Command[Any]]]:
    """Return the commands of the admin API, in the order of their definitions."""
    found = [each for each in vars(commands).values() if isinstance(each, type) and issubclass(each, Command)]
    return [each for each in found if not issubclass(each, DriverCommand) and each not in (Command, Query)]


def path_of(command: type[Command[Any]]) -> str:
    """Return the path of a command: `/api/set-traffic` for `SetTraffic`, and `/api/status` for `GetStatus`."""
    words = re.findall("[A-Z][a-z]*", command.__name__.removeprefix("Get"))
    return f"/api/{'-'.join(words).lower()}"


@functools.cache
def adapter_of(command: type[Command[R]]) -> TypeAdapter[Command[R]]:
    """Return the adapter that encodes and decodes commands of this type."""
    return TypeAdapter(command)


def result_type(command: type[Command[Any]]) -> Any:
    """Return the type of the results of a command."""
    return next(each for base in getattr(command, "__orig_bases__", ()) for each in get_args(base))


@functools.cache
def result_adapter_of(command: type[Command[R]]) -> TypeAdapter[R]:
    """Return the adapter that encodes and decodes the results of a command."""
    return TypeAdapter(result_type(command))
