"""The routes of the admin API: one for each command, with the results and errors of the command."""

from collections.abc import Iterator

import httpx
import pytest
import yaml

from app_toolkit.cli.main import app as command_line
from app_toolkit.client import commands
from app_toolkit.client.commands import Deploy, GetStatus, Scale
from app_toolkit.client.encoding import adapter_of, api_commands, path_of, result_adapter_of
from tests.admin.instance import Instance, serving
from tests.core.specs import application
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
    other_routes = {"/api/load", "/api/logs", "/api/slow", "/api/live", "/api/history", "/api/config"}
    assert {path_of(each) for each in api_commands()} | other_routes == set(described)
    others = {
        name
        for name, each in vars(commands).items()
        if isinstance(each, type) and issubclass(each, commands.Command) and each not in api_commands()
    }
    assert others == {"Command", "Query", "DriverCommand", "GetCallee", "Hold", "Leave", "Listen", "Forget"}


def test_every_operating_command_of_the_command_line_can_use_the_admin_api() -> None:
    local = {"new", "dev", "plan", "run", "up", "down", "grafana"}
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
    content = adapter_of(Scale).dump_json(Scale("shop", "web", 3))
    answered = http.post("/api/scale", content=content, headers={"content-type": "application/json"})
    assert answered.json() == instance.execute(GetStatus()).applications[0].revision
    assert instance.execute(GetStatus()).applications[0].deployments[0].target == 3


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"application": "none", "deployment": "web", "num_replicas": 1}, 400, "there is no application 'none'"),
        ({"application": "shop"}, 422, "body.deployment: field required; body.num_replicas: field required"),
        (
            {"application": "shop", "deployment": "web", "num_replicas": 1, "owner": "me"},
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


def test_configuration_is_returned_in_two_formats_and_applied_from_both(http: httpx.Client, instance: Instance) -> None:
    text = http.get("/api/config", headers={"accept": "application/yaml"})
    assert text.headers["content-type"] == "application/yaml"
    config = http.get("/api/config").json()
    assert yaml.safe_load(text.text) == config
    assert http.put("/api/config", json=config).json() == {}
    same = http.put("/api/config", content=text.content, headers={"content-type": "application/yaml"})
    assert same.json() == {}
    config["applications"]["shop"]["deployments"]["web"]["num_replicas"] = 5
    changed = http.put("/api/config", json=config).json()
    assert changed == {"shop": instance.execute(GetStatus()).applications[0].revision}
    assert instance.execute(GetStatus()).applications[0].deployments[0].target == 5
    refused = http.put("/api/config", json={"applications": {"none": {"target": "a:b"}}})
    assert (refused.status_code, refused.json()["error"]) == (400, "ConfigError")


def test_mistakes_do_not_show_values(http: httpx.Client) -> None:
    refused = http.post("/api/deploy", json={"spec": {"name": "a-secret-value"}})
    assert refused.status_code in (400, 422)
    assert "a-secret-value" not in refused.text
