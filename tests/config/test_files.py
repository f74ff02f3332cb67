"""Applications in a file become models. All mistakes are reported at once, with their lines."""

from pathlib import Path
from typing import Any

import pytest

from app_toolkit.config.document import from_yaml
from app_toolkit.config.fields import merge
from app_toolkit.config.files import ConfigFile, parse, read_file
from app_toolkit.config.models import ClassConfig, DeploymentConfig, merge_overrides
from app_toolkit.config.options import InstanceOptions, Options
from app_toolkit.config.project import read_project, resolve_options
from app_toolkit.errors import ConfigError
from tests.docs.pages import page

FOLDER = Path("/srv/shop")

GOOD = """
host: 0.0.0.0
ssl_certfile: tls/cert.pem
applications:
  shop:
    target: shop.web:app
    route_prefix: /shop
    app_dir: src
    deployments:
      chat: {num_replicas: 3}
      writer:
        resources: {num_gpus: 0.5}
        batch: {embed: {max_batch_size: 8}}
        user_config: {token: "Bearer ${TOKEN}", plain: [1, null]}
  admin: {target: "admin:app", route_prefix: /admin}
"""


def read(text: str) -> ConfigFile:
    document = from_yaml(text, "app.yaml")
    return ConfigFile(document, FOLDER, *parse(document, FOLDER, InstanceOptions))


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(text)
    return str(refused.value).splitlines()


def application(deployment: str) -> str:
    return f"applications:\n  shop:\n    target: shop:app\n    deployments:\n      chat:\n        {deployment}\n"


def test_a_file_is_read_into_models() -> None:
    file = read(GOOD)
    assert file.given == {"host": "0.0.0.0", "ssl_certfile": "/srv/shop/tls/cert.pem"}
    shop, admin = file.applications.values()
    assert (shop.name, shop.options.target, shop.options.route_prefix) == ("shop", "shop.web:app", "/shop")
    assert (shop.app_dir, shop.working_dir, admin.app_dir) == ("/srv/shop/src", "/srv/shop", "/srv/shop")
    assert shop.deployments == {
        "chat": {"num_replicas": 3},
        "writer": {
            "resources": {"num_gpus": 0.5},
            "batch": {"embed": {"max_batch_size": 8}},
            "user_config": {"token": "Bearer ${TOKEN}", "plain": [1, None]},
        },
    }
    assert admin.deployments == {}


