"""`app-toolkit dashboard`: the address of the dashboard, and the browser that opens it."""

import webbrowser
from dataclasses import replace
from typing import Any

import pytest

from app_toolkit.cli import main as command_line
from app_toolkit.control.command import Command
from app_toolkit.control.queries import GetStatus
from app_toolkit.control.status import InstanceStatus
from app_toolkit.engines import select
from app_toolkit.errors import ConfigError
from tests.operate.scripted import OneInstance

STATUS = InstanceStatus(epoch=1, change=7, status="healthy", applications=(), proxies=(), leaving=())


class Running(OneInstance):
    def __init__(self) -> None:
        self.shown = replace(STATUS, admin_url="http://127.0.0.1:8001")

    def execute(self, command: Command[Any]) -> Any:
        assert command == GetStatus()
        return self.shown

    def close(self) -> None: ...


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Running:
    instance = Running()
    monkeypatch.setattr(select, "engine", lambda *_, **__: instance)
    return instance


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", opens)
    return opened


def run(*arguments: str) -> object:
    """Run the command. Returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(["dashboard", *arguments])
    return ended.value.code


def test_dashboard_is_opened_in_the_browser(
    instance: Running, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert opened == ["http://127.0.0.1:8001"]
    assert capsys.readouterr().out == "Dashboard at http://127.0.0.1:8001\n"


def test_dashboard_says_if_no_browser_can_open_it(
    instance: Running, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    opened.append("as many as this browser can open")
    assert run() == 0
    assert "There is no browser on this machine" in capsys.readouterr().out


def test_no_browser_is_opened_if_none_is_wanted(
    instance: Running, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--no-browser") == 0
    assert opened == []
    assert capsys.readouterr().out == "Dashboard at http://127.0.0.1:8001\n"


def test_instance_without_an_admin_server_has_no_dashboard(
    instance: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    instance.shown = STATUS
    assert run() == ConfigError.exit_code
    assert "the instance has no dashboard: its admin server is off" in capsys.readouterr().err
