"""The configuration of an instance: what is written can be applied again, and references keep their values hidden."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit, split
from app_toolkit.client import configuration
from app_toolkit.client.commands import Delete, Deploy, GetApplication, GetApplications, GetEvents, Scale
from app_toolkit.config.document import from_yaml
from app_toolkit.config.files import applied, parse
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import InstanceOptions
from app_toolkit.core.diff import difference
from app_toolkit.errors import ConfigError
from app_toolkit.planning import plan, shared_logs
from tests.admin.instance import Instance
from tests.core.specs import application

SECRET = "s3cret-of-the-environment"
PLAIN = "hunter22-of-the-file"


class Writer(Deployment, num_replicas=3, user_config={"key": "of the code"}, resources={"num_cpus": 0.2}):
    def reconfigure(self, user_config: dict[str, Any]) -> None: ...


def logging_config(level: str) -> dict[str, Any]:
    formatters = {"short": {"style": "$", "format": "${levelname} $${message}"}}
    return {"version": 1, "formatters": formatters, "root": {"level": level}}


small, large = Writer.bind(), Writer.options(name="large").bind()
app = Toolkit(
    deployment=DeploymentConfig(name="front", num_replicas="auto"),
    stream_log="shared",
    logging_config=logging_config("INFO"),
)


@app.get("/")
async def root(writer: Annotated[Writer, Depends(split({small: 0.75, large: 0.25}, name="writers"))]) -> None: ...


def planned(**overrides: dict[str, Any]) -> ApplicationSpec:
    spec = plan(
        app, target="shop.web:app", app_dir=".", working_dir="data", name="shop", loop="asyncio", overrides=overrides
    )
    return applied(spec, {"KEY": SECRET})


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance()
    config = {"user_config": {"key": "Bearer ${KEY}", "literal": "$${KEY}"}, "num_replicas": 1}
    for spec in shared_logs([planned()]):
        instance.execute(Deploy(spec))
    instance.execute(Deploy(planned(large=config)))
    instance.execute(Deploy(application("batch", prefix=None)))
    instance.execute(Deploy(application("jobs", prefix=None)))
    yield instance
    instance.close()


def read(instance: Instance) -> Any:
    return from_yaml(configuration.write(instance), "test").data


def change(instance: Instance, config: Any) -> dict[str, int]:
    return configuration.change(instance, configuration.read(json.dumps(config).encode(), is_json=True))


def spec_of(instance: Instance, name: str = "shop") -> ApplicationSpec:
    return instance.deployed(name)


def test_deploying_what_is_written_to_the_same_code_changes_nothing(instance: Instance) -> None:
    document = from_yaml(configuration.write(instance), "app.yaml")
    _, applications = parse(document, Path(), InstanceOptions)
    assert applications.keys() == {"shop", "batch", "jobs"}, "the shared stream log comes by itself"
    shop = applications["shop"]
    again = plan(
        app,
        target=shop.options.target,
        app_dir=shop.options.app_dir,
        working_dir=shop.options.working_dir,
        name="shop",
        stream_log=shop.options.stream_log,
        loop=shop.options.loop,
        logging_config=shop.logging_config,
        overrides=shop.deployments,
    )
    assert difference(spec_of(instance), applied(again, {"KEY": SECRET})).is_empty
    assert applied(again, {"KEY": SECRET}).deployments == spec_of(instance).deployments


def test_references_are_written_instead_of_their_values(instance: Instance) -> None:
    config = read(instance)["applications"]["shop"]["deployments"]["large"]["user_config"]
    assert config == {"key": "Bearer ${KEY}", "literal": "$${KEY}"}
    assert SECRET not in configuration.write(instance)
    assert SECRET not in repr([instance.execute(GetApplications()), instance.execute(GetApplication("shop"))])
    assert spec_of(instance).deployment("large").config.user_config["key"] == f"Bearer {SECRET}"  # type: ignore[union-attr,index]


def test_what_is_written_changes_nothing(instance: Instance) -> None:
    before = instance.execute(GetApplications())
    assert (
        configuration.change(instance, configuration.read(configuration.write(instance).encode(), is_json=False)) == {}
    )
    assert change(instance, read(instance)) == {}
    assert instance.execute(GetApplications()) == before


def test_only_what_differs_is_changed_and_the_values_of_references_stay(instance: Instance) -> None:
    config = read(instance)
    shop = config["applications"]["shop"]
    shop["splits"]["writers"] = {"writer": 1, "large": 1}
    shop["logging_config"]["root"]["level"] = "DEBUG"
    shop["deployments"]["large"]["user_config"] |= {"other": "Bearer ${KEY}", "more": 1}
    shop["deployments"]["front"]["autoscaling_config"]["max_replicas"] = 7
    before = spec_of(instance)
    revision = instance.execute(GetApplication("shop"))[1]
    assert change(instance, config) == {"shop": revision + 1}
    after = spec_of(instance)
    assert after.split("writers").shares == {"writer": 0.5, "large": 0.5}
    assert after.deployment("large").config.user_config == {  # type: ignore[union-attr]
        "key": f"Bearer {SECRET}",
        "literal": "${KEY}",
        "other": f"Bearer {SECRET}",
        "more": 1,
    }
    assert after.deployment("front").config.autoscaling_config.max_replicas == 7  # type: ignore[union-attr]
    assert after.logging_config == logging_config("DEBUG")
    assert after.deployment("writer") == before.deployment("writer")
    assert read(instance) == {**config, "applications": {**config["applications"], "shop": spelled(shop)}}


def spelled(shop: Any) -> Any:
    return {**shop, "splits": {"writers": {"writer": 0.5, "large": 0.5}}}


def secrets(api_key: str, **more: str) -> dict[str, Any]:
    """The options of a deployment with a secret as plain text."""
    return {"user_config": {"api_key": api_key, "header": "Bearer ${KEY}", "greeting": "***", **more}}


WITH_SECRETS = {
    **secrets(PLAIN),
    "resources": {"ray": {"runtime_env": {"env_vars": {"URL": f"x://a:{PLAIN}@h"}}}},
}


@pytest.fixture
def vault(instance: Instance) -> Iterator[Instance]:
    """The instance, with secrets that are plain text in the options of an application."""
    spec = planned(large=WITH_SECRETS)
    instance.execute(Deploy(spec.model_copy(update={"name": "vault", "route_prefix": "/vault"})))
    yield instance
    instance.execute(Delete("vault"))


def large_of(config: Any) -> Any:
    return config["applications"]["vault"]["deployments"]["large"]


def user_config(instance: Instance) -> Any:
    return spec_of(instance, "vault").deployment("large").config.user_config  # type: ignore[union-attr]


def test_secrets_that_are_plain_text_are_masked(vault: Instance) -> None:
    large = large_of(read(vault))
    assert large["user_config"] == {"api_key": "***", "header": "Bearer ${KEY}", "greeting": "***"}
    assert large["resources"]["ray"]["runtime_env"] == {"env_vars": {"URL": "x://a:***@h"}}
    shown = [configuration.write(vault), vault.execute(GetApplications()), vault.execute(GetApplication("vault"))]
    assert PLAIN not in repr(shown)


def test_masked_secrets_stay_if_other_options_change(vault: Instance) -> None:
    before = spec_of(vault, "vault")
    config = read(vault)
    assert change(vault, config) == {}
    assert spec_of(vault, "vault") == before
    large_of(config)["user_config"]["greeting"] = "hello"
    assert change(vault, config) == {"vault": 2}
    assert user_config(vault) == {
        "api_key": PLAIN,
        "header": f"Bearer {SECRET}",
        "greeting": "hello",
    }
    after = spec_of(vault, "vault").deployment("large").config.resources
    assert after == before.deployment("large").config.resources


def test_a_changed_secret_is_applied_and_the_difference_names_its_option(vault: Instance) -> None:
    before = spec_of(vault, "vault")
    config = read(vault)
    large_of(config).update(secrets("hunter22-of-a-client"))
    assert change(vault, config) == {"vault": 2}
    assert user_config(vault)["api_key"] == "hunter22-of-a-client"
    assert str(difference(before, spec_of(vault, "vault"))) == "large reconfigured (user_config changed)"
    assert "hunter22" not in repr([read(vault), vault.execute(GetEvents("vault"))])
    assert change(vault, config) == {}, "it is the secret that is deployed"


def test_masked_secret_is_refused_where_none_is_deployed(vault: Instance) -> None:
    before = spec_of(vault, "vault")
    config = read(vault)
    large_of(config).update(secrets("***", new_token="***"))
    with pytest.raises(ConfigError, match=r"^vault/large: user_config\.new_token: \*\*\* keeps a deployed secret only"):
        change(vault, config)
    assert spec_of(vault, "vault") == before


def test_options_that_are_not_named_stay(instance: Instance) -> None:
    revision = instance.execute(Scale("shop", "writer", 4))
    changed = change(
        instance, {"applications": {"shop": {"target": "shop.web:app", "deployments": {"large": {"num_replicas": 2}}}}}
    )
    assert changed == {"shop": revision + 1}
    replicas = {each.config.name: each.config.num_replicas for each in spec_of(instance).deployments}
    assert replicas == {"front": "auto", "writer": 4, "large": 2}


def test_options_of_the_proxies_change_together_with_an_application(instance: Instance) -> None:
    before = instance.execute(GetApplication("batch"))[1]
    only = {name: each for name, each in read(instance)["applications"].items() if name != "shop"}
    with pytest.raises(ConfigError, match=r"^the proxies of this instance also serve 'shop'"):
        change(instance, {"keep_alive_timeout_s": 7, "applications": only})
    with pytest.raises(ConfigError, match="options of the proxies change together with an application"):
        change(instance, {"keep_alive_timeout_s": 7})
    shop = {"shop": read(instance)["applications"]["shop"]}
    revision = instance.execute(GetApplication("shop"))[1]
    assert change(instance, {"keep_alive_timeout_s": 7, "applications": shop}) == {"shop": revision + 1}
    assert instance.execute(GetApplications())[1].keep_alive_timeout_s == 7
    assert instance.execute(GetApplication("batch"))[1] == before


@pytest.mark.parametrize(
    ("shop", "message"),
    [
        ({"target": "other:app"}, r"applications\.shop\.target: only `app-toolkit deploy` changes this"),
        ({"app_dir": "/srv"}, r"applications\.shop\.app_dir: only `app-toolkit deploy`"),
        ({"traffic": {"percent": 10}}, r"applications\.shop\.traffic: only `app-toolkit deploy`"),
        ({"deployments": {"none": {}}}, "application 'shop' has no deployment 'none'; it has front, writer, large"),
        ({"deployments": {"front": {"sync_threads": 2}}}, "has no option 'sync_threads'"),
        ({"deployments": {"writer": {"num_replicas": 0}}}, "num_replicas = 0"),
        ({"splits": {"none": {"a": 1}}}, "application 'shop' has no split 'none'"),
        (
            {"deployments": {"writer": {"user_config": {"key": "${APP_TOOLKIT_ADMIN_TOKEN}"}}}},
            "shop/writer: the value of APP_TOOLKIT_ADMIN_TOKEN in .* is only known where `app-toolkit deploy` runs",
        ),
        ({"deployments": {"writer": {"user_config": {"key": "${"}}}}, r"a reference to the environment is \$\{NAME\}"),
    ],
)
def test_what_needs_a_deployment_or_is_wrong_is_refused_and_changes_nothing(
    instance: Instance, shop: dict[str, Any], message: str
) -> None:
    before = instance.execute(GetApplications())
    with pytest.raises(ConfigError, match=message):
        change(instance, {"applications": {"shop": {"target": "shop.web:app", **shop}}})
    assert instance.execute(GetApplications()) == before


BOMB = b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 20))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, "100000 values"),
        (b"[" * 5_000, "nested too deeply"),
        (b"!!python/object/apply:os.system [echo]", "the tag .* is not supported"),
        (b"\xff", "not UTF-8"),
        (b"#" * (configuration.MOST_BYTES + 1), "at most 1,048,576 are allowed"),
        (b"address: auto", "remove address"),
    ],
)
def test_hostile_yaml_is_refused(instance: Instance, content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration.change(instance, configuration.read(content, is_json=False))


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{", b'{"port": NaN}', b"{} {}"])
def test_hostile_json_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match="the configuration is not JSON"):
        configuration.read(content, is_json=True)