def test_all_mistakes_are_reported_in_the_order_of_their_lines() -> None:
    assert mistakes(
        """\
prot: 80
port: 70000
applications:
  shop:
    target: shop:app
    deployments:
      chat: {num_replicas: "2", max_ongoing_request: 3}
      writer:
        resources: {num_cpu: 1}
        placement_group_strategy: PACK
        batch: {embed: {max_batch_size: 0, size: 1}}
        user_config: {token: "${TOKEN", ok: "${OK}"}
        name: reader
    route_prefix: /a
    route_prefix: /b
  other:
    target: nothing
  third: {target: 'a:b', route_prefix: /a}
  Fourth: 3
  fifth: {}
"""
    ) == [
        "app.yaml:1: the file has no option 'prot'; did you mean 'port'?",
        "app.yaml:2: port = 70000: input should be less than or equal to 65535",
        "app.yaml:7: applications.shop.deployments.chat has no option 'max_ongoing_request'; did you mean "
        "'max_ongoing_requests'?",
        "app.yaml:7: applications.shop.deployments.chat.num_replicas = '2': it should be a number",
        "app.yaml:9: applications.shop.deployments.writer.resources has no option 'num_cpu'; did you mean 'num_cpus'?",
        "app.yaml:10: applications.shop.deployments.writer has no option 'placement_group_strategy'",
        "app.yaml:11: applications.shop.deployments.writer has no option 'batch.embed.size'",
        "app.yaml:11: applications.shop.deployments.writer.batch.embed.max_batch_size = 0: input should be greater "
        "than or equal to 1",
        "app.yaml:12: applications.shop.deployments.writer.user_config.token: a reference to the "
        "environment is ${NAME}, and a literal ${ is written $${",
        "app.yaml:13: applications.shop.deployments.writer.name: remove it: the key 'writer' is the name",
        "app.yaml:15: applications.shop.route_prefix appears twice, first on line 14",
        "app.yaml:17: applications.other.target = 'nothing': it should be 'module:attribute', as in shop.web:app",
        "app.yaml:18: applications.third.route_prefix = '/a': application 'shop' already has this prefix",
        "app.yaml:19: applications.Fourth = 3: it should be a table",
        "app.yaml:19: applications.Fourth: a name has at most 64 small letters, digits, - and _, and begins and ends "
        "with a letter or a digit",
        "app.yaml:20: applications.fifth needs 'target'",
    ]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("num_replicas: true", "num_replicas = True: it should be a number"),
        ("num_replicas: 0", "num_replicas = 0: input should be greater than or equal to 1"),
        ("num_replicas: [1]", "num_replicas = [1]: input should be a valid integer"),
        ("retry: some", "retry = 'some': input should be 'idempotent', 'all' or 'none'"),
        ("resources: {num_cpus: '1'}", "resources.num_cpus = '1': it should be a number"),
        ("resources: 1", "resources = 1: input should be a valid dictionary or instance of"),
        ("resources: {custom: {TPU: '1'}}", "resources.custom.TPU = '1': it should be a number"),
        ("batch: {embed: {max_batch_size: '3'}}", "batch.embed.max_batch_size = '3': it should be a number"),
    ],
)
def test_a_mistake_names_the_option_the_value_and_the_limit(option: str, said: str) -> None:
    [mistake] = mistakes(application(option))
    assert mistake.startswith(f"app.yaml:6: applications.shop.deployments.chat.{said}")


def test_an_application_may_choose_its_stream_log_but_its_url_has_no_password() -> None:
    text = "applications:\n  shop:\n    target: shop:app\n    stream_log: {}\n"
    assert read(text.format("redis://cache:6379/0")).applications["shop"].options.stream_log == "redis://cache:6379/0"
    (mistake,) = mistakes(text.format("redis://:s3cret@cache"))
    assert mistake.startswith("app.yaml:4: applications.shop.stream_log: a URL in options must not have a password")
    assert "s3cret" not in mistake


def test_an_application_may_have_a_logging_configuration() -> None:
    text = "applications:\n  shop:\n    target: shop:app\n    logging_config: {{version: 1, root: {{level: {}}}}}\n"
    config = read(text.format("DEBUG")).applications["shop"].options.logging_config
    assert config == {"version": 1, "root": {"level": "DEBUG"}}
    (written,) = page("docs/observability.md").part("Logs").shown("yaml")
    assert read(written).applications["shop"].options.logging_config == config
    (mistake,) = mistakes(text.format("LOUD"))
    assert mistake.startswith("app.yaml:4: applications.shop.logging_config: root has the level 'LOUD', and the levels")


def test_a_logging_configuration_has_no_references_and_a_literal_one_is_escaped() -> None:
    text = """\
applications:
  shop:
    target: shop:app
    logging_config:
      version: 1
      formatters: {short: {style: $, format: "{levelname} $message"}}
"""
    config = read(text.replace('"{', '"$${')).applications["shop"].config.logging_config
    assert config is not None
    assert config["formatters"] == {"short": {"style": "$", "format": "${levelname} $message"}}
    (mistake,) = mistakes(text.replace('"{', '"${'))
    assert mistake == (
        "app.yaml:6: applications.shop.logging_config.formatters.short.format = '${levelname} $message': only "
        "user_config and resources.ray.runtime_env may refer to environment variables, and a literal ${ is written "
        "$${"
    )


@pytest.mark.parametrize("text", ["- a", "3", "applications: [a]", "applications:\n  a:\n    deployments: 3\n"])
def test_value_in_place_of_a_table_is_refused(text: str) -> None:
    assert any("it should be a table" in mistake for mistake in mistakes(text))


