"""The published clients of AG-UI: `@ag-ui/client`.

The cases are those of `python -m benchmarks.conformance clients`. Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules
folder with the package.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app_toolkit import Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, DataEvent, ag_ui_router
from tests.chat.client_cases import Counted, add_counts, agent, check_cases, of_node, printed
from tests.chat.served import served
from tests.docs.pages import page

pytestmark = pytest.mark.anyio


async def stateful(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    client = request.extra or {}
    yield DataEvent("page", client["context"][0]["value"])
    yield DataEvent("state", {"count": client["state"]["count"] + 1})


async def test_the_cases_of_the_client_pass(tmp_path: Path) -> None:
    command = of_node(tmp_path, "ag_ui_client.mjs", "@ag-ui/client")
    app, model = Toolkit(), Counted()
    app.include_router(ag_ui_router({"echo": model, "agent": agent, "stateful": stateful}), prefix="/ag-ui")
    add_counts(app, model)
    await check_cases(app, model, command)


async def test_the_code_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    command = of_node(tmp_path, "ag_ui_client.mjs", "@ag-ui/client")
    shown = page("docs/chat-ag-ui.md")
    (code,) = shown.shown("js")
    async with served(shown.run()["app"]) as url:
        (tmp_path / "page.mjs").write_text(code.replace("http://127.0.0.1:8000", url))
        assert (await printed(command[0], str(tmp_path / "page.mjs"))).split() == ["ADA", "IS", "ON", "/cart"]
