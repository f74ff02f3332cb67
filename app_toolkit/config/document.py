"""A file as plain data, and on which line each part of it stands. What it means is for others to say."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

from app_toolkit.errors import ConfigError

Place = tuple[str, ...]
"""Where something stands: the keys that lead to it, an item of a list by its number."""

MOST_VALUES = 100_000
"""Values in one file; what an alias stands for counts each time."""

_CORE = {
    "null": (re.compile(r"~|null|Null|NULL|"), [*"~nN", ""]),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), [*"tTfF"]),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), [*"-+0123456789"]),
    "float": (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        [*"-+.0123456789"],
    ),
}
"""Which plain words are no text in YAML 1.2, and how they begin."""


class _YAMLLoader(yaml.BaseLoader):  # type: ignore[misc]
    """Without what YAML 1.1 takes for something else: `no`, `on`, `12:30` and dates are text."""


for _tag, (_word, _first) in _CORE.items():
    # The pattern is searched for at the beginning of the word.
    yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_word.pattern})$"), _first, _YAMLLoader)


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    line: int
    message: str
    """A whole sentence, with the file and the line."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says, and what is wrong with how it says it."""

    source: str
    """The file, as people name it."""
    data: Any
    lines: Mapping[Place, int] = field(default_factory=dict)
    """From 1 on; empty where nobody knows them."""
    mistakes: Sequence[Mistake] = ()
    table: str = ""
    """Which part of the file it is; the whole of it by default."""

    def line(self, place: Place) -> int:
        """Of the nearest thing around it whose line is known; 0 where none is."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)

    def at(self, place: Place) -> str:
        """`FILE:LINE`, without a line where none is known."""
        line = self.line(place)
        return f"{self.source}:{line}" if line else self.source

    def called(self, place: Place) -> str:
        """Its dotted name."""
        return ".".join(filter(None, (self.table, *place))) or "the file"


def from_toml(data: Any, source: str, table: str) -> Document:
    """A table of a TOML file. Its parser tells no lines, so mistakes are told by their dotted names."""
    return Document(source, data, table=f"[{table}]")


def from_yaml(text: str, source: str) -> Document:
    """A YAML file. Raises `ConfigError` for what is not YAML, with its line."""
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
    """From nodes to data, with a note of where each key and item stands."""

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
            self._tell(line, f"the tag {node.tag!r} means nothing here")
        if id(node) in self._around:
            raise ConfigError(f"{self._source}:{line}: this contains itself")
        self._around.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*place, str(number))) for number, item in enumerate(node.value)]
            return self._mapping(node, place)
        finally:
            self._around.remove(id(node))

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "this"
                self._tell(line, f"{shown} is a key, and keys are text: put it in quotes")
                continue
            there = (*place, key.value)
            if key.value in found:
                self._tell(line, f"{'.'.join(there)} is there twice, first on line {self.lines[there]}")
                continue
            self.lines[there] = line
            found[key.value] = self.value(value, there)
        return found

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
        except ValueError:  # .inf and .nan, too, which JSON does not have
            pass
        self._tell(line, f"{text!r} is no {kind}" if kind in _CORE else f"the tag {kind!r} means nothing here")
        return None

    def _tell(self, line: int, message: str) -> None:
        self.mistakes.append(Mistake(line, f"{self._source}:{line}: {message}"))
