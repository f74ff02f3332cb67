"""The JavaScript client of the page, in node, which has the WebSocket of browsers."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi import Depends, FastAPI

from app_toolkit.chat import api_keys, websocket_router
from app_toolkit.chat.echo import EchoModel
from app_toolkit.streaming import MemoryStreamLog
from tests.chat.served import served
from tests.docs.pages import page
from tests.patience import PATIENCE_S

KEY = "a-key-of-a-browser"
NODE = shutil.which("node")

SCRIPT = """
import { Chat } from "./chat.mjs";

const chat = new Chat(process.argv[2].replace("http", "ws") + "/ws", process.argv[3]);
let text = "", losses = 0;
const numbers = [];
const asked = [{ role: "user", content: "a b c d e f g h" }];
await new Promise((resolve) => {
  chat.send(asked, (event) => {
    numbers.push(event.number);
    text += event.text ?? "";
    if (event.number === 3 || event.number === 5) {
      losses += 1;
      chat.socket.close();
    }
    if (event.type === "finish" || event.type === "error") resolve();
  });
});
const reason = await new Promise((resolve) => {
  const id = chat.send([{ role: "user", content: "/forever" }], (event) => {
    if (event.number === 1) chat.stop(id);
    if (event.type === "finish" || event.type === "error") resolve(event.reason);
  });
});
console.log(JSON.stringify({ text, numbers, losses, reason }));
process.exit(0);
"""


def options() -> list[str] | None:
    """The options with which node has a WebSocket; None: it has none."""
    if NODE is None:
        return None
    for option in ([], ["--experimental-websocket"]):
        command = [NODE, *option, "--eval", "process.exit(typeof WebSocket === 'function' ? 0 : 1)"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return option
    return None


@pytest.mark.anyio
async def test_the_client_of_the_page_continues(tmp_path: Path) -> None:
    chosen = options()
    if NODE is None or chosen is None:
        pytest.skip("node with WebSocket is not installed: install version 22 or above")
    (client,) = page("docs/chat-websocket.md").shown("js")
    (tmp_path / "chat.mjs").write_text(client)
    (tmp_path / "script.mjs").write_text(SCRIPT)
    app = FastAPI()
    router = websocket_router(EchoModel(period_s=0.01), log=MemoryStreamLog())
    app.include_router(router, prefix="/ws", dependencies=[Depends(api_keys({"ada": KEY}))])
    async with served(app) as url:
        command = [NODE, *chosen, str(tmp_path / "script.mjs"), url, KEY]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(PATIENCE_S):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert json.loads(out) == {
        "text": "a b c d e f g h",
        "numbers": list(range(1, 11)),
        "losses": 2,
        "reason": "stopped",
    }
