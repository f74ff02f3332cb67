"""Where options come from: the command line, the environment, the project, the defaults, in this order."""

from pathlib import Path

import pytest

from app_toolkit.cli import main as command_line
from app_toolkit.cli.run import RunOptions
from app_toolkit.config.options import Options
from app_toolkit.config.project import RunDefaults, read_project
from app_toolkit.config.settings import read_settings
from app_toolkit.errors import ConfigError

VARIABLES = ("PORT", "FORWARDED_ALLOW_IPS", *(f"APP_TOOLKIT_{name.upper()}" for name in Options.model_fields))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app in it, which is the current one; no variable of ours is set."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text("from fastapi import FastAPI\napp = FastAPI()\n")
    return tmp_path


@pytest.fixture
def options_of(project: Path, monkeypatch: pytest.MonkeyPatch):
    """The options that a command line comes to, without running it."""

    def options_of(*arguments: str) -> RunOptions:
        taken: list[RunOptions] = []
        monkeypatch.setattr(command_line, "serve_on_ray", lambda options, screen, engine: taken.append(options))
        with pytest.raises(SystemExit) as ended:
            command_line.main(["run", *arguments])
        assert ended.value.code == 0
        return taken[0]

    return options_of


def test_without_a_word_the_defaults_hold(options_of) -> None:
    options = options_of()
    assert (options.http.host, options.http.port, options.address) == ("127.0.0.1", 8000, None)
    assert (options.plan.name, options.plan.route_prefix, options.plan.num_replicas) == ("default", "/", None)


def test_the_project_gives_defaults(project: Path, options_of) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.app_toolkit]\nhost = "0.0.0.0"\nport = 9000\nnum_replicas = 3\nname = "shop"\n'
        'route_prefix = "/shop"\naddress = "auto"\n'
    )
    options = options_of()
    assert (options.http.host, options.http.port, options.address) == ("0.0.0.0", 9000, "auto")
    assert (options.plan.name, options.plan.route_prefix, options.plan.num_replicas) == ("shop", "/shop", 3)


def test_the_environment_overrules_the_project_and_the_command_line_both(
    project: Path, options_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text("[tool.app_toolkit]\nport = 9000\n")
    monkeypatch.setenv("PORT", "9001")
    assert options_of().http.port == 9001
    monkeypatch.setenv("APP_TOOLKIT_PORT", "9002")
    assert options_of().http.port == 9002
    assert options_of("--port", "0").http.port == 0


def test_an_unknown_key_is_refused_by_name(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.app_toolkit]\nprot = 9000\n")
    with pytest.raises(ConfigError, match=r"pyproject.toml: \[tool.app_toolkit\] has no option 'prot'"):
        read_project(project)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[tool.app_toolkit]\nport = 70000", r"\[tool.app_toolkit\].port = 70000: input should be less than"),
        (
            "[tool.app_toolkit]\nnum_replicas = 0",
            r"num_replicas = 0: input should be greater than or equal to 1",
        ),
        ("[tool]\napp_toolkit = 3", "'app_toolkit' should be a table, not 3"),
        ("[tool.fastapi]\nentrypoint = 3", "entrypoint = 3: it should be 'module:attribute'"),
        ("port =", "pyproject.toml cannot be read"),
    ],
)
def test_a_mistake_in_the_project_is_one_sentence(project: Path, content: str, sentence: str) -> None:
    (project / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        read_project(project)


def test_what_belongs_to_fastapi_is_left_to_it(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.fastapi]\nentrypoint = "shop:app"\nother = 1\n')
    assert read_project(project).entrypoint == "shop:app"
    assert read_project(project).defaults == RunDefaults()


def test_a_folder_without_a_project_has_no_opinion(project: Path) -> None:
    assert read_project(project).entrypoint is None


def test_a_variable_that_holds_nonsense_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOOLKIT_PORT", "many")
    with pytest.raises(ConfigError, match="the environment variable APP_TOOLKIT_PORT = 'many': input should be"):
        read_settings()


def test_an_empty_variable_is_not_set(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    assert read_settings().given == {}


def test_a_client_address_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run", "--address", "ray://head:10001"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("Error: the address 'ray://head:10001' is one of Ray Client")


def test_a_misspelt_file_is_told_before_anything_starts(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run", "nowhere.py"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err == f"Error: there is no file 'nowhere.py' in {project}\n"
    assert said.out == ""
