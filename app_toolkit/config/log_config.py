"""The option `logging_config`: a dictionary for `logging.config.dictConfig`, checked before a replica applies it."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from app_toolkit.config.fields import SecretValue

SECTIONS = ("formatters", "filters", "handlers", "loggers")
KEYS = ("version", "root", "disable_existing_loggers", *SECTIONS)


def logging_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a value of the option `logging_config`.

    Raises `SecretValue` for the first mistake that can be found without importing the classes and functions which it
    names. The message does not show the whole value.
    """
    for mistake in _mistakes(config):
        raise SecretValue(mistake)
    return config


def _mistakes(config: Mapping[str, Any]) -> Iterator[str]:
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:
        yield f"it should only have values of JSON, and import paths instead of classes and functions: {error}"
    if unknown := [key for key in config if key not in KEYS]:
        yield f"it has no key {unknown[0]!r}, only {', '.join(KEYS)}"
    if config.get("version") != 1:
        yield f"its version should be 1, not {config.get('version')!r}"
    if not isinstance(config.get("disable_existing_loggers", False), bool):
        yield f"disable_existing_loggers = {config['disable_existing_loggers']!r}: it should be true or false"
    sections = {name: config.get(name, {}) for name in SECTIONS}
    sections["root"] = {"": config["root"]} if "root" in config else {}
    for section, tables in sections.items():
        if not isinstance(tables, Mapping):
            yield f"{section} should be a table, not {tables!r}"
            return
        for name, table in tables.items():
            place = f"{section}.{name}".rstrip(".")
            if not isinstance(table, Mapping):
                yield f"{place} should be a table, not {table!r}"
                return
            if section == "handlers" and not table.keys() & {"class", "()"}:
                yield f"{place} has no class"
            yield from _unknown(place, table, config)


def _unknown(place: str, table: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in a table that nothing has: of levels, formatters, filters and handlers."""
    level = table.get("level", 0)
    if type(level) is not int and level not in logging.getLevelNamesMapping():
        yield f"{place} has the level {level!r}, and the levels are {', '.join(logging.getLevelNamesMapping())}"
    formatter = table.get("formatter")
    named = {"filters": table.get("filters", []), "handlers": table.get("handlers", [])}
    if place.startswith("handlers."):
        named = {"filters": named["filters"], "formatters": [] if formatter is None else [formatter]}
    for section, names in named.items():
        if not isinstance(names, list) or not all(isinstance(listed, str) for listed in names):
            yield f"{place} has the {section} {names!r}, which should be a list of names"
        elif missing := [listed for listed in names if listed not in config.get(section, {})]:
            yield f"{place} names {missing[0]!r}, which is not among the {section}"
