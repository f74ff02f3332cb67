"""The models of all programs of this folder: one that answers, and a small one that writes titles."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

KEYS = {"ada": "the-example-key-of-ada", "bob": "the-example-key-of-bob"}
PERIOD_S = 0.02

Event = tuple[str, Any, Any, Any]
"""`("text", text, ...)`, `("call", id, name, input)` or `("result", id, output, ...)`."""


async def answer(texts: Sequence[str]) -> AsyncGenerator[Event, None]:
    """Yield the answer to the last of several texts."""
    *before, prompt = texts
    if "weather" in prompt:
        yield "call", "call_1", "weather", {"city": "Oslo"}
        yield "result", "call_1", {"weather": "rain"}, None
    count = 100 if "slow" in prompt else 1
    for number in range(count):
        await asyncio.sleep(PERIOD_S)
        yield "text", f"{number}: {prompt} after {len(before)}. ", None, None


async def title(text: str) -> str:
    return f"About {text}"
