"""The router for the Vercel AI SDK with the npm package `ai` itself, without React.

Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules folder with `ai` (`npm install ai`).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import ai_sdk_router
from app_toolkit.streaming import MemoryStreamLog
from benchmarks.conformance.clients import NOT_SERVED, PASSED, node_command
from tests.chat.client_cases import Counted, add_counts, agent, printed
from tests.chat.node import FOLDER, MARKS
from tests.chat.served import served
from tests.patience import until

pytestmark = MARKS


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_the_chats_of_the_package_show_the_events_of_the_model(kind: type[FastAPI], tmp_path: Path) -> None:
    model, app = Counted(), kind()
    models: dict[str, Any] = {"echo": model, "agent": agent}
    app.include_router(ai_sdk_router(models, log=MemoryStreamLog()), prefix="/api/chat")
    app.include_router(ai_sdk_router(models, resume=False, version=6), prefix="/plain")
    add_counts(app, model)
    async with served(app) as url:
        seen: dict[str, str] = json.loads(await printed(*node_command(Path(FOLDER), tmp_path, "ai_sdk.mjs"), url, url))
        await until(lambda: not model.running.total())
    assert len(seen) > 10
    assert set(seen.values()) <= {PASSED, NOT_SERVED}, seen
