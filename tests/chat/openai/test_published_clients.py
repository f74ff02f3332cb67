"""The provider of the AI SDK for OpenAI's API, over responses and over chat completions.

The cases are those of `python -m benchmarks.conformance clients`. Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules
folder with `@ai-sdk/openai` and `ai`.
"""

from pathlib import Path

import pytest

from app_toolkit import Toolkit
from app_toolkit.chat import openai_router
from tests.chat.client_cases import Counted, add_counts, agent, check_cases, of_node

pytestmark = pytest.mark.anyio


async def lengths(texts: list[str]) -> list[list[float]]:
    return [[len(text), 0.5] for text in texts]


async def test_the_cases_of_the_provider_pass(tmp_path: Path) -> None:
    app, model = Toolkit(), Counted()
    app.include_router(openai_router({"echo": model, "agent": agent}, embeddings={"lengths": lengths}), prefix="/v1")
    add_counts(app, model)
    await check_cases(app, model, of_node(tmp_path, "openai_provider.mjs", "@ai-sdk/openai"))