def test_nearest_name_is_suggested_for_the_table_of_applications() -> None:
    text = "application:\n  shop:\n    target: shop:app\n"
    assert mistakes(text)[0] == "app.yaml:1: the file has no option 'application'; did you mean 'applications'?"


@pytest.mark.parametrize("target", ["my-app:app", "pkg.api-v1:app", "1app:app", "app copy:site.app"])
def test_target_may_be_in_a_module_that_no_import_statement_can_name(target: str) -> None:
    assert read(f"applications:\n  shop:\n    target: '{target}'\n").applications["shop"].options.target == target


@pytest.mark.parametrize(
    ("prefix", "meant"), [("shop", "/shop"), ("/shop/", "/shop"), ("//shop", "/shop"), ("/a?b", "/a/b"), ("''", "/")]
)
def test_message_about_a_route_prefix_shows_a_correct_one(prefix: str, meant: str) -> None:
    (mistake,) = mistakes(f"applications:\n  shop:\n    target: shop:app\n    route_prefix: {prefix}\n")
    assert "a route prefix begins with a slash, does not end with one, and has no ?, # or space" in mistake
    assert mistake.endswith(f"such as '{meant}'")


def test_variables_are_resolved_only_in_values_of_the_user() -> None:
    [mistake] = mistakes("host: ${HOST}\n" + application("user_config: {a: '${A}'}"))
    assert mistake == (
        "app.yaml:1: host = '${HOST}': only user_config and resources.ray.runtime_env may refer to environment "
        "variables, and a literal ${ is written $${"
    )
    assert read(application("resources: {ray: {runtime_env: {env_vars: {A: '${B}'}}}}")).variables == {"B"}


def test_error_names_the_line_of_each_masked_secret() -> None:
    file = read(application("user_config: {api_key: '***', url: 'x://me:***@host', greeting: '***'}"))
    with pytest.raises(ConfigError) as refused:
        file.check({})
    place = "app.yaml:6: applications.shop.deployments.chat.user_config"
    why = "*** is shown instead of a secret: write the secret or a reference ${NAME}"
    assert str(refused.value).splitlines() == [f"{place}.api_key: {why}", f"{place}.url: {why}"]


def test_error_names_the_line_of_a_missing_variable_and_shows_no_value() -> None:
    file = read(application("user_config: {a: '${A}', b: ['${B} ${C}'], c: '$${D}'}"))
    assert file.variables == {"A", "B", "C"}
    file.check({"A": "", "B": "s3cret", "C": "s3cret"})
    with pytest.raises(ConfigError) as refused:
        file.check({"C": "s3cret"})
    place = "app.yaml:6: applications.shop.deployments.chat.user_config"
    assert str(refused.value).splitlines() == [
        f"{place}.a = '${{A}}': the environment variable A is not set",
        f"{place}.b.0 = '${{B}} ${{C}}': the environment variable B is not set",
    ]


