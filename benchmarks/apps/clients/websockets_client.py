"""The package `websockets` on a WebSocket route."""

import secrets

from cases import run, until_running, until_stopped
from websockets.asyncio.client import connect


def address(url: str) -> str:
    return url.replace("http", "ws", 1) + "/words"


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


run([stream, subprotocol, ping, abort])
