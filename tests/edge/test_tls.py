"""TLS: the same service behind a handshake, which has a clock and a place in the count."""

import hashlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge import tls
from app_toolkit.edge.protocol import ClientConnection, Timeouts
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import StartupError
from tests.edge.certificates import Certificate, certificate, weak
from tests.edge.world import CALM, PATIENCE, Raw, RunningProxy, World, eventually, later, lingering_ends, takes_a_little
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secured(
    certified: Certificate, tmp_path: Path, put_away: Callable[[World], None]
) -> Iterator[Callable[..., World]]:
    """Worlds whose proxies speak TLS."""
    made: list[World] = []

    def secured(patience: Timeouts = CALM, **options: Any) -> World:
        made.append(World(RunningProxy(patience, **certified.options, **options), tmp_path))
        return made[-1]

    yield secured
    for world in made:
        put_away(world)


@pytest.fixture
def world(secured: Callable[..., World]) -> World:
    return secured()


def test_an_app_sees_that_its_client_speaks_tls(world: World, certified: Certificate) -> None:
    world.one()
    with httpx.Client(base_url=f"https://localhost:{world.port}", verify=certified.believed) as client:
        for _ in range(3):  # on one connection
            assert client.get("/seen").json()["scheme"] == "https"
    eventually(lambda: world.edge.statistics().connections == 0)


@pytest.mark.anyio
async def test_a_websocket_over_tls_is_one(world: World, certified: Certificate) -> None:
    world.one()
    # Not the client with threads: two of them in one TLS connection now and then wait for each other.
    async with connect(f"wss://localhost:{world.port}/ws", ssl=certified.believed, proxy=None) as client:
        for i in range(3):
            await client.send(f"{i}")
            assert await client.recv() == f"wss:{i}"
        await client.send("bye")
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert (client.close_code, client.close_reason) == (4321, "as you wish")


def test_large_bodies_pass_in_both_directions(world: World, certified: Certificate) -> None:
    world.one()
    body = bytes(range(256)) * 20_000
    with httpx.Client(
        base_url=f"https://localhost:{world.port}", verify=certified.believed, timeout=PATIENCE_S
    ) as client:
        assert client.post("/digest", content=body).json()["sha256"] == hashlib.sha256(body).hexdigest()
        assert client.post("/echo", content=body).content == body


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_a_response_that_is_still_read_outlasts_the_linger_time(
    secured: Callable[..., World], certified: Certificate, connection: bytes
) -> None:
    patience = replace(CALM, linger_s=0.2, keep_alive_s=0.2)
    world = secured(patience)
    world.one()
    size = 4_000_000

    def sockets() -> list[Any]:
        connections = world.edge.server.connections()
        return [each.transport for each in connections if isinstance(each, ClientConnection)]

    def narrow() -> None:  # so that the kernel cannot hold it all, which it would deliver whatever we do
        for each in sockets():
            each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)

    def unsent() -> int:
        return sum(each.get_write_buffer_size() for each in sockets())

    with Raw(world.port, certified.believed) as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        eventually(lambda: world.edge.call(sockets))
        world.edge.call(narrow)
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\nconnection: %b\r\ncontent-length: %d\r\n\r\n" % (connection, size))
        raw.send(b"x" * size)
        raw.until(b"\r\n\r\n")
        taken = 0

        # Until the proxy has all of it, or even the TLS layer has given all away; then slowly, for several times as
        # long as anybody may linger.
        while world.edge.statistics().ongoing or (connection == b"keep-alive" and world.edge.call(unsent)):
            taken += len(raw.exactly(16_384))
        until = time.monotonic() + 5 * patience.linger_s
        while time.monotonic() < until:
            taken += len(raw.exactly(1_024))
            later(world, 0)
            time.sleep(0.02)
        assert world.edge.call(sockets)
        raw.exactly(size - taken)
        # And then it is closed, for nothing is on its way any more.
        eventually(lambda: later(world, 0) or world.edge.statistics().connections == 0)


def test_a_client_that_reads_slowly_is_not_cut(world: World, certified: Certificate) -> None:
    world.one()
    with Raw(world.port, certified.believed) as raw:
        takes_a_little(world, raw)


def test_an_early_response_is_readable_although_its_body_was_not_read(world: World, certified: Certificate) -> None:
    world.one()
    with Raw(world.port, certified.believed) as raw:
        raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 5000000\r\n\r\n" + b"x" * 900_000)
        got = raw.answer()
        assert (got.status, got.header("connection"), got.body) == (413, "close", b"too much")
        lingering_ends(world)
        assert raw.closed()


