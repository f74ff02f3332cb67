"""The published clients of Ollama, for Python and for JavaScript.

The cases are those of `python -m benchmarks.conformance clients`. Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules
folder with the package.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from app_toolkit import Toolkit
from app_toolkit.chat import ollama_router
from benchmarks.conformance.clients import APPS
from tests.chat.client_cases import Counted, add_counts, agent, check_cases, of_node, printed
from tests.chat.served import served
from tests.docs.pages import page

pytestmark = pytest.mark.anyio


async def lengths(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 0.5] for text in texts]


@pytest.mark.parametrize("module", ["ollama_client.py", "ollama_client.mjs"])
async def test_the_cases_of_a_client_pass(module: str, tmp_path: Path) -> None:
    if module.endswith(".mjs"):
        command = of_node(tmp_path, module, "ollama")
    else:
        if importlib.util.find_spec("ollama") is None:
            pytest.skip("ollama is not installed")
        command = [sys.executable, str(APPS / module)]
    app, model = Toolkit(), Counted()
    app.include_router(
        ollama_router({"echo": model, "agent": agent}, embeddings={"lengths": lengths}), prefix="/ollama"
    )
    add_counts(app, model)
    await check_cases(app, model, command)


async def test_the_code_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    if importlib.util.find_spec("ollama") is None:
        pytest.skip("ollama is not installed")
    shown = page("docs/chat-ollama.md")
    (code,) = shown.shown("py")
    script = tmp_path / "page.py"
    async with served(shown.run()["app"]) as url:
        script.write_text(code.replace("http://127.0.0.1:8000", url))
        assert (await printed(sys.executable, str(script))).split() == ["HELLO", "WORLD"]
