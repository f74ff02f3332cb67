"""Options come from the command line, the environment, the project and the defaults, in this order."""

import json
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit.cli import main as command_line
from app_toolkit.cli.run import RunOptions
from app_toolkit.config.models import HTTPOptions
from app_toolkit.config.options import Options, StartOptions
from app_toolkit.config.project import RunDefaults, read_project
from app_toolkit.config.settings import read_settings, start_options
from app_toolkit.declare.deployment import deployment
from app_toolkit.engines.ray.engine import RayEngine
from app_toolkit.engines.select import engine
from app_toolkit.errors import ConfigError
from app_toolkit.operate import launch
from app_toolkit.running import deploy, run
from tests.docs.pages import page
from tests.operate.scripted import Unloaded

VARIABLES = ("PORT", "FORWARDED_ALLOW_IPS", *(f"APP_TOOLKIT_{name.upper()}" for name in Options.model_fields))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app in it, which is the current one; no variable of ours is set."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # so that a variable that the test sets is removed after it
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text("from fastapi import FastAPI\napp = FastAPI()\n")
    return tmp_path


@pytest.fixture
def options_of(project: Path, monkeypatch: pytest.MonkeyPatch):
    """The options that a command line comes to, without running it."""

    def options_of(*arguments: str) -> RunOptions:
        taken: list[RunOptions] = []
        monkeypatch.setattr(command_line, "serve_on_cluster", lambda options, screen, engine: taken.append(options))
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


def test_the_environment_overrides_the_project_and_the_command_line_both(
    project: Path, options_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text("[tool.app_toolkit]\nport = 9000\n")
    monkeypatch.setenv("PORT", "9001")
    assert options_of().http.port == 9001
    monkeypatch.setenv("APP_TOOLKIT_PORT", "9002")
    assert options_of().http.port == 9002
    assert options_of("--port", "0").http.port == 0


EACH = {
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("9000", 9000),
    "edge": ("replica", "replica"),
    "proxies_per_node": ("2", 2),
    "keep_alive_timeout_s": ("2.5", 2.5),
    "head_timeout_s": ("3", 3.0),
    "min_body_rate": ("700", 700.0),
    "body_grace_s": ("7", 7.0),
    "max_connections": ("77", 77),
    "max_requests_per_client": ("70", 70),
    "tag_source": ("header:x-tag", "header:x-tag"),
    "rate_limit_storage": ("redis", "redis"),
    "server_timing": ("true", True),
    "forwarded_allow_ips": ("10.0.0.0/8", "10.0.0.0/8"),
    "ssl_keyfile": ("/k.pem", "/k.pem"),
    "ssl_certfile": ("/c.pem", "/c.pem"),
    "access_log": ("false", False),
    "admin": ("false", False),
    "admin_host": ("::1", "::1"),
    "admin_port": ("9001", 9001),
}


def test_every_option_of_the_proxies_is_named_here() -> None:
    assert EACH.keys() == HTTPOptions.model_fields.keys()


@pytest.mark.parametrize("name", EACH)
def test_an_option_has_one_name_in_every_place(
    project: Path, options_of, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    written, meant = EACH[name]
    flag = "--" + name.replace("_", "-")
    line = [f"--no-{name.replace('_', '-')}"] if meant is False else [flag, written]
    assert getattr(options_of(*line).http, name) == meant
    (project / "pyproject.toml").write_text(f"[tool.app_toolkit]\n{name} = {json.dumps(meant)}\n")
    assert getattr(options_of().http, name) == meant
    (project / "pyproject.toml").unlink()
    monkeypatch.setenv(f"APP_TOOLKIT_{name.upper()}", written)
    assert options_of().http == HTTPOptions(**{name: meant}), "and no other option"


def test_a_flag_can_say_the_default_again(project: Path, options_of) -> None:
    (project / "pyproject.toml").write_text("[tool.app_toolkit]\naccess_log = false\nport = 9000\n")
    assert not options_of().http.access_log
    again = options_of("--access-log", "true", "--port", "8000").http
    assert (again.access_log, again.port) == (True, 8000)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *((word, True) for word in ("true", "yes", "Y", "on", "t", "1")),
        *((word, False) for word in ("False", "no", "N", "off", "f", "0")),
        ("-", "-"),
        ("/var/log/access.json", "/var/log/access.json"),
    ],
)
def test_the_access_log_is_a_file_or_standard_output_or_switched(
    project: Path, options_of, said: str, meant: bool | str
) -> None:
    assert options_of("--access-log", said).http.access_log == meant
    assert options_of("--access-log", "access.json").http.access_log == str(project / "access.json")


