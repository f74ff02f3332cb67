"""The model of the chat. Replace the body of `chat` by calls of your own model."""

import asyncio
import re
from collections.abc import AsyncIterator

from app_toolkit import Deployment
from app_toolkit.chat import ChatEvent, ChatRequest, FinishEvent, TextEvent, UsageEvent

ANSWER = """You wrote:

> {prompt}

This answer comes from a **placeholder**. Replace the body of `chat` in
`{{ cookiecutter.package_name }}/model.py`:

```python
async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
    async for text in my_model.generate(request.messages):
        yield TextEvent(text)
```

Until then you can try the page: stop this answer, reload the page while it is written, or open it in a second tab.
"""

PERIOD_S = 0.02
"""Seconds before each word."""

PART = re.compile(r"\s*\S+\s*")


class Model(Deployment, max_ongoing_requests=64, max_open_streams=0, resources={"num_cpus": 0.1}):
    """Answers every message with the same text."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the answer to `request.messages`, of which `request.prompt` is the text of the last one.

        If the client stops, this generator is closed.
        """
        parts = PART.findall(ANSWER.format(prompt=request.prompt.strip().replace("\n", "\n> ")))
        for part in parts:
            await asyncio.sleep(PERIOD_S)
            yield TextEvent(part)
        yield UsageEvent(len(request.prompt.split()), len(parts))
        yield FinishEvent()
