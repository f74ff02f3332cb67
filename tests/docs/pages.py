"""What the pages show: their blocks, and the commands in these and between them."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
COMMENT = re.compile(r"(?:^|\s)#\s(.*)$", re.MULTILINE)
ENDS = {"&&", "||", ";", "|"}
ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name that its first line, a comment, gives it."""
        named = re.match(r"# (\S+\.(py|yaml))\n", self.text)
        return named and named[1]


@dataclass(frozen=True)
class Page:
    name: str
    """Its path, from the root of the repository."""
    text: str

    @property
    def blocks(self) -> list[Block]:
        return [Block(language, text) for language, text in FENCE.findall(self.text)]

    def shown(self, language: str) -> list[str]:
        return [block.text for block in self.blocks if block.language == language]

    @property
    def code(self) -> str:
        """All of its Python as one module: each block goes on where the one before it ended."""
        return "\n\n".join(self.shown("python"))

    @property
    def modules(self) -> list["Page"]:
        """The parts with Python. A block that names its file begins a new module."""
        parts = re.split(r"(?=^```python\n# \S+\.py\n)", self.text, flags=re.MULTILINE)
        modules = [Page(f"{self.name}-{number}", part) for number, part in enumerate(parts, 1)]
        return [module for module in modules if module.code]

    def run(self) -> dict[str, Any]:
        """The names that the page's Python defines."""
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(self.code, self.name, "exec"), names)
        return names

    def below(self, heading: str) -> str:
        """What stands below a heading, up to the next one."""
        return self.text.partition(f"## {heading}\n")[2].partition("\n## ")[0]

    def part(self, heading: str) -> "Page":
        """What stands below a heading, as a page of its own."""
        return Page(f"{self.name}: {heading}", self.below(heading))

    @property
    def spoken(self) -> list[str]:
        """What stands in `backticks`, between the blocks and in the comments of commands."""
        prose = FENCE.sub("", self.text)
        comments = [comment for text in self.shown("bash") for comment in COMMENT.findall(text)]
        return [" ".join(span.split()) for each in (prose, *comments) for span in SPAN.findall(each)]


@dataclass(frozen=True)
class Command:
    """One simple command of a shell: its words, without variables that are set and without redirections."""

    words: tuple[str, ...]
    folder: str = "."
    """Where it runs, from where its line began."""

    @property
    def program(self) -> str:
        """`python -m x` is `x`, wherever that Python is."""
        return self.words[2] if self.is_module else Path(self.words[0]).name

    @property
    def is_module(self) -> bool:
        return bool(re.fullmatch(r"python[\d.]*", Path(self.words[0]).name)) and self.words[1:2] == ("-m",)

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[3:] if self.is_module else self.words[1:]


def commands(shell: str) -> Iterator[Command]:
    """What a shell would run of this, one after another; a `cd` holds for the rest of its line."""
    for line in shell.replace("\\\n", " ").splitlines():
        folder = "."
        for words in _simple(line):
            command = Command(tuple(words))
            if command.program == "cd":
                folder = command.words[1]
            else:
                yield replace(command, folder=folder)


def _simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in (*lexer, ";"):
        if word in ENDS:
            if words:
                yield words
            words = []
        elif redirected or word in {">", ">>", "<"}:
            redirected = not redirected
        elif words or not ASSIGNMENT.match(word):
            words.append(word)


def post_of(console: str) -> tuple[str, Any, Any]:
    """Of a `curl` and its answer: the path, the JSON that is sent, and the JSON that comes."""
    line, _, answer = console.partition("\n")
    (curl,) = commands(line.removeprefix("$ "))
    url, *options = curl.arguments
    return "/" + url.partition("/")[2], json.loads(options[options.index("-d") + 1]), json.loads(answer)


def page(name: str) -> Page:
    return Page(name, (ROOT / name).read_text("utf-8"))


PAGES = [
    page(str(path.relative_to(ROOT)))
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
]
