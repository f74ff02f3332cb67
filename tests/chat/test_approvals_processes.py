"""Calls that wait for an approval, in an instance of processes whose replicas are killed."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from tests.chat.test_approvals import QUESTION, answered
from tests.chat.ui_stream import checked
from tests.patience import PATIENCE_S, wait_until
from tests.running import runs

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

APP = """
import asyncio, json, os
from collections.abc import AsyncIterator
from pathlib import Path
from app_toolkit import Deployment, Toolkit
from app_toolkit.chat import (
    ApprovalRequest, ChatEvent, ChatRequest, DataEvent, SQLConversationStore, ToolCall, ToolResultEvent, ai_sdk_router,
    conversations_router,
)

FOLDER = Path(__file__).parent

class Payer(Deployment, max_open_streams=0):
    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for call in request.approved_calls:
            with open(FOLDER / "paid", "a") as paid:
                paid.write(f"{len(json.loads(call.arguments)['note'])}\\\\n")
            await asyncio.sleep(0.5)  # the other tabs answer meanwhile
            yield ToolResultEvent(call.id, "paid")
        if not request.approved_calls:
            yield DataEvent("process", os.getpid())
            yield ApprovalRequest(ToolCall("c1", "pay", json.dumps({"note": "x" * 2**20})))

store = SQLConversationStore(FOLDER / "chats.db")
app = Toolkit()
app.include_router(ai_sdk_router(Payer.bind(), conversations=store, version=6), prefix="/api/chat")
app.include_router(conversations_router(store), prefix="/api/conversations")

@app.get("/process")
async def process() -> int:
    return os.getpid()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("app")


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[httpx.Client]:
    (folder / "payer.py").write_text(APP.replace("\\\\", "\\"))
    with pytest.MonkeyPatch.context() as patch, runs() as start:
        patch.setenv(RUNTIME_DIR, str(folder))  # commands of other tests must not find this instance
        url = start(str(folder / "payer.py"), "--engine", "processes", "-n", "2").url()
        with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
            yield client


def processes(http: httpx.Client) -> set[int]:
    """The processes of the two replicas that serve the routes."""
    pids: set[int] = set()

    def both() -> bool:
        response = http.get("/process", headers={"connection": "close"})
        if response.is_success:
            pids.add(response.json())
        return len(pids) == 2

    wait_until(both)
    return pids


def test_a_call_with_large_arguments_runs_once_after_all_replicas_were_killed(http: httpx.Client, folder: Path) -> None:
    def send(message: dict[str, Any]) -> httpx.Response:
        return http.post("/api/chat", json={"id": "chat", "message": message})

    killed = processes(http)
    (process,) = (part for part in checked(send(QUESTION).text) if part["type"] == "data-process")
    for pid in {process["data"], *killed}:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not killed & processes(http))
    asked = http.get("/api/conversations/chat").json()["messages"][-1]
    with ThreadPoolExecutor(3) as tabs:
        responses = list(tabs.map(send, [answered(asked)] * 3))
    assert sorted(response.status_code for response in responses) == [200, 409, 409]
    assert (folder / "paid").read_text() == f"{2**20}\n"
    done = http.get("/api/conversations/chat").json()["messages"][-1]
    (call,) = (part for part in done["parts"] if part.get("toolCallId") == "c1")
    assert (done["id"], call["state"], call["output"]) == (asked["id"], "output-available", "paid")
