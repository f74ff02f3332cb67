"""Long answers that come to the proxy beside their connection."""

import socket
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Response

from app_toolkit.transport.sheet import LEAST, LIVE, MOST, Sheet

from .world import Raw, Served, World, eventually

SIZE = 3 * LEAST + 17


def page(seed: int, size: int = SIZE) -> bytes:
    """Bytes of which each piece tells whose it is."""
    return b"%016d" % seed * (size // 16) + b"#" * (size % 16)


def path(world: World, seed: int, size: int = SIZE) -> str:
    """One of its own for each test: the proxy remembers which are answered at length."""
    return f"/page/{world.folder.name}?seed={seed}&size={size}"


def url(world: World, seed: int, size: int = SIZE) -> str:
    return world.url + path(world, seed, size)


@pytest.fixture
def replica(world: World) -> Iterator[Served]:
    """One that is known to answer `/page` at length."""
    app = FastAPI()

    @app.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def get(name: str, seed: int, size: int = SIZE) -> Response:
        return Response(page(seed, size))

    replica = world.one(app=app)
    assert httpx.get(url(world, 0)).content == page(0)
    yield replica
    replica.stop()
    eventually(lambda: not Sheet.live)


def ask(world: World, seed: int, size: int = SIZE) -> Raw:
    """Somebody who takes nothing of the answer before he is asked to, nor the kernel all of the largest for him."""
    raw = world.raw()
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
    return raw.send(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path(world, seed, size).encode())


def body(raw: Raw, size: int = MOST) -> bytes:
    taken = bytearray(raw.buffer)
    raw.buffer = b""
    while len(taken) < size:
        taken += raw.socket.recv(1_000_000) or b"the end"
    return bytes(taken)


def test_one_answer_after_another_comes_on_the_same_sheet_and_is_whole(world: World, replica: Served) -> None:
    connections = set()
    with httpx.Client() as client:
        for seed in range(1, 8):
            got = client.get(url(world, seed))
            assert got.content == page(seed)
            assert got.headers["content-length"] == str(SIZE)
            assert not [name for name in got.headers if name.startswith("x-app-toolkit")]
            assert len(Sheet.live) == 1
            connections.add(replica.connections)
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("size", "live"), [(LEAST - 1, 0), (LEAST, 1), (LEAST + 1, 1), (2 * LEAST - 1, 1), (MOST, 1), (MOST + 1, 0)]
)
def test_answers_of_every_length_are_whole(world: World, replica: Served, size: int, live: int) -> None:
    with httpx.Client() as client:
        for seed in (1, 2):
            assert client.get(url(world, seed, size)).content == page(seed, size)
    assert len(Sheet.live) == live


def test_a_longer_answer_has_a_larger_sheet(world: World, replica: Served) -> None:
    sizes = []
    with httpx.Client() as client:
        for size in (LEAST, 4 * LEAST, 2 * LEAST):
            assert client.get(url(world, 1, size)).content == page(1, size)
            sizes += [sheet.size for sheet in Sheet.live]
    assert sizes == [LEAST, 4 * LEAST, 4 * LEAST]


def test_who_reads_slowly_reads_his_own_answer_while_others_are_answered(world: World, replica: Served) -> None:
    readers = {seed: ask(world, seed, MOST) for seed in range(10, 14)}
    for raw in readers.values():
        raw.until(b"\r\n\r\n")
    with httpx.Client() as client:
        for seed in range(20, 30):
            assert client.get(url(world, seed)).content == page(seed)
    assert len(Sheet.live) == 5
    for seed, raw in readers.items():
        with raw:
            assert body(raw) == page(seed, MOST)
            raw.send(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path(world, seed + 100).encode())
            assert raw.answer().body == page(seed + 100)


def test_beyond_so_many_sheets_answers_come_over_connections(world: World, replica: Served) -> None:
    readers = [ask(world, seed, MOST) for seed in range(LIVE + 2)]
    for raw in readers:
        raw.until(b"\r\n\r\n")
    assert len(Sheet.live) == LIVE
    for seed, raw in enumerate(readers):
        with raw:
            assert body(raw) == page(seed, MOST)


def test_a_client_that_leaves_in_the_middle_leaves_the_answers_of_others_whole(world: World, replica: Served) -> None:
    for seed in range(5):
        raw = ask(world, seed, MOST)
        raw.until(b"\r\n\r\n")
        raw.socket.close()
        with httpx.Client() as client:
            assert client.get(url(world, seed + 10)).content == page(seed + 10)
    eventually(world.settled)
    assert len(Sheet.live) <= 5


def test_an_answer_that_lies_there_is_read_to_its_end_although_its_replica_has_gone(
    world: World, replica: Served
) -> None:
    with ask(world, 1, MOST) as raw:
        raw.until(b"\r\n\r\n")
        replica.stop()
        assert body(raw) == page(1, MOST)


def test_what_is_not_the_whole_of_an_answer_comes_over_the_connection(world: World, replica: Served) -> None:
    head = httpx.head(url(world, 1))
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(SIZE), b"")
    with world.raw() as raw:
        raw.send(b"GET %b HTTP/1.0\r\nhost: a\r\n\r\n" % path(world, 1).encode())
        assert raw.rest().endswith(b"\r\n\r\n" + page(1))


def test_a_sheet_that_cannot_be_read_is_the_last_that_is_asked_for_and_loses_nothing(world: World) -> None:
    asked: list[bytes] = []

    def script(connection: socket.socket, head: bytes) -> bool:
        _, found, rest = head.partition(b"\r\nx-app-toolkit-sheet: ")
        asked.append(rest.partition(b"\r\n")[0])
        name = b"x-app-toolkit-sheet: %b/0/0/none/5\r\n\r\n" % asked[-1]
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n" + (name if found else b"\r\nwhole"))
        return True

    world.route(world.scripted(script).endpoint())
    for method in ("POST", "GET", "GET", "POST"):
        assert httpx.request(method, world.url + "/").text == "whole"
    assert [bool(word) for word in asked] == [False, True, False, False, False]


@pytest.mark.parametrize("path", ["/whole", f"/page/spoof?size={SIZE}"])
def test_what_an_app_says_of_sheets_is_not_believed(world: World, path: str) -> None:
    app = FastAPI()
    mine = {"x-app-toolkit-sheet": "0123456789abcdef/1/2/3/4"}

    @app.get("/whole")
    async def whole() -> Response:
        return Response(b"whole", headers=mine)

    @app.get("/page/spoof")
    async def spoof(size: int) -> Response:
        return Response(page(1, size), headers=mine)

    replica = world.one(app=app)
    with httpx.Client() as client:
        for _ in range(3):
            got = client.get(world.url + path)
            assert got.content == (b"whole" if path == "/whole" else page(1))
            assert "x-app-toolkit-sheet" not in got.headers
    replica.stop()
    eventually(lambda: not Sheet.live)