def test_a_file_that_is_not_there_or_says_nothing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.yaml cannot be read: .*No such file"):
        read_file(tmp_path / "absent.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"empty.yaml has no applications"):
        read_file(tmp_path / "empty.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"bytes.yaml cannot be read: 'utf-8' codec"):
        read_file(tmp_path / "bytes.yaml")


def test_pyproject_may_have_applications_and_errors_name_them(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.app_toolkit]\nport = 9000\n[tool.app_toolkit.applications.shop]\ntarget = 'shop:app'\n")
    project = read_project(tmp_path)
    assert project.defaults.given == {"port": 9000}
    assert project.file is not None
    assert project.file.application("shop").app_dir == str(tmp_path)
    with pytest.raises(ConfigError, match="has no application 'chat', only shop"):
        project.file.application("chat")
    path.write_text(
        "[tool.app_toolkit]\nport = '9000'\nprot = 1\n[tool.app_toolkit.applications.shop.deployments.a]\n"
        "num_replicas = 0\n"
    )
    with pytest.raises(ConfigError) as refused:
        read_project(tmp_path)
    assert sorted(str(refused.value).splitlines()) == [
        f"{path}: [tool.app_toolkit] has no option 'prot'; did you mean 'port'?",
        f"{path}: [tool.app_toolkit].applications.shop needs 'target'",
        f"{path}: [tool.app_toolkit].applications.shop.deployments.a.num_replicas = 0: input should be greater than "
        'or equal to 1, or "auto"',
        f"{path}: [tool.app_toolkit].port = '9000': it should be a number",
    ]


def test_a_file_overrides_the_project_and_is_overridden_by_the_environment_and_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.app_toolkit]\nport = 1\nmax_connections = 1\nhost = '::1'\n")
    project = read_project(tmp_path)
    file = read("port: 2\nmax_connections: 2\n" + application("num_replicas: 1"))
    monkeypatch.setenv("APP_TOOLKIT_MAX_CONNECTIONS", "3")
    chosen = resolve_options(project, Options(), file)
    assert (chosen.port, chosen.max_connections, chosen.host) == (2, 3, "::1")


def test_an_option_replaces_that_of_the_code_and_its_parts_do_so_one_by_one() -> None:
    code = {
        "num_replicas": 2,
        "resources": {"num_cpus": 2, "custom": {"TPU": 1}},
        "batch": {"embed": {"max_batch_size": 8, "batch_wait_timeout_s": 1}, "score": {"max_batch_size": 2}},
        "user_config": {"a": 1},
    }
    file = {
        "resources": {"num_gpus": 1, "custom": {"NPU": 1}},
        "batch": {"embed": {"max_batch_size": 4}, "rank": {"max_batch_size": 3}},
        "user_config": {"b": 2},
    }
    assert merge(ClassConfig, code, file) == {
        "num_replicas": 2,
        "resources": {"num_cpus": 2, "num_gpus": 1, "custom": {"NPU": 1}},
        "batch": {
            "embed": {"max_batch_size": 4, "batch_wait_timeout_s": 1},
            "score": {"max_batch_size": 2},
            "rank": {"max_batch_size": 3},
        },
        "user_config": {"b": 2},
    }
    assert merge(DeploymentConfig, {}, {"num_replicas": 3}) == {"num_replicas": 3}
    assert merge(ClassConfig, {"user_config": {"a": 1}}, {"user_config": None}) == {"user_config": None}


FOLLOWS = {"min_replicas": 0, "max_replicas": 5}


@pytest.mark.parametrize(
    ("code", "file", "number", "config"),
    [
        ({"num_replicas": "auto"}, {"num_replicas": 2}, 2, None),
        ({"autoscaling_config": FOLLOWS}, {"num_replicas": 2}, 2, None),
        ({"num_replicas": 3}, {"num_replicas": "auto"}, "auto", {}),
        ({"num_replicas": 3}, {"autoscaling_config": FOLLOWS}, "auto", FOLLOWS),
        ({"num_replicas": 3}, {"autoscaling_config": None}, 3, None),
        ({"autoscaling_config": FOLLOWS}, {"num_replicas": "auto"}, "auto", FOLLOWS),
        (
            {"autoscaling_config": FOLLOWS},
            {"autoscaling_config": {"max_replicas": 9}},
            "auto",
            {**FOLLOWS, "max_replicas": 9},
        ),
        ({"autoscaling_config": FOLLOWS}, {"max_ongoing_requests": 9}, "auto", FOLLOWS),
    ],
)
def test_num_replicas_replaces_autoscaling_and_the_reverse(
    code: dict[str, Any], file: dict[str, Any], number: object, config: object
) -> None:
    options = merge_overrides(DeploymentConfig(name="a", **code), file)
    result = DeploymentConfig(**options)
    assert result.num_replicas == number
    followed = result.autoscaling_config
    assert (None if followed is None else followed.model_dump(exclude_unset=True)) == config
