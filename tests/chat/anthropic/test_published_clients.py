"""The published clients of the Messages API: Anthropic's SDKs for Python and Node, the AI SDK, and LiteLLM.

The cases are those of `python -m benchmarks.conformance clients`. For Node, set APP_TOOLKIT_TEST_NODE_MODULES to a
node_modules folder with `@anthropic-ai/sdk`, `@ai-sdk/anthropic` and `ai`.
"""

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    FileStore,
    ReasoningEvent,
    ToolCallEvent,
    anthropic_router,
    api_keys,
)
from app_toolkit.chat.echo import EchoModel
from benchmarks.conformance.clients import APPS
from tests.chat.client_cases import Counted, add_counts, agent, check_cases, of_node, printed
from tests.chat.served import served
from tests.docs.pages import page

pytestmark = pytest.mark.anyio

KEY = "the-key-of-the-clients"


def app_of(model: Counted) -> Toolkit:
    app, models = Toolkit(), {"echo": model, "agent": agent}
    app.include_router(anthropic_router(models), prefix="/v1")
    keys = [Depends(api_keys({"ada": KEY}))]
    app.include_router(anthropic_router(models), prefix="/protected/v1", dependencies=keys)

    add_counts(app, model)
    return app


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("anthropic_client.py", "anthropic"),
        ("anthropic_client.mjs", "@anthropic-ai/sdk"),
        ("anthropic_provider.mjs", "@ai-sdk/anthropic"),
        ("litellm_client.py", "litellm"),
    ],
)
async def test_the_cases_of_a_client_pass(module: str, package: str, tmp_path: Path) -> None:
    if module.endswith(".mjs"):
        command = of_node(tmp_path, module, package)
    else:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        command = [sys.executable, str(APPS / module)]
    model = Counted()
    await check_cases(app_of(model), model, command)


async def test_the_code_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    if importlib.util.find_spec("anthropic") is None:
        pytest.skip("anthropic is not installed")
    shown = page("docs/chat-anthropic.md")
    (code,) = shown.shown("py")
    script = tmp_path / "page.py"
    async with served(shown.run()["app"]) as url:
        script.write_text(code.replace("http://127.0.0.1:8000", url))
        assert (await printed(sys.executable, str(script))).split() == ["HELLO", "WORLD", "2"]


async def test_the_sdk_uses_the_files(tmp_path: Path) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    app = FastAPI()
    app.include_router(anthropic_router(EchoModel(), files=FileStore(tmp_path)), prefix="/v1")
    async with served(app) as url, anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        files = [await client.beta.files.upload(file=(f"{number}.txt", b"hello")) for number in range(3)]
        assert [file async for file in client.beta.files.list(limit=2)] == files[::-1]
        assert [file async for file in client.beta.files.list(ids=[files[1].id])] == [files[1]]
        assert await client.beta.files.retrieve_metadata(files[0].id) == files[0]
        assert await (await client.beta.files.download(files[0].id)).read() == b"hello"
        assert (await client.beta.files.delete(files[0].id)).type == "file_deleted"
        with pytest.raises(anthropic.NotFoundError, match="there is no file"):
            await client.beta.files.retrieve_metadata(files[0].id)


async def test_the_sdk_gets_the_pages_of_a_response() -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    app = FastAPI()
    app.include_router(anthropic_router(EchoModel()), prefix="/v1")
    asked: Any = {"model": "default", "max_tokens": 100, "messages": [{"role": "user", "content": "/source hello"}]}
    async with served(app) as url, anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
    for message in (whole, streamed):
        (citation,) = message.content[0].citations
        assert (citation.type, citation.url, citation.title) == (
            "web_search_result_location",
            "https://example.com",
            "Example",
        )


@pytest.mark.parametrize("signature", [None, "of another server"])
async def test_the_model_gets_the_reasoning_that_the_sdk_sends_back(signature: str | None) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    requests: list[ChatRequest] = []

    async def thinker(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        requests.append(request)
        yield ReasoningEvent("I look.")
        yield ToolCallEvent(0, "c1", "search", "{}")

    app = FastAPI()
    app.include_router(anthropic_router(thinker), prefix="/v1")
    tools: Any = [{"name": "search", "input_schema": {"type": "object"}}]
    messages: Any = [{"role": "user", "content": "hello"}]
    asked: Any = {"model": "default", "max_tokens": 100, "messages": messages, "tools": tools}
    async with served(app) as url, anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        if signature is not None:
            message.content[0].signature = signature
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "nothing"}
        messages += [message.to_param(), {"role": "user", "content": [result]}]
        await client.messages.create(**asked)
    _, thought, _ = requests[-1].messages
    assert (thought.reasoning, thought.tool_calls[0].id) == ("I look.", "c1")
