"""The npm package `ai` asks its user for an approval, and shows the answer after a reload and in a second tab.

Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules folder with `ai` (`npm install ai`).
"""

import asyncio
import json
import shutil
from pathlib import Path

from fastapi import FastAPI

from app_toolkit.chat import SQLConversationStore, ai_sdk_router, conversations_router
from tests.chat.served import served
from tests.chat.test_approvals import Payer
from tests.chat.test_stored_chat_node import plain
from tests.patience import PATIENCE_S

from .node import FOLDER, MARKS

pytestmark = MARKS


async def test_a_tab_that_was_loaded_answers_for_the_one_that_asked(tmp_path: Path) -> None:
    store, model, app = SQLConversationStore(":memory:"), Payer(), FastAPI()
    app.include_router(ai_sdk_router(model, conversations=store, version=6), prefix="/api/chat")
    app.include_router(conversations_router(store), prefix="/api/conversations")
    shutil.copy(Path(__file__).with_name("approvals.mjs"), tmp_path)
    (tmp_path / "node_modules").symlink_to(FOLDER)  # a module finds packages only below a folder that it is in
    async with served(app) as url, asyncio.timeout(PATIENCE_S):
        process = await asyncio.create_subprocess_exec(
            "node", tmp_path / "approvals.mjs", url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    seen = json.loads(out)
    for id, state in (("approved", "output-available"), ("denied", "output-denied")):
        assert plain(seen[id]["shown"]) == plain(seen[id]["stored"])
        call = seen[id]["stored"][1]["parts"][1]
        assert (call["type"], call["state"], call["approval"]["approved"]) == ("tool-pay", state, id == "approved")
        assert seen[id]["late"].endswith("has been answered already: load the conversation again")
    assert [len(calls) for calls in model.approved] == [0, 1, 0, 0]
    await store.close()
