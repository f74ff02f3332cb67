"""Every command on a page is one that its program takes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from app_toolkit.cli import main as command_line
from tests.parity.probes import PROBES

from .pages import PAGES, ROOT, Page, commands, page
from .taken import collect, only_taken, take, typed

CLI = page("docs/cli.md")
SHOP = page("docs/tutorial/shop.md").modules[-1]
"""The last version of the file that the tutorial goes on with."""

WITH_COMMANDS = [page for page in PAGES if typed(page)]
APP = "from fastapi import FastAPI\n\napp = FastAPI()\n"
REFUSED = (Exception, SystemExit, pytest.fail.Exception)
"""What comes of a wrong command; whatever the program does."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The root of the repository, with an app, the one of the tutorial, and a file of applications in it."""
    for each in ROOT.iterdir():
        if not each.name.startswith("."):
            (tmp_path / each.name).symlink_to(each)
    (tmp_path / "main.py").write_text(APP)
    (tmp_path / "shop.py").write_text(SHOP.code)
    (tmp_path / "app.yaml").write_text("applications: {shop: {target: 'main:app'}}")
    with only_taken(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_is_taken(page: Page, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in page.blocks:
        if block.file:
            (folder / block.file).write_text(block.text)
    for shell in typed(page):
        for command in commands(shell):
            try:
                take(command)
            except REFUSED as error:
                said = capsys.readouterr()
                pytest.fail(f"{page.name}: {' '.join(command.words)}: {error!r}\n{said.out}{said.err}")


def test_the_page_lists_the_commands_that_there_are() -> None:
    shown = CLI.shown("text")[0]
    listed = re.findall(r"^app-toolkit (\w+)( \[TARGET\])? ", shown, re.MULTILINE)
    assert listed == [
        (name, " [TARGET]" * any(parameter.name == "target" for parameter in each.params))
        for name, each in subcommands().items()
    ]


def test_the_page_names_no_option_that_is_not_there() -> None:
    commands = [typer.main.get_command(command_line.app), *subcommands().values()]
    parameters = [parameter for command in commands for parameter in command.params]
    there = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", CLI.text)) <= there


def subcommands() -> dict[str, Any]:
    group: Any = typer.main.get_command(command_line.app)
    return dict(group.commands)


def test_the_defaults_of_the_page_are_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = CLI.shown("toml")
    (folder / "pyproject.toml").unlink()
    (folder / "pyproject.toml").write_text(shown)
    taken: list[Any] = []
    monkeypatch.setattr(command_line, "serve_on_cluster", lambda options, *_: taken.append(options))
    with pytest.raises(SystemExit):
        command_line.main(["run"])
    (options,) = taken
    assert (options.http.port, options.http.max_connections) == (9000, 500)
    assert (options.plan.num_replicas, options.plan.name) == (2, "shop")


@pytest.mark.slow
def test_the_page_says_how_many_probes_and_tests_there_are() -> None:
    (probes,) = re.findall(r"([\d,]+) probes", page("docs/parity.md").text)
    (tests,) = re.findall(r"all of it: ([\d,]+) tests", page("docs/parity.md").text)
    assert int(probes.replace(",", "")) == len(PROBES)
    assert f"{tests.replace(',', '')} tests collected" in collect("tests/parity").stdout
