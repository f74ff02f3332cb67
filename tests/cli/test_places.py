"""Help, versions, and addresses that every command refuses."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import app_toolkit
from app_toolkit.cli import main as command_line
from app_toolkit.config.models import ClassConfig
from app_toolkit.config.suggestions import OTHER_COMMANDS, OTHER_FLAGS
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


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("run --workers 4", "No such option: --workers; use --num-replicas of `app-toolkit run`: each replica is a"),
        ("dev -w 4", "No such option: -w; use --num-replicas of `app-toolkit run`: each replica is a process."),
        ("deploy --num-proxies 2", "No such option: --num-proxies; use 'proxies_per_node'."),
        ("run --max-surge 1", "No such option: --max-surge; 'max_surge' is an option of a deployment: set it in the"),
        ("run --num-replicas", "Option '--num-replicas' requires an argument.\n"),
        ("run --prot 3", "No such option: --prot (Possible options: --host, --port)"),
        ("serve", "No such command 'serve'; use `app-toolkit run`."),
        ("shop.py", "No such command 'shop.py'; to serve it, use `app-toolkit run shop.py`."),
        ("statu", "No such command 'statu'. Did you mean 'status'?"),
    ],
)
def test_an_option_or_a_command_of_another_program_names_ours(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(command.split())
    assert ended.value.code == 2
    assert f"Error: {sentence}" in capsys.readouterr().err


def test_named_files_exist(capsys: pytest.CaptureFixture[str]) -> None:
    def help_text(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            command_line.main([*arguments, "--help"])
        return capsys.readouterr().out

    flags = set(re.findall(r"--[\w-]+", " ".join(map(help_text, ("run", "dev", "deploy", "plan"))))) | {"--version"}
    commands = set(re.findall(r"^  (\w+) ", help_text(), re.MULTILINE))
    suggestions = [*OTHER_FLAGS.values(), *(f"`app-toolkit {each}`" for each in OTHER_COMMANDS.values())]
    for sentence in suggestions:
        assert set(re.findall(r"(?<!\w)--[\w-]+", sentence)) <= flags
        assert set(re.findall(r"`app-toolkit (\w+)", sentence)) <= commands
        assert set(re.findall(r"'(\w+)'", sentence)) <= ClassConfig.model_fields.keys()
    assert not flags & OTHER_FLAGS.keys() - {"-b", "-w"}
    assert not commands & OTHER_COMMANDS.keys()


@pytest.mark.parametrize("place", ["option", "RAY_ADDRESS", "APP_TOOLKIT_ADDRESS"])
@pytest.mark.parametrize(
    "command",
    [
        *("run shop.py", "deploy shop.py", "status", "scale a/b 2", "traffic a", "promote a", "abort a", "rollback a"),
        *("rollout a", "config", "events", "logs", "delete a", "shutdown"),
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
        lambda: app_toolkit.scale("a/b", 2, address=CLIENT),
        lambda: app_toolkit.set_traffic("a", {1: 1}, address=CLIENT),
        lambda: app_toolkit.rollout("a", address=CLIENT),
        lambda: app_toolkit.pause_rollout("a", address=CLIENT),
        lambda: app_toolkit.resume_rollout("a", address=CLIENT),
        lambda: app_toolkit.promote("a", address=CLIENT),
        lambda: app_toolkit.abort("a", address=CLIENT),
        lambda: app_toolkit.rollback("a", address=CLIENT),
        lambda: app_toolkit.delete("a", address=CLIENT),
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
