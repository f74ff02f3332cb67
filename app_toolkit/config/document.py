"""Parses a file into plain data with the line of each value. Other modules interpret the data."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

from app_toolkit.errors import ConfigError

Place = tuple[str, ...]
"""The path of a value: the keys that lead to it, and the number of an item in a list."""

MOST_VALUES = 100_000
"""The maximum number of values in one file. The values of an alias count each time that it is used."""

_CORE = {
    "null": (re.compile(r"~|null|Null|NULL|"), [*"~nN", ""]),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), [*"tTfF"]),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), [*"-+0123456789"]),
    "float": (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        [*"-+.0123456789"],
    ),
}
"""The plain scalars that are not text in the core schema of YAML 1.2, and their first characters, by tag."""


class _YAMLLoader(yaml.BaseLoader):  # type: ignore[misc]
    """A loader without the implicit types of YAML 1.1: `no`, `on`, `12:30` and dates are text."""


for _tag, (_word, _first) in _CORE.items():
    # PyYAML calls `match`, so only `$` makes the pattern match the whole text.
    yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_word.pattern})$"), _first, _YAMLLoader)


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    line: int
    message: str
    """A sentence with the file and the line."""


@dataclass(frozen=True, slots=True)
class Document:
    """The data of a file, and the mistakes in its syntax."""

    source: str
    """The path of the file, for messages."""
    data: Any
    lines: Mapping[Place, int] = field(default_factory=dict)
    """The line of each value, counted from 1; empty if the lines are not known."""
    mistakes: Sequence[Mistake] = ()
    table: str = ""
    """The name of the table that this document is, for messages; empty: the document is the whole file."""

    def line(self, place: Place) -> int:
        """Return the line of a value, or of the nearest value around it; 0 if it is not known."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)

    def at(self, place: Place) -> str:
        """Return `FILE:LINE`, or `FILE` if the line is not known."""
        line = self.line(place)
        return f"{self.source}:{line}" if line else self.source

    def display_name(self, place: Place) -> str:
        """Return the dotted name of a value, for messages."""
        return ".".join(filter(None, (self.table, *place))) or "the file"


def from_toml(data: Any, source: str, table: str) -> Document:
    """Return the document of a table of a TOML file. It has no lines, because the TOML parser does not report them."""
    return Document(source, data, table=f"[{table}]")


def from_yaml(text: str, source: str) -> Document:
    """Return the document of a YAML file. Raises `ConfigError` with the line if the text is not YAML."""
    try:
        root = yaml.compose(text, Loader=_YAMLLoader)
        reading = _NodeReader(source)
        data = None if root is None else reading.value(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise ConfigError(f"{where}: {error.problem or error.context}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{source}:{line}: {error.reason}") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None
    return Document(source, data, reading.lines, reading.mistakes)


class _NodeReader:
    """Converts YAML nodes to data, and records the line of each key and item."""

    def __init__(self, source: str) -> None:
        self.lines: dict[Place, int] = {}
        self.mistakes: list[Mistake] = []
        self._source = source
        self._values = 0
        self._around: set[int] = set()

    def value(self, node: Any, place: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._values += 1
        if self._values > MOST_VALUES:
            raise ConfigError(f"{self._source}:{line}: a file may have {MOST_VALUES} values, aliases counted each time")
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node.value, kind, line)
        if kind not in ("map", "seq"):
            self._report(line, f"the tag {node.tag!r} is not supported")
        if id(node) in self._around:
            raise ConfigError(f"{self._source}:{line}: this value contains an alias of itself")
        self._around.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*place, str(number))) for number, item in enumerate(node.value)]
            return self._mapping(node, place)
        finally:
            self._around.remove(id(node))

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "this"
                self._report(line, f"{shown} is a key, and keys are text: put it in quotes")
                continue
            key_place = (*place, key.value)
            if key.value in values:
                self._report(line, f"{'.'.join(key_place)} appears twice, first on line {self.lines[key_place]}")
                continue
            self.lines[key_place] = line
            values[key.value] = self.value(value, key_place)
        return values

    def _scalar(self, text: str, kind: str, line: int) -> Any:
        try:
            match kind:
                case "str":
                    return text
                case "null":
                    return None
                case "bool" if text.lower() in ("true", "false"):
                    return text.lower() == "true"
                case "int":
                    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
                case "float" if math.isfinite(number := float(text)):
                    return number
        except ValueError:  # also for .inf and .nan, which JSON does not have
            pass
        self._report(line, f"{text!r} is no {kind}" if kind in _CORE else f"the tag {kind!r} is not supported")
        return None

    def _report(self, line: int, message: str) -> None:
        self.mistakes.append(Mistake(line, f"{self._source}:{line}: {message}"))
