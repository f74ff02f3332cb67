"""The package `websockets` on an ordinary WebSocket route, and on the one of a chat."""

import json
import secrets
from typing import Any

from cases import run, until_running, until_stopped
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed


def address(url: str, path: str = "/words") -> str:
    return url.replace("http", "ws", 1) + path


async def stream(url: str, _: str) -> None:
    async with connect(address(url), proxy=None) as websocket:
        for prompt in ("hello ä world", "again"):
            await websocket.send(prompt)
            words = []
            while (word := await websocket.recv()) != ".":
                words.append(word)
            assert "".join(map(str, words)) == prompt


async def subprotocol(url: str, _: str) -> None:
    async with connect(address(url), proxy=None, subprotocols=["chat"]) as websocket:  # type: ignore[list-item]
        assert websocket.subprotocol == "chat"


async def ping(url: str, _: str) -> None:
    async with connect(address(url), proxy=None) as websocket:
        assert await (await websocket.ping()) >= 0


async def abort(url: str, _: str) -> None:
    word = secrets.token_hex(4)
    async with connect(address(url), proxy=None) as websocket:
        await websocket.send(f"{word} /forever")
        await websocket.recv()
        await until_running(url, word)
    await until_stopped(url, word)


def said(id: str, prompt: str) -> str:
    return json.dumps({"type": "chat", "id": id, "messages": [{"role": "user", "content": prompt}]})


async def next_event(websocket: ClientConnection) -> dict[str, Any]:
    """Return the next event of a response."""
    while "number" not in (event := json.loads(await websocket.recv())):
        assert event["type"] == "heartbeat", event
    return dict(event)


async def chat(url: str, _: str) -> None:
    async with connect(address(url, "/ws"), proxy=None) as websocket:
        await websocket.send(said(secrets.token_hex(8), "hello ä world"))
        events = [await next_event(websocket)]
        while events[-1]["type"] not in ("finish", "error"):
            events.append(await next_event(websocket))
    assert "".join(event["text"] for event in events if event["type"] == "text") == "hello ä world"
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert (events[-1]["type"], events[-1]["reason"]) == ("finish", "stop")


async def stop_of_a_chat(url: str, _: str) -> None:
    word = secrets.token_hex(8)
    async with connect(address(url, "/ws"), proxy=None) as websocket:
        await websocket.send(said(word, f"{word} /forever"))
        await until_running(url, word)
        await websocket.send(json.dumps({"type": "stop", "id": word}))
        await until_stopped(url, word)
        while (event := await next_event(websocket))["type"] != "finish":
            pass
        assert event["reason"] == "stopped"


async def reconnect_of_a_chat(_: str, relay: str) -> None:
    id, text = secrets.token_hex(8), " ".join(map(str, range(100)))
    command = said(id, text)
    events: list[dict[str, Any]] = []
    connections = 0
    while not events or events[-1]["type"] != "finish":
        connections += 1
        try:
            async with connect(address(relay, "/ws"), proxy=None, compression=None) as websocket:
                await websocket.send(command)
                while not events or events[-1]["type"] != "finish":
                    events.append(await next_event(websocket))
                    command = json.dumps({"type": "resume", "id": id, "after": events[-1]["number"]})
        except (ConnectionClosed, OSError):
            pass
    assert connections > 2, "the relay has cut no connection"
    assert "".join(event["text"] for event in events if event["type"] == "text") == text
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))


run([stream, subprotocol, ping, abort, chat, stop_of_a_chat, reconnect_of_a_chat])
