"""A model that shows what a page can show: the first word of a message is a command."""

import asyncio
import json
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from app_toolkit.chat import (
    ApprovalRequest,
    ChatEvent,
    ChatRequest,
    DocumentEvent,
    FileEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolResultEvent,
    UsageEvent,
)

PERIOD_S = float(os.environ.get("CHAT_PERIOD_S", "0.02"))
"""Seconds between two words of an answer."""

HELP = """This model shows what the page can show. Send one of these, or attach files:

- `/think` shows its reasoning
- `/status` says what it does
- `/sources` names a page and a document
- `/image` makes a picture, and `/report` a file
- `/approve` asks whether it may run a tool
- `/count 100` writes a long answer
"""


async def help(argument: str) -> AsyncIterator[ChatEvent]:
    yield TextEvent(HELP)


async def think(argument: str) -> AsyncIterator[ChatEvent]:
    for sentence in ("I compare two ways. ", "One of them is shorter."):
        await asyncio.sleep(20 * PERIOD_S)
        yield ReasoningEvent(sentence)
    yield TextEvent("The shorter way is the better one.")


async def status(argument: str) -> AsyncIterator[ChatEvent]:
    for text in ("Reading the question", "Searching the documents", "Writing the answer"):
        yield StatusEvent(text)
        await asyncio.sleep(40 * PERIOD_S)
    yield TextEvent("I have searched the documents.")


async def sources(argument: str) -> AsyncIterator[ChatEvent]:
    yield TextEvent("Oslo is the capital of Norway.")
    yield SourceEvent("https://en.wikipedia.org/wiki/Oslo", "Oslo")
    yield DocumentEvent("Capitals of Europe", "text/markdown", "capitals.md")


async def image(argument: str) -> AsyncIterator[ChatEvent]:
    yield TextEvent("Here is a picture of a mountain.")
    yield FileEvent("image/png", data=picture())


async def report(argument: str) -> AsyncIterator[ChatEvent]:
    yield TextEvent("Here is the report.")
    yield FileEvent("text/csv", data=b"city,degrees\nOslo,4\nBern,11\n")


async def approve(argument: str) -> AsyncIterator[ChatEvent]:
    yield TextEvent("I can send the mail.")
    arguments = {"to": "ada@example.com", "subject": argument or "Hello"}
    yield ApprovalRequest(ToolCall("", "send_mail", json.dumps(arguments)))


async def approved(calls: Sequence[ToolCall]) -> AsyncIterator[ChatEvent]:
    for call in calls:
        await asyncio.sleep(10 * PERIOD_S)
        yield ToolResultEvent(call.id, {"sent": True})
    yield TextEvent("I have sent the mail.")


async def denied(argument: str) -> AsyncIterator[ChatEvent]:
    yield TextEvent("I have not sent the mail.")


async def count(argument: str) -> AsyncIterator[ChatEvent]:
    for number in range(1, min(int(argument or 100), 1_000) + 1):
        await asyncio.sleep(PERIOD_S)
        yield TextEvent(f"{number} ")


COMMANDS: Mapping[str, Callable[[str], AsyncIterator[ChatEvent]]] = {
    "/think": think,
    "/status": status,
    "/sources": sources,
    "/image": image,
    "/report": report,
    "/approve": approve,
    "/count": count,
}


async def demo(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """Yield what the command of the last message asks for."""
    command, _, argument = request.prompt.partition(" ")
    if request.approved_calls:
        events = approved(request.approved_calls)
    elif request.messages[-1].role == "tool":
        events = denied(argument)
    else:
        events = COMMANDS.get(command, help)(argument)
    words = 0
    async for event in events:
        words += len(event.text.split()) if isinstance(event, TextEvent) else 0
        yield event
    for attachment in request.messages[-1].attachments:
        yield TextEvent(f"\n\nYou sent `{attachment.name}`, which is {attachment.media_type}.")
    yield UsageEvent(len(request.prompt.split()), words)


def picture(width: int = 320, height: int = 180) -> bytes:
    """Return a picture as a PNG: a mountain below the sky."""

    def color(x: int, y: int) -> bytes:
        if y > height - min(abs(x + 90) * 0.7, abs(x - 340) * 0.7):
            return bytes((52 + y // 6, 90 + y // 8, 84))
        return bytes((110 + y // 2, 160 + y // 3, 245))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"".join(color(x, y) for x in range(width)) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
