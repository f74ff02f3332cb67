"""Over TCP a caller sends a request to nobody, and unpickles nothing of anybody, who does not know the secret."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.types import Address
from app_toolkit.wire.preface import (
    LAST,
    NONCE,
    RESPONSE,
    Unproven,
    first_line,
    new_nonce,
    prove,
    read_response,
    respond,
)
from tests.patience import until
from tests.security.hostile import calls_in_vain, trapped, turned_away

SECRET = b"0123456789abcdef"
ADDRESS = ("10.0.0.7", 4242)

Hostile = Callable[[bytes, tuple[str, int]], Awaitable[bytes]]
"""What a server that does not know the secret answers a first line; it knows its own address."""


def test_both_ends_that_know_the_secret_agree() -> None:
    asked = first_line()
    said, expected = respond(SECRET, asked, ADDRESS)
    assert (len(said), len(expected)) == (RESPONSE, LAST)
    assert read_response(SECRET, asked, ADDRESS, said) == expected
    assert SECRET not in asked + said + expected


def test_no_two_connections_are_alike() -> None:
    said = {first_line() for _ in range(100)} | {respond(SECRET, b"", ADDRESS)[0] for _ in range(100)}
    assert len(said) == 200


@given(st.integers(0, RESPONSE - 1), st.integers(1, 255))
def test_a_response_of_which_one_byte_was_changed_proves_nothing(at: int, change: int) -> None:
    asked = first_line()
    said = bytearray(respond(SECRET, asked, ADDRESS)[0])
    said[at] ^= change
    with pytest.raises(Unproven):
        read_response(SECRET, asked, ADDRESS, bytes(said))


def test_a_response_for_another_secret_caller_address_or_purpose_proves_nothing() -> None:
    asked = first_line()
    for secret, heard, address in [
        (b"another secret", asked, ADDRESS),
        (SECRET, first_line(), ADDRESS),
        (SECRET, asked, ("10.0.0.7", 4243)),
        (SECRET, asked, ("10.0.0.8", 4242)),
        (SECRET, asked.replace(b"http", b"other"), ADDRESS),
    ]:
        with pytest.raises(Unproven):
            read_response(SECRET, asked, ADDRESS, respond(secret, heard, address)[0])


def test_the_proof_of_a_caller_is_none_of_a_replica() -> None:
    asked, nonce = first_line(), new_nonce()
    with pytest.raises(Unproven):
        read_response(SECRET, asked, ADDRESS, nonce + b" " + prove(SECRET, "caller", asked, ADDRESS, nonce) + b"\n")


# Servers that do not know the secret


class Heard:
    def __init__(self) -> None:
        self.connections: list[bytes] = []


@asynccontextmanager
async def hostile(answers: Hostile) -> AsyncIterator[tuple[Address, Heard]]:
    """A server that answers the first line so, and writes down all that it hears."""
    heard = Heard()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        writer.write(await answers(first, writer.get_extra_info("sockname")))
        said = first
        with suppress(ConnectionResetError):  # by a caller that has not read all of the answer
            while more := await reader.read(65_536):
                said += more
        heard.connections.append(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield Address(f"tcp:{host}:{port}"), heard


async def answers_http(first: bytes, own: tuple[str, int]) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi" + bytes(RESPONSE)


async def reflects(first: bytes, own: tuple[str, int]) -> bytes:
    """Says what the caller has said."""
    return (first + first + first)[:RESPONSE]


async def guesses(first: bytes, own: tuple[str, int]) -> bytes:
    return respond(b"x" * len(SECRET), first, own)[0]


async def replays(first: bytes, own: tuple[str, int]) -> bytes:
    """Says what a real replica has said to another caller here."""
    return respond(SECRET, first_line(), own)[0]


async def asks_another_replica(first: bytes, own: tuple[str, int]) -> bytes:
    """Passes the question on to a real replica of the same instance, at its own address, and its answer back."""
    return respond(SECRET, first, (own[0], own[1] + 1))[0]


HOSTILE = [answers_http, reflects, guesses, replays, asks_another_replica]


@pytest.mark.anyio
@pytest.mark.parametrize("answers", HOSTILE)
async def test_a_server_without_the_secret_gets_only_the_first_line(
    answers: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    async with hostile(answers) as (address, heard):
        said = await turned_away(SECRET, address)
        assert "the process that listens there did not prove that it has the secret of this instance" in said
        assert f"nothing was sent to {address}" in caplog.text
        await until(lambda: bool(heard.connections))
    [sent] = heard.connections
    assert len(sent) == len(first_line())
    assert sent.startswith(b"app-toolkit ")
    assert SECRET not in sent


@pytest.mark.anyio
async def test_a_server_that_closes_at_once_gets_nothing() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_server(closes, "127.0.0.1", 0) as server:
        address = Address("tcp:{}:{}".format(*server.sockets[0].getsockname()))
        assert "did not prove that it has the secret" in await turned_away(SECRET, address)


@pytest.mark.anyio
async def test_nothing_is_unpickled_of_a_server_that_does_not_know_the_secret(tmp_path: Path) -> None:
    async def answers(first: bytes, own: tuple[str, int]) -> bytes:
        return await guesses(first, own) + trapped(tmp_path / "unpickled")

    async with hostile(answers) as (address, heard):
        await calls_in_vain(SECRET, address)
    assert not (tmp_path / "unpickled").exists()
    assert all(len(said) == len(first_line()) for said in heard.connections)
    assert len(first_line()) > NONCE
