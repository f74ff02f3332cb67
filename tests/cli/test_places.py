"""Help, versions, and addresses that every command refuses."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import app_toolkit
from app_toolkit.cli import main as command_line
from app_toolkit.errors import ConfigError

ROOT = Path(__file__).parents[2]
CLIENT = "ray://head:10001"
REFUSED = "the address 'ray://head:10001' is for Ray Client, which app_toolkit does not support: run this on"


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--version"])
    assert ended.value.code == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert capsys.readouterr().out == f"app-toolkit {project['version']}\n"


@pytest.mark.parametrize("place", ["option", "RAY_ADDRESS", "APP_TOOLKIT_ADDRESS"])
@pytest.mark.parametrize(
    "command",
    [
        *("run shop.py", "deploy shop.py", "status", "scale a/b 2", "traffic a", "promote a", "abort a", "rollback a"),
        *("rollout a", "history a", "config", "events", "logs", "restart a", "delete a", "shutdown"),
        *("freeze a --reason b", "unfreeze a"),
    ],
)
def test_an_address_of_ray_client_is_refused_by_every_command(
    command: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("from fastapi import FastAPI\napp = FastAPI()\n")
    arguments = command.split()
    if place == "option":
        arguments += ["--address", CLIENT]
    else:
        monkeypatch.setenv(place, CLIENT)
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: {REFUSED}")


async def hello(request: object) -> str:
    return "hello"


def test_an_address_of_ray_client_is_refused_from_python() -> None:
    for call in (
        lambda: app_toolkit.run(hello, address=CLIENT),
        lambda: app_toolkit.deploy(hello, address=CLIENT),
        lambda: app_toolkit.connect(CLIENT),
        lambda: app_toolkit.status(address=CLIENT),
        lambda: app_toolkit.get_handle("a", "b", address=CLIENT),
    ):
        with pytest.raises(ConfigError, match=REFUSED):
            call()


def test_windows_is_refused_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.platform = 'win32'; import app_toolkit"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "ImportError: app_toolkit needs Unix sockets and file locks, which Windows does not have: install it in WSL 2, "
        "where it runs as on Linux"
    )
