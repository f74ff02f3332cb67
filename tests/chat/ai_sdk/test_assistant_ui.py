"""A page of assistant-ui in Chromium, with stored conversations and without."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest

from app_toolkit.userapp.loading import load
from benchmarks.conformance.clients import APPS, NOT_SERVED, PASSED, node_command
from tests.chat.node import FOLDER, MARKS
from tests.chat.served import served
from tests.patience import PATIENCE_S

pytestmark = [
    *MARKS,
    pytest.mark.skipif(
        not (Path(FOLDER) / "@assistant-ui" / "react-ai-sdk").is_dir() or shutil.which("chromium") is None,
        reason="APP_TOOLKIT_TEST_NODE_MODULES has no @assistant-ui/react-ai-sdk, or Chromium is not installed",
    ),
]


async def test_the_page_shows_the_events_and_the_branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    async with served(load("chats:app", str(APPS))) as url:
        process = await asyncio.create_subprocess_exec(
            *node_command(Path(FOLDER), tmp_path, "assistant_ui.mjs"), url, url, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    verdicts = json.loads(output)
    assert len(verdicts) > 5
    assert set(verdicts.values()) <= {PASSED, NOT_SERVED}, verdicts
