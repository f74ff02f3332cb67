"""Whether a command that a page shows is taken by its program, with these options and values, and its files exist.

It is read by the program's own parser; what the program would do then is left out, and only that.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from fastapi_cli.cli import app as fastapi_cli
from uvicorn.main import main as uvicorn_cli

from app_toolkit.cli import main as command_line
from app_toolkit.cli.new import choose, read_answers, templates

from .pages import ROOT, Command, Page

THEIRS = {"export", "gunicorn", "mypy", "npm", "printf", "ray", "ruff", "ssh", "umask", "venv"}
"""Programs of others, whose options are not held to anything here."""

SPOKEN = re.compile(r"(app-toolkit|fastapi|pytest|uvicorn(?! --)|python\S* -m|cd \S+ &&) \S")
"""Without an app, `uvicorn --workers 2` names a way to serve and is no command."""


def typed(page: Page) -> list[str]:
    """What of the page is typed into a shell."""
    lines = []
    for block in page.blocks:
        if block.language == "bash":
            lines.append(block.text)
        elif block.language == "console":  # where the answer is shown with it, its own test asks
            lines += [line[2:] for line in block.text.splitlines() if re.match(r"\$ (?!curl )", line)]
    return lines + [span for span in page.spoken if SPOKEN.match(span)]


class Taken(Exception):
    """The command line was right; what would follow is left out."""


class Nobody:
    """A cluster on which nothing runs. A command line that asks it for something was right."""

    def __getattr__(self, name: str) -> Any:
        raise Taken

    def close(self) -> None: ...


class Nowhere:
    """An engine on which nothing runs."""

    def check(self, address: str) -> None: ...

    def connect(self, address: str) -> Nobody:
        return Nobody()


@contextmanager
def only_taken(folder: Path) -> Iterator[None]:
    """Programs are in this folder, take their commands, and do nothing."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser) -> None:
        parser.allow_abbrev = False  # a page that shows half of an option is wrong, too
        parse_args(parser)
        raise Taken

    variables = dict(os.environ)  # the command line sets some for what it would start
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse)
        patched.setattr(command_line, "serve_on_cluster", lambda *_: None)
        patched.setattr(command_line, "deploy_on_cluster", lambda *_: None)
        patched.setattr(command_line, "start_background", lambda *_: None)
        patched.setattr(command_line, "end_background", lambda *_: None)
        patched.setattr("app_toolkit.cli.dev.dev", lambda *_, **__: None)
        patched.setattr(command_line, "create_project", take_answers)
        patched.setattr(command_line, "reach", lambda *_: (Nowhere(), None))
        patched.setattr(sys, "path", list(sys.path))
        patched.setenv("APP_TOOLKIT_RUNTIME_DIR", str(folder))  # other tests may run an instance
        patched.setenv("WRITER_TOKEN", "of the file in docs/cli.md")
        patched.chdir(folder)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(variables)


def take_answers(name: str | None, words: Sequence[str], folder: Path, *, ask: bool) -> Path:
    known = templates()
    read_answers(choose(known, name or next(iter(known))), words)
    return folder


def take(command: Command) -> None:
    """Raises where the program would not take it, or a file that is named is not there."""
    assert not command.words[0].startswith(".venv/bin/") or (Path(sys.executable).parent / command.program).exists()
    # What follows these has a slash and is no path.
    names = {"scale", "restart", "delete", "traffic", "events", "logs", "slow"}
    words = [] if command.words[0] == "app-toolkit" and command.words[1] in names else command.arguments
    for path in re.findall(r"(?:^|=)([\w.-]+(?:/[\w.-]+)+)$", "\n".join(words), re.MULTILINE):
        assert Path(command.folder, path).exists(), f"there is no {path}"
    if takes := PROGRAMS.get(command.program):
        takes(command)
    elif command.is_module and command.program not in THEIRS:
        _module(command)
    else:
        assert command.program in THEIRS, f"nobody knows the program {command.program}"


def _app_toolkit(command: Command) -> None:
    known = set(sys.modules)
    try:
        with pytest.raises((SystemExit, Taken)) as ended:
            command_line.main(command.arguments)
        assert isinstance(ended.value, Taken) or ended.value.code == 0
    finally:
        for module in set(sys.modules) - known:
            if Path(getattr(sys.modules[module], "__file__", None) or "/").is_relative_to(Path.cwd()):
                del sys.modules[module]  # the apps of two pages may have the same name


def _ci(command: Command) -> None:
    assert command.words[0] == ".ci/run"
    assert f"#   {' '.join(command.words)} " in f"{(ROOT / '.ci/run').read_text('utf-8')} "


def _cookiecutter(command: Command) -> None:
    assert (Path(command.arguments[0]) / "cookiecutter.json").is_file()


def _curl(command: Command) -> None:
    url = command.arguments[-1]
    assert re.match(r"https?://[\w.:-]+/", url), f"{url} is no URL"


def _fastapi(command: Command) -> None:
    group: Any = typer.main.get_command(fastapi_cli)
    context = group.make_context("fastapi", list(command.arguments))
    name, found, arguments = group.resolve_command(context, list(command.arguments))
    found.make_context(name, arguments, parent=context)


def _pip(command: Command) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    assert command.arguments[0] == "install"
    for word in command.arguments:
        if extras := re.fullmatch(r"\.\[(.*)\]", word):
            assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()


def _pytest(command: Command) -> None:
    paths = [word for word in command.arguments if (ROOT / word.partition("::")[0]).exists() or "/" in word]
    options = [word for word in command.arguments if word not in paths]
    if "-k" in options or any("::" in path for path in paths):
        done = collect(*command.arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    for path in paths:
        assert any((ROOT / path).rglob("test_*.py")) or Path(path).name.startswith("test_"), f"{path} has no tests"
    if options:
        assert _pytest_takes(*options), f"pytest does not take {options}"


@cache
def _pytest_takes(*options: str) -> bool:
    # The file has no tests, which pytest reports with status 5 if it accepts the options.
    return collect(*options, str(ROOT / "tests/docs/pages.py")).returncode == 5


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def _uvicorn(command: Command) -> None:
    uvicorn_cli.make_context("uvicorn", list(command.arguments))


def _module(command: Command) -> None:
    path = Path(command.folder, *command.program.split("."))
    found = next((each for each in (path.with_suffix(".py"), path / "__main__.py") if each.is_file()), None)
    assert found is not None, f"there is no module {command.program}"
    if command.arguments:
        assert ".parse_args(" in found.read_text("utf-8"), f"{command.program} takes no options"
        module = importlib.import_module(".".join(found.with_suffix("").parts))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "argv", [command.program, *command.arguments])
            with pytest.raises(Taken):
                module.main()


PROGRAMS: dict[str, Callable[[Command], None]] = {
    "app-toolkit": _app_toolkit,
    "cookiecutter": _cookiecutter,
    "curl": _curl,
    "fastapi": _fastapi,
    "pip": _pip,
    "pytest": _pytest,
    "run": _ci,
    "uvicorn": _uvicorn,
}