def test_a_client_that_does_not_speak_tls_is_closed(world: World, certified: Certificate) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(GET % b"/hello")
        assert b"HTTP" not in raw.rest()
    eventually(lambda: world.edge.statistics().connections == 0)
    with Raw(world.port, certified.believed) as raw:
        assert raw.send(GET % b"/hello").answer().status == 200


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silence", "half a hello"])
def test_a_handshake_without_end_is_given_up(secured: Callable[..., World], hello: bytes) -> None:
    world = secured(PATIENCE)
    with world.raw() as raw:
        raw.send(hello)
        assert raw.closed()  # after `head_s`
    eventually(lambda: world.edge.statistics().connections == 0)


def test_a_tls_handshake_counts_as_a_connection(secured: Callable[..., World], certified: Certificate) -> None:
    world = secured(max_connections=2)
    world.one()
    with Raw(world.port, certified.believed) as served, world.raw():
        eventually(lambda: world.edge.statistics().connections == 2)
        with Raw(world.port, certified.believed) as refused:
            got = refused.send(GET % b"/hello").answer()
            assert (got.status, got.error) == (503, "too_many_connections")
        assert served.send(GET % b"/hello").answer().status == 200


def test_draining_waits_for_no_handshake(world: World, certified: Certificate) -> None:
    with Raw(world.port, certified.believed) as idle, world.raw() as shaking:
        eventually(lambda: world.edge.statistics().connections == 2)
        world.edge.drain(PATIENCE_S).result(PATIENCE_S)
        assert shaking.closed()
        assert idle.closed()


# Certificates that are none


def test_both_may_be_in_one_file(certified: Certificate, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(certified.keyfile).read_text() + Path(certified.certfile).read_text())
    assert isinstance(tls.context(HTTPOptions(ssl_certfile=str(both))), ssl.SSLContext)
    assert tls.context(HTTPOptions()) is None


def test_a_wrong_file_is_a_sentence(certified: Certificate, tmp_path: Path) -> None:
    other = certificate(tmp_path, "other")
    locked = certificate(tmp_path, "locked", locked=True)
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    cases = {
        (None, certified.keyfile): "is set without ssl_certfile",
        ("/nowhere.pem", certified.keyfile): "the certificate '/nowhere.pem' cannot be read: No such file or directory",
        (certified.certfile, "/nowhere.key"): "the key '/nowhere.key' cannot be read: No such file or directory",
        (certified.certfile, str(tmp_path)): "cannot be read: Is a directory",
        (certified.certfile, other.keyfile): "the key belongs to another certificate",
        (certified.certfile, None): "not a PEM file, or encrypted with a password",
        (str(nonsense), certified.keyfile): "not a PEM file, or encrypted with a password",
        (locked.certfile, locked.keyfile): "not a PEM file, or encrypted with a password",
        weak(tmp_path): "OpenSSL refuses them (ee key too small)",
    }
    for (certfile, keyfile), sentence in cases.items():
        with pytest.raises(StartupError) as said:
            tls.context(HTTPOptions(ssl_certfile=certfile, ssl_keyfile=keyfile))
        assert sentence in str(said.value)
        assert "\n" not in str(said.value)


def test_a_proxy_with_a_wrong_certificate_does_not_listen(certified: Certificate, tmp_path: Path) -> None:
    from app_toolkit.edge.hosted_proxy import HostedProxy as Served
    from app_toolkit.exchange.router import Router

    async def watch(seen: object, prefixes: object) -> dict[str, Any]:
        raise AssertionError("it has nothing to ask")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = HTTPOptions(port=port, ssl_certfile=certified.certfile, ssl_keyfile="/nowhere.key", access_log=False)
    with pytest.raises(StartupError, match="nowhere"):
        Served(lambda: ProxyState(b"s", Router), options, watch).start()
    with pytest.raises(ConnectionRefusedError):
        Raw(port)


def test_a_client_that_ends_tls_after_its_request_reads_the_response(world: World, certified: Certificate) -> None:
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = certified.believed.wrap_bio(heard, said, server_hostname="localhost")
    with world.raw() as raw:

        def hear() -> bytes:
            raw.socket.sendall(said.read())
            data = raw.socket.recv(65_536)
            heard.write(data)
            return data

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                hear()
        tls.write(GET % b"/-/healthz")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        while hear():
            pass
        with pytest.raises(ssl.SSLError, match=r"(?i)application.data.after.close.notify"):  # it is there to be read
            tls.unwrap()


def test_a_lost_client_does_not_disturb_the_sweep_of_others(world: World, certified: Certificate) -> None:
    world.one()
    failed: list[Exception] = []
    sweeping = True

    def sweep_in_every_turn() -> None:
        try:
            world.edge.server.sweep(time.monotonic())
        except Exception as error:
            failed.append(error)
        if sweeping:
            world.edge.loop.call_soon(sweep_in_every_turn)

    with Raw(world.port, certified.believed) as raw:
        assert raw.send(GET % b"/hello").answer().status == 200
        world.edge.loop.call_soon_threadsafe(sweep_in_every_turn)
        world.edge.call(lambda: None)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: world.edge.statistics().connections == 0)
    sweeping = False
    assert failed == []
