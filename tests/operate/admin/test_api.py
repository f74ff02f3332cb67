"""The routes of the admin API: one for each command, with the results and errors of the command."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from app_toolkit import control
from app_toolkit.cli.main import app as command_line
from app_toolkit.control.command import Command, DriverCommand
from app_toolkit.control.freeze import Freeze
from app_toolkit.control.operations import Deploy, Scale
from app_toolkit.control.queries import GetStatus
from app_toolkit.operate.encoding import adapter_of, path_of, result_adapter_of
from app_toolkit.operate.instance import api_commands
from tests.control.specs import application
from tests.operate.admin.instance import Instance, serving
from tests.patience import wait_until


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance()
    instance.execute(Deploy(application()))
    yield instance
    instance.close()


@pytest.fixture(scope="module")
def http(instance: Instance) -> Iterator[httpx.Client]:
    with serving(instance) as url, httpx.Client(base_url=url, trust_env=False) as http:
        yield http


def test_every_command_has_a_route_except_those_of_drivers(http: httpx.Client) -> None:
    described = http.get("/api/openapi.json").json()["paths"]
    other_routes = {"/api/load", "/api/logs", "/api/slow", "/api/live", "/api/series", "/api/config"}
    command_routes = {path_of(each) for each in api_commands()}
    assert not command_routes & other_routes
    assert command_routes | other_routes == set(described)
    modules = [
        importlib.import_module(each.name) for each in pkgutil.iter_modules(control.__path__, "app_toolkit.control.")
    ]
    commands: set[type[Command[Any]]] = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Command) and not inspect.isabstract(each)
    }
    assert {each for each in commands if not issubclass(each, DriverCommand)} == set(api_commands())


def test_every_operating_command_of_the_command_line_can_use_the_admin_api() -> None:
    local = {"new", "dev", "plan", "run", "up", "down", "grafana", "keys"}
    names = {each.name or each.callback.__name__: each for each in command_line.registered_commands if each.callback}
    for name, command in names.items():
        parameters = getattr(command.callback, "__signature__", None)
        taken = parameters.parameters if parameters else command.callback.__annotations__
        assert ("admin_url" in taken) == (name not in local), name


def test_result_of_a_query_is_the_one_of_the_client(http: httpx.Client, instance: Instance) -> None:
    wait_until(lambda: instance.execute(GetStatus()).status == "healthy")
    status = result_adapter_of(GetStatus).validate_json(http.get("/api/status").content)
    assert status.applications[0].name == "shop"
    events = http.get("/api/events", params={"subject": "shop", "last": 1}).json()
    assert len(events["events"]) == 1
    assert http.get("/api/load").json()["shop/web"]["handles"] == 2
    assert http.get("/api/slow", params={"name": "shop/web"}).json()[0]["deployment"] == "shop/web"
    logs = http.post("/api/logs", json={"query": {"level": "error"}, "last": 5}).json()
    assert logs["records"][0]["message"] == "error 5 None"


def test_level_of_records_is_one_of_five(http: httpx.Client) -> None:
    refused = http.post("/api/logs", json={"query": {"level": "eror"}})
    assert refused.status_code == 422
    said = "body.query.level: input should be 'debug', 'info', 'warning', 'error' or 'critical'"
    assert refused.json()["detail"] == said


def test_change_of_the_status_can_be_waited_for_within_a_bound(http: httpx.Client) -> None:
    change = http.get("/api/status").json()["change"]
    assert http.get("/api/status", params={"after": change, "timeout_s": 0.01}).status_code == 200
    refused = http.get("/api/status", params={"timeout_s": 3_600})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "query.timeout_s: input should be less than or equal to 60"


def test_command_changes_the_instance(http: httpx.Client, instance: Instance) -> None:
    content = adapter_of(Scale).dump_json(Scale("shop/web", 3))
    answered = http.post("/api/scale", content=content, headers={"content-type": "application/json"})
    assert answered.json() == instance.execute(GetStatus()).applications[0].revision
    assert instance.execute(GetStatus()).applications[0].deployments[0].target == 3
    revision = instance.execute(Deploy(application(max_ongoing_requests=7)))
    wait_until(lambda: instance.execute(GetStatus()).status == "healthy")
    rolled_back = http.post("/api/rollback", json={"application": "shop"})
    assert rolled_back.json()["revision"] == revision + 1


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"deployment": "none/web", "num_replicas": 1}, 400, "there is no application 'none'"),
        (
            {"deployment": "web", "num_replicas": 1},
            400,
            "'web' names no deployment: it should be APPLICATION/DEPLOYMENT",
        ),
        ({}, 422, "body.deployment: field required; body.num_replicas: field required"),
        (
            {"deployment": "shop/web", "num_replicas": 1, "owner": "me"},
            422,
            "body.owner: unexpected keyword argument",
        ),
    ],
)
def test_error_is_one_sentence_with_its_status(
    http: httpx.Client, body: dict[str, object], status: int, detail: str
) -> None:
    refused = http.post("/api/scale", json=body)
    assert (refused.status_code, refused.json()) == (status, {"detail": detail, "error": "ConfigError", "notes": []})


def test_conflict_has_the_status_409(http: httpx.Client, instance: Instance) -> None:
    spec = adapter_of(Deploy).dump_python(Deploy(application(), expected=77), mode="json")
    refused = http.post("/api/deploy", json=spec)
    assert (refused.status_code, refused.json()["error"]) == (409, "RevisionConflict")


def test_operation_on_a_frozen_application_has_the_status_409_and_the_reason(
    http: httpx.Client, instance: Instance
) -> None:
    instance.execute(Freeze("shop", reason="the sale ends on Monday"))
    refused = http.post("/api/delete", json={"name": "shop"})
    said = {
        "detail": "application 'shop' is frozen: the sale ends on Monday",
        "error": "ApplicationFrozen",
        "notes": [],
    }
    assert (refused.status_code, refused.json()) == (409, said)
    assert http.get("/api/status").json()["applications"][0]["facts"]["frozen"]["reason"] == "the sale ends on Monday"
    http.post("/api/unfreeze", json={"application": "shop"})
    assert http.get("/api/status").json()["applications"][0]["facts"]["frozen"] is None


def test_configuration_is_returned_in_two_formats(http: httpx.Client, instance: Instance) -> None:
    text = http.get("/api/config", headers={"accept": "application/yaml"})
    assert text.headers["content-type"] == "application/yaml"
    config = http.get("/api/config").json()
    assert yaml.safe_load(text.text) == config
    assert config["applications"]["shop"]["target"] == instance.deployed("shop").target
