"""A response that goes on after the process that has read its model was killed, in an instance of processes."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from tests.chat.test_continued_processes import QUESTION, parts
from tests.chat.ui_stream import checked
from tests.patience import PATIENCE_S
from tests.running import runs

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

APP = """
import asyncio, os
from collections.abc import AsyncIterator
from pathlib import Path
from app_toolkit import Deployment, Toolkit
from app_toolkit.chat import (
    ChatEvent, ChatRequest, SQLConversationStore, TextEvent, ai_sdk_router, continued, conversations_router,
)

class Counter(Deployment, max_open_streams=0):
    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        begun = request.continue_from.text if request.continue_from else ""
        for number in range(len(begun.split()), 100):
            await asyncio.sleep(0.02)
            yield TextEvent(f"{number} ")

store = SQLConversationStore(Path(__file__).parent / "chats.db")
app = Toolkit()
app.include_router(ai_sdk_router(continued(Counter.bind()), conversations=store), prefix="/api/chat")
app.include_router(conversations_router(store), prefix="/api/conversations")

@app.middleware("http")
async def named(request, call_next):
    response = await call_next(request)
    response.headers["x-process"] = str(os.getpid())
    return response
"""


NUMBERS = [str(number) for number in range(100)]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("app")
    (folder / "counter.py").write_text(APP)
    with pytest.MonkeyPatch.context() as patch, runs() as start:
        patch.setenv(RUNTIME_DIR, str(folder))  # commands of other tests must not find this instance
        url = start(str(folder / "counter.py"), "--engine", "processes", "-n", "2").url()
        with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
            yield client


def killed(http: httpx.Client, method: str, url: str, *, at: str, **body: Any) -> list[dict[str, Any]]:
    """The parts of a response whose process is killed at a number."""
    read: list[dict[str, Any]] = []
    with suppress(httpx.TransportError), http.stream(method, url, **body) as response:
        assert response.status_code == 200
        for part in parts(response):
            read.append(part)
            if part.get("delta") == at:
                os.kill(int(response.headers["x-process"]), signal.SIGKILL)
    assert "finish" not in {part["type"] for part in read}
    return read


def begin(http: httpx.Client, chat: str) -> None:
    """Begin a response whose process is killed."""
    body = {"id": chat, "message": QUESTION | {"id": chat}}
    assert killed(http, "POST", "/api/chat", at="20 ", json=body)


def assert_is_whole(response: list[dict[str, Any]]) -> None:
    assert "".join(part.get("delta", "") for part in response).split() == NUMBERS
    assert response[-1]["type"] == "finish"


def assert_is_stored(http: httpx.Client, chat: str) -> None:
    (answer,) = http.get(f"/api/conversations/{chat}").json()["messages"][1:]
    assert [part["text"].split() for part in answer["parts"] if part["type"] == "text"] == [NUMBERS]
    assert "incomplete" not in answer.get("metadata", {})


def test_each_word_comes_once_although_two_replicas_that_read_the_model_are_killed(http: httpx.Client) -> None:
    begin(http, "chat")
    again = killed(http, "GET", "/api/chat/chat/stream", at="60 ")
    assert "".join(part.get("delta", "") for part in again).split()[:61] == NUMBERS[:61]
    assert_is_whole(checked(http.get("/api/chat/chat/stream").text))
    assert_is_stored(http, "chat")


def test_one_of_two_tabs_continues_and_both_get_each_word_once(http: httpx.Client) -> None:
    begin(http, "tabs")
    with ThreadPoolExecutor(2) as tabs:
        for response in tabs.map(lambda _: checked(http.get("/api/chat/tabs/stream").text), range(2)):
            assert_is_whole(response)
    assert_is_stored(http, "tabs")
