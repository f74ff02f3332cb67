"""The configuration of an instance: what is written can be deployed, and has no values of references."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit, split
from app_toolkit.config.document import from_yaml
from app_toolkit.config.files import applied, parse
from app_toolkit.config.models import ApplicationConfig, ApplicationSpec
from app_toolkit.config.options import InstanceOptions
from app_toolkit.control.diff import difference
from app_toolkit.control.operations import Delete, Deploy
from app_toolkit.control.queries import GetApplication, GetApplications
from app_toolkit.declare.planning import plan, shared_logs
from app_toolkit.operate import configuration
from tests.control.specs import application
from tests.operate.admin.instance import Instance

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
    config = ApplicationConfig(loop="asyncio")
    spec = plan(
        app, target="shop.web:app", app_dir=".", working_dir="data", name="shop", config=config, overrides=overrides
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
        config=shop.config,
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


def test_secrets_that_are_plain_text_are_masked(vault: Instance) -> None:
    large = read(vault)["applications"]["vault"]["deployments"]["large"]
    assert large["user_config"] == {"api_key": "***", "header": "Bearer ${KEY}", "greeting": "***"}
    assert large["resources"]["ray"]["runtime_env"] == {"env_vars": {"URL": "x://a:***@h"}}
    shown = [configuration.write(vault), vault.execute(GetApplications()), vault.execute(GetApplication("vault"))]
    assert PLAIN not in repr(shown)
