"""The tools that a request offers to a model, and its choice among them."""

import logging
from collections.abc import Collection, Iterable

from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.protocol import Tool

logger = logging.getLogger("app_toolkit.chat")

MAX_NOTED = 100
"""The types of tools and items that are noted in the log. Clients choose these names."""

_noted: set[tuple[str, str]] = set()


def chosen_tools(
    tools: Iterable[Tool], choice: str | None, allowed: Collection[str] | None = None
) -> tuple[tuple[Tool, ...], str | None]:
    """Return the tools that the model may call, and its choice. Without an allowed tool, there is no choice.

    `allowed`: the names of the tools that it may call. Default: all.
    """
    chosen = tuple(tool for tool in tools if allowed is None or tool.name in allowed)
    return chosen, choice if chosen or allowed is None else None


def named_function(name: str, tools: Iterable[Tool]) -> str:
    """Return the name of a function that a client has chosen. Raises `InvalidParameter` if it is not in `tools`."""
    if name not in {tool.name for tool in tools}:
        raise InvalidParameter(f"tool_choice names {name!r}, which is not in tools", "tool_choice")
    return name


def note_ignored(what: str, type: str) -> None:
    """Note once in the log that the tools or items of a type are ignored, because chat models know functions only."""
    if (what, type) not in _noted and len(_noted) < MAX_NOTED:
        _noted.add((what, type))
        logger.warning("%s of the type %.60r are ignored: chat models know functions only", what, type)
