"""The page about the admin server shows requests that are answered."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, IngressSpec, Route
from app_toolkit.control.operations import AddCandidate, Deploy
from tests.operate.admin.instance import Instance, serving
from tests.patience import PATIENCE_S

from .pages import commands, page

ADMIN = page("docs/admin.md")
TOKEN = "c2VjcmV0-of-the-operator"
ADDRESS = "http://127.0.0.1:8001"


def shop(num_replicas: int = 1) -> ApplicationSpec:
    return ApplicationSpec(
        name="shop",
        target="shop:app",
        app_dir=".",
        default="chat",
        deployments=(IngressSpec(config=DeploymentConfig(name="chat", num_replicas=num_replicas)),),
        routes=(Route(kind="both", pattern=".*", path="/", owner="chat"),),
    )


@pytest.fixture
def instance() -> Iterator[Instance]:
    instance = Instance()
    revision = instance.execute(Deploy(shop()))
    instance.wait_until_serving({"shop": revision}, PATIENCE_S)
    yield instance
    instance.close()


def asked(http: httpx.Client, arguments: Sequence[str], folder: Path) -> httpx.Response:
    """What the server answers to the `curl` with these arguments."""
    method, headers, content, file = "GET", dict[str, str](), None, None
    *options, url = arguments
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "-X":
            method = value
        elif option == "-H":
            text = (folder / Path(value).name).read_text() if value.startswith("@") else value
            name, _, field = text.strip().partition(": ")
            headers[name] = field
        elif option == "--json":
            method, content, headers["content-type"] = "POST", value.encode(), "application/json"
        elif option == "--data-binary":
            content = (folder / value.removeprefix("@")).read_bytes()
        else:
            assert option == "-o", option
            file = folder / value
    response = http.request(method, url.removeprefix(ADDRESS), headers=headers, content=content)
    if file is not None:
        file.write_bytes(response.content)
    return response


def test_requests_of_the_page_are_answered(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / ".admin-header").write_text(f"Authorization: Bearer {TOKEN}\n")
    commanded, with_token, configuration = ADMIN.shown("console")
    with serving(instance) as url, httpx.Client(base_url=url, trust_env=False) as http:

        def ask(console: str) -> list[httpx.Response]:
            lines = [line.removeprefix("$ ") for line in console.splitlines()]
            return [asked(http, command.arguments, tmp_path) for line in lines for command in commands(line)]

        update = Deploy(shop().model_copy(update={"keep_revisions": 4}))
        instance.wait_until_serving({"shop": instance.execute(update)}, PATIENCE_S)
        before, *rest = commanded.splitlines(keepends=True)
        assert [each.status_code for each in ask(before + rest[0] + rest[1])] == [200, 200, 200]
        instance.wait_until_serving({"shop": 3}, PATIENCE_S)
        instance.execute(AddCandidate(shop(2), share=0.5))
        assert [each.json() for each in ask(rest[2] + rest[3])] == [None, None]
        [rolled_back] = ask(rest[4])
        assert rolled_back.json()["to"] == 1
        [read] = ask(configuration)
        assert read.headers["content-type"] == "application/yaml"
    with serving(instance, TOKEN) as url, httpx.Client(base_url=url, trust_env=False) as http:
        assert [each.status_code for each in ask(with_token)] == [200]


def test_error_of_the_page_is_answered(instance: Instance) -> None:
    with serving(instance) as url, httpx.Client(base_url=url, trust_env=False) as http:
        refused = http.post("/api/scale", json={"deployment": "none/chat", "num_replicas": 4})
        assert json.loads(ADMIN.shown("json")[0]) == refused.json()