@pytest.mark.parametrize("name", ["main.py", "app.yaml", "app.YML", "pyproject.toml"])
@pytest.mark.usefixtures("project")
def test_a_source_file_is_not_taken_for_an_access_log(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run", "--access-log", name])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--access-log = '{name}': an access log cannot be a file whose name ends in .py, .yaml, .yml or" in said


OF_START = [
    ("log_level", "DEBUG", "debug"),
    ("log_format", "JSON", "json"),
    ("log_file", "-", "-"),
    ("resources", '{"NPU": 2}', {"NPU": 2.0}),
]
"""Each option that an instance gets when it starts, a value other than the default, and what its processes read."""


def test_each_option_of_a_start_is_among_those_that_are_tested() -> None:
    assert [name for name, _, _ in OF_START] == [*StartOptions.model_fields]


@pytest.mark.parametrize(("name", "value", "read"), OF_START)
def test_processes_of_an_instance_get_the_options_of_its_start(options_of, name: str, value: str, read: object) -> None:
    options_of("--" + name.replace("_", "-"), value)
    assert getattr(start_options(), name) == read
    options_of()
    assert getattr(start_options(), name) == read, "what the environment says is the default"


def test_an_invalid_option_of_a_start_is_an_error_that_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOOLKIT_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match=r"^the environment variable APP_TOOLKIT_LOG_LEVEL = 'loud': input should be"):
        start_options()


@pytest.mark.parametrize(("name", "value", "_"), OF_START)
def test_an_option_of_a_start_without_effect_is_reported(
    options_of, capsys: pytest.CaptureFixture[str], name: str, value: str, _: object
) -> None:
    flag = "--" + name.replace("_", "-")
    options_of(flag, value)
    assert flag not in "".join(capsys.readouterr())
    options_of(flag, value, "--address", "auto")
    assert f"{flag} has no effect here: the instance runs already" in " ".join("".join(capsys.readouterr()).split())
    options: Any = {name: value}
    with pytest.raises(ConfigError, match=rf"^deploy\(\) has no option '{name}': the instance runs already"):
        deploy(FastAPI(), **options)


