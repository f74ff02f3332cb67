"""A response that goes on after its process was killed, in an instance of processes."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from tests.patience import PATIENCE_S
from tests.running import runs

APP = """
import asyncio, os
from collections.abc import AsyncIterator
from app_toolkit import Deployment, Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, DataEvent, TextEvent, ai_sdk_router, continued

class Counter(Deployment, num_replicas=2, max_open_streams=0):
    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield DataEvent("process", os.getpid())
        words = [f"{number} " for number in range(100)]
        begun = request.continue_from.text if request.continue_from else ""
        for word in words[len(begun.split()):]:
            await asyncio.sleep(0.02)
            yield TextEvent(word)

app = Toolkit()
app.include_router(ai_sdk_router(continued(Counter.bind())), prefix="/api/chat")
"""

QUESTION = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Count."}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("app")
    (folder / "counter.py").write_text(APP)
    with pytest.MonkeyPatch.context() as patch, runs() as start:
        patch.setenv(RUNTIME_DIR, str(folder))  # commands of other tests must not find this instance
        yield start(str(folder / "counter.py"), "--engine", "processes").url()


def parts(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The parts of a UI message stream, as they arrive."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_each_word_comes_once_although_the_replica_of_the_model_is_killed(url: str) -> None:
    processes, text, last = [], "", ""
    body = {"id": "chat", "messages": [QUESTION]}
    with httpx.stream("POST", f"{url}/api/chat", json=body, timeout=PATIENCE_S, trust_env=False) as response:
        for part in parts(response):
            last = part["type"]
            if last == "data-process":
                processes.append(part["data"])
            elif last == "text-delta":
                text += part["delta"]
                if text.endswith(" 20 "):
                    os.kill(processes[0], signal.SIGKILL)
    assert text.split() == [str(number) for number in range(100)]
    assert (last, len(set(processes))) == ("finish", 2)
