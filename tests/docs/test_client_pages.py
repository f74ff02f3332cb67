"""The page on clients works with the app that it names: the one of docs/chat-openai.md."""

import asyncio
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.conformance.clients import node_command
from tests.chat.served import served
from tests.patience import PATIENCE_S

from .pages import Page, page

pytestmark = pytest.mark.anyio

ADDRESS = "http://127.0.0.1:8000"
PRINTED = re.compile(r"(?:print|console\.log)\(.*(?:#|//) (.*)$", re.MULTILINE)
CLIENTS = page("docs/chat-clients.md")
MODULES = Path(os.environ.get("APP_TOOLKIT_TEST_NODE_MODULES") or "missing")


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with served(page("docs/chat-openai.md").run()["app"]) as url:
        yield url


def promised(code: str) -> list[str]:
    """What the comments of a block say that its lines print: `HELLO, then WORLD` in a loop."""
    return [line for printed in PRINTED.findall(code) for line in printed.split(", then ")]


async def printed(*command: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return [line.strip() for line in out.decode().splitlines()]


@pytest.mark.parametrize(("name", "package"), [("OpenAI SDK", "openai"), ("LangChain", "langchain_openai")])
async def test_python_prints_the_shown_output(name: str, package: str, url: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (code,) = CLIENTS.part(name).shown("py")
    script = tmp_path / "page.py"
    script.write_text(code.replace(ADDRESS, url))
    assert await printed(sys.executable, str(script)) == promised(code)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(("name", "package"), [("OpenAI SDK", "openai"), ("AI SDK", "@ai-sdk/openai-compatible")])
async def test_javascript_prints_the_shown_output(name: str, package: str, url: str, tmp_path: Path) -> None:
    if not (MODULES / package / "package.json").is_file():
        pytest.skip(f"APP_TOOLKIT_TEST_NODE_MODULES names no node_modules folder with the package {package}")
    (code,) = CLIENTS.part(name).shown("js")
    (tmp_path / "page.mjs").write_text(code.replace(ADDRESS, url))
    assert await printed(*node_command(MODULES, tmp_path, "page.mjs")) == promised(code)


def settings(shown: Page, file: str) -> Any:
    """The YAML file of a page."""
    (found,) = [block.text for block in shown.blocks if block.text.startswith(f"# {file}\n")]
    return yaml.safe_load(found)


async def served_models(url: str, address: str) -> list[str]:
    """What the app answers to a front end with this address of the router."""
    path = address.removeprefix("http://host.docker.internal:8000")
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_S) as http:
        return [each["id"] for each in (await http.get(f"{path}/models")).raise_for_status().json()["data"]]


async def test_the_settings_of_librechat_name_routes_and_models_of_the_app(url: str) -> None:
    shown = CLIENTS.part("LibreChat")
    (endpoint,) = settings(shown, "librechat.yaml")["endpoints"]["custom"]
    assert set(endpoint["models"]["default"]) <= set(await served_models(url, endpoint["baseURL"]))
    (mount,) = settings(shown, "docker-compose.override.yml")["services"]["api"]["volumes"]
    assert mount["source"] == "./librechat.yaml"


async def test_the_settings_of_open_webui_name_routes_of_the_app(url: str) -> None:
    shown = CLIENTS.part("Open WebUI")
    (service,) = settings(shown, "compose.yaml")["services"].values()
    environment = service["environment"]
    assert "assistant" in await served_models(url, environment["OPENAI_API_BASE_URL"])
    named = set(re.findall(r"^\| `(\w+)`", shown.text, re.MULTILINE))
    assert environment.keys() <= named