@pytest.mark.parametrize("place", ["command", "environment", "project"])
def test_the_engine_is_an_option_of_each_source(project: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    engines: list[object] = []
    monkeypatch.setattr(command_line, "serve_on_cluster", lambda options, screen, engine: engines.append(engine))
    if place == "environment":
        monkeypatch.setenv("APP_TOOLKIT_ENGINE", "ray")
    if place == "project":
        (project / "pyproject.toml").write_text('[tool.app_toolkit]\nengine = "ray"\n')
    with pytest.raises(SystemExit):
        command_line.main(["run", *(["--engine", "ray"] if place == "command" else [])])
    assert [type(chosen) for chosen in engines] == [RayEngine]


def test_records_of_all_processes_go_to_standard_output_only_where_the_instance_starts(
    options_of, capsys: pytest.CaptureFixture[str]
) -> None:
    options_of("--log-file", "-")
    with pytest.raises(ConfigError, match=r"^log_file = '-' shows only the log records of an instance that this "):
        launch.check(engine(), "127.0.0.1:1", HTTPOptions())
    with pytest.raises(SystemExit):
        command_line.main(["run", "--log-file", "app.log"])
    assert "--log-file = 'app.log': input should be '-'" in capsys.readouterr().err


def test_on_ray_replicas_accept_no_clients() -> None:
    with pytest.raises(ConfigError, match=r"^edge = 'replica' needs the engine on processes of one machine: "):
        launch.check(RayEngine(), None, HTTPOptions(edge="replica"))


def test_commands_of_the_page_log_to_standard_output(
    project: Path, options_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "shop.py").write_text((project / "main.py").read_text())
    logs = page("docs/observability.md").part("Logs")
    (image,), (unit,) = logs.shown("dockerfile"), logs.shown("ini")
    service = ConfigParser(interpolation=None)
    service.read_string(unit)
    for command in (json.loads(image.removeprefix("CMD ")), service["Service"]["ExecStart"].split()):
        monkeypatch.delenv("APP_TOOLKIT_LOG_FILE", raising=False)
        options_of(*command[2:])
        assert (start_options().log_file, start_options().log_format) == ("-", "json")


class Answer:
    def say(self) -> int:
        return 42


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("name", "_", "value"), OF_START)
def test_an_instance_that_runs_takes_no_option_of_a_start_from_a_script(name: str, _: str, value: object) -> None:
    options: Any = {name: value}
    with pytest.raises(ConfigError, match=rf"^run\(\) cannot apply {name} = .*: the instance runs already"):
        run(deployment(Answer).bind(), address="127.0.0.1:1", **options)


def test_variable_of_uvicorn_for_trusted_proxies_is_read(options_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert options_of().http.forwarded_allow_ips == "*"
    monkeypatch.setenv("APP_TOOLKIT_FORWARDED_ALLOW_IPS", "10.0.0.1")
    assert options_of().http.forwarded_allow_ips == "10.0.0.1"


def test_ray_address_names_the_cluster_if_no_other_option_does(
    project: Path, options_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert options_of().address == "10.0.0.1:6379"
    assert options_of("--address", "10.0.0.2:6379").address == "10.0.0.2:6379"
    monkeypatch.setenv("APP_TOOLKIT_ADDRESS", "auto")
    assert options_of().address == "auto"


def test_rays_variable_may_ask_for_a_local_ray(project: Path, options_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert options_of().address is None


def test_a_certificate_is_looked_for_in_this_folder(project: Path, options_of) -> None:
    http = options_of("--ssl-certfile", "cert.pem", "--ssl-keyfile", "keys/key.pem").http
    assert (http.ssl_certfile, http.ssl_keyfile) == (str(project / "cert.pem"), str(project / "keys/key.pem"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "70000"], "--port = 70000: input should be less than or equal to 65535"),
        (["--max-connections", "0"], "--max-connections = 0: input should be greater than or equal to 1"),
        (["--proxies-per-node", "65"], "--proxies-per-node = 65: input should be less than or equal to 64"),
        (
            ["--forwarded-allow-ips", "localhost"],
            "--forwarded-allow-ips = 'localhost': 'localhost' does not appear to be an IPv4 or IPv6 network; it should "
            "be addresses, networks such as 10.0.0.0/8, or *",
        ),
    ],
)
def test_a_mistake_names_its_flag(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"Error: {sentence}\n"


def test_invalid_certificate_is_refused_before_anything_starts(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "engine_of_run", lambda *_: Unloaded())
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run", "--port", "0", "--ssl-certfile", "absent.pem"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err == f"Error: the certificate '{project}/absent.pem' cannot be read: No such file or directory\n"
    assert said.out == ""


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


def test_options_of_fastapi_are_ignored(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.fastapi]\nentrypoint = "shop:app"\nother = 1\n')
    assert read_project(project).entrypoint == "shop:app"
    assert read_project(project).defaults == RunDefaults()


def test_a_variable_that_holds_nonsense_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOOLKIT_PORT", "many")
    with pytest.raises(ConfigError, match="the environment variable APP_TOOLKIT_PORT = 'many': input should be"):
        read_settings()


def test_an_empty_variable_is_not_set(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    assert read_settings().given == {}
