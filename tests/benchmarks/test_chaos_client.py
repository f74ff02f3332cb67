"""The load client distinguishes the outcomes of requests and hides no failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from benchmarks.chaos.client import (
    OK,
    REFUSED,
    RESET,
    TIMEOUT,
    TRUNCATED,
    WRONG,
    Client,
    not_ok,
    talk,
)
from benchmarks.chaos.scenarios import requests_to_a_lossy_server
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

Reply = Callable[[bytes], bytes | None]


def echo(id: bytes) -> bytes:
    body = b'{"id":"%b"}' % id
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@asynccontextmanager
async def answering(reply: Reply, pause_s: float = 0.0, patience_s: float = PATIENCE_S) -> AsyncIterator[Client]:
    """A client of a server that sends what `reply` returns for an ID, and closes if that is no complete response."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(pause_s)
                said = reply(head.partition(b"x-ledger-id: ")[2].partition(b"\r\n")[0])
                writer.write(said or b"")
                if not said or said.endswith(b"cut"):
                    break
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        group.create_task(serve(reader, writer))

    async with (
        await asyncio.start_server(accepted, "127.0.0.1", 0) as server,
        asyncio.TaskGroup() as group,
        Client(server.sockets[0].getsockname(), patience_s=patience_s) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (echo, "OK"),
        (lambda id: echo(b"another"), WRONG),
        (lambda id: b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n", "503"),
        (lambda id: b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "404"),
        (lambda id: None, RESET),
        (lambda id: b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\ncut", TRUNCATED),
        (lambda id: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ncut", TRUNCATED),
    ],
)
async def test_each_outcome_is_distinguished(reply: Reply, outcome: str) -> None:
    async with answering(reply) as client:
        done = await client.get()
    assert done.outcome == outcome
    assert done.retry_after is (outcome == "503")


async def test_a_request_without_a_response_times_out() -> None:
    async with answering(echo, pause_s=1, patience_s=0.3) as client:
        assert (await client.get()).outcome == TIMEOUT


async def test_a_request_to_a_closed_port_is_refused() -> None:
    async with answering(echo) as client:
        pass
    assert (await Client(client.address).get()).outcome == REFUSED


async def test_a_connection_that_the_server_closed_is_not_reused() -> None:
    async with answering(lambda id: echo(id).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as client:
        assert [(await client.get()).outcome for _ in range(3)] == ["OK"] * 3


async def test_one_lost_response_in_a_thousand_is_detected() -> None:
    found = await requests_to_a_lossy_server(200, every=100)
    assert [done.outcome for done in not_ok(found)] == [RESET, RESET]


Talk = Callable[[ServerConnection, asyncio.Event], Awaitable[None]]


async def say_back(socket: ServerConnection, over: asyncio.Event) -> None:
    async for text in socket:
        await socket.send(f"two/one {text!s}")
        over.set()


async def restart(socket: ServerConnection, over: asyncio.Event) -> None:
    await socket.recv()
    await socket.close(1012)


async def cut(socket: ServerConnection, over: asyncio.Event) -> None:
    await socket.recv()
    socket.transport.abort()


async def mix_up(socket: ServerConnection, over: asyncio.Event) -> None:
    await socket.recv()
    await socket.send("two/one another")
    await socket.close()


def refuse(socket: ServerConnection, request: Request) -> Response | None:
    return socket.respond(503, "busy") if request.path == "/busy" else None


@pytest.mark.parametrize(
    ("reply", "path", "said", "closed"),
    [
        (say_back, "/", {OK}, "1000"),
        (restart, "/", set(), "1012"),
        (cut, "/", set(), "1006"),
        (mix_up, "/", {WRONG}, "1000"),
        (say_back, "/busy", set(), "503"),
    ],
)
async def test_a_dialogue_records_the_echoes_and_the_close_code(
    reply: Talk, path: str, said: set[str], closed: str
) -> None:
    over = asyncio.Event()
    async with serve(lambda socket: reply(socket, over), "127.0.0.1", 0, process_request=refuse) as server:
        (listener,) = server.sockets
        dialogue = await talk(listener.getsockname(), path, 0.01, over)
    assert {message.outcome for message in dialogue.messages} == said
    assert {message.version for message in dialogue.messages} <= {"two/one"}
    assert dialogue.closed == closed
    assert dialogue.ended > dialogue.opened
