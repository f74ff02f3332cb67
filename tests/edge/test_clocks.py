"""Clients that take their time: each is closed when its time is over, and costs the others nothing."""

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from app_toolkit.proxy.protocol import Timeouts
from app_toolkit.proxy.server import SWEEP_S
from tests.patience import PATIENCE_S
from tests.proxy.world import PATIENCE, Raw, World, eventually

from .app import build
from .corpus import CHUNKED, END, GET, HIDDEN, KEY, POST, UPGRADE

SLACK_S = 10.0
"""Beyond deadline and sweep: the machine is busy with other things too."""

STEP_S = 0.05

ATTEMPTS = 20
"""How often a client begins again that the machine has held up."""


@dataclass(frozen=True)
class Slow:
    """So many clients that send this, and then, every `STEP_S`, that."""

    count: int
    at_once: bytes
    then: bytes
    hears: tuple[bytes, ...]
    """How what it is told begins, answer by answer."""


NOTHING, TIMEOUT, OK = (), (b"HTTP/1.1 408 ",), (b"HTTP/1.1 200 ", b"HTTP/1.1 408 ")
SLOW = {
    "silent": Slow(100, b"", b"", NOTHING),
    "nothing but empty lines": Slow(20, b"\r\n", b"\r\n", NOTHING),
    "half a head": Slow(150, GET + b"x: ", b"", TIMEOUT),
    "a head byte by byte": Slow(30, GET + b"x: ", b"v", TIMEOUT),
    "half a handshake": Slow(50, GET + UPGRADE + b"websocket\r\n" + KEY, b"", TIMEOUT),
    "half of the next head": Slow(20, GET + END + GET, b"", OK),
    "no body": Slow(50, POST + b"content-length: 1000000\r\n\r\n", b"", TIMEOUT),
    "a body byte by byte": Slow(30, POST + b"content-length: 1000000\r\n\r\n", b"x", TIMEOUT),
    "chunks byte by byte": Slow(20, CHUNKED + END, b"1\r\nx\r\n", TIMEOUT),
    "trailers without end": Slow(20, CHUNKED + END + b"0\r\n", b"x: 1\r\n", TIMEOUT),
    "an upgrade whose body does not come": Slow(30, POST + UPGRADE + b"h2c\r\n" + HIDDEN, b"", TIMEOUT),
}


@dataclass
class Client:
    kind: str
    socket: socket.socket
    since: float
    """Before it connected."""
    heard: bytes = b""
    ended: float | None = None
    is_serving: list[bytes] = field(default_factory=list)

    def step(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.send(SLOW[self.kind].then)

    def read(self) -> bool:
        """Whether there is more to come."""
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        self.heard += data
        if not data:
            self.ended = time.monotonic()
        return bool(data)


@pytest.fixture(scope="module")
def patience() -> Timeouts:
    return PATIENCE


@pytest.fixture
def files() -> Iterator[None]:
    """Both ends of every connection are ours here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Asking:
    """Another client, which asks one request after another for as long as it is in the `with`."""

    def __init__(self, port: int) -> None:
        self._raw = Raw(port)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.statuses: Counter[int] = Counter()

    def __enter__(self) -> "Asking":
        self._ask()  # at once: a connection whose first request is late is closed
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._raw.socket.close()

    def _run(self) -> None:
        while not self._over.wait(STEP_S):
            self._ask()

    def _ask(self) -> None:
        self.statuses[self._raw.send(GET + END).answer().status] += 1


def begun(kind: str, port: int) -> Client:
    """A client that has sent its beginning in time. One that the machine has held up begins again."""
    for _ in range(ATTEMPTS):
        since = time.monotonic()
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            connection.sendall(SLOW[kind].at_once)
            if time.monotonic() < since + PATIENCE.head_s / 2:
                return Client(kind, connection, since)
        connection.close()
    raise AssertionError(f"the machine held up {ATTEMPTS} clients that begin with {kind}")


def all_closed(clients: list[Client]) -> None:
    """Go on as slowly as they do, until each is closed."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        deadline = time.monotonic() + PATIENCE_S
        step = time.monotonic()
        while selector.get_map():
            assert time.monotonic() < deadline, Counter(key.data.kind for key in selector.get_map().values())
            for key, _ in selector.select(STEP_S):
                if not key.data.read():
                    selector.unregister(key.fileobj)
            if time.monotonic() - step >= STEP_S:
                step = time.monotonic()
                for key in list(selector.get_map().values()):
                    if SLOW[key.data.kind].then:
                        key.data.step()


def test_500_slow_clients_are_closed_in_time_and_another_one_is_served(world: World, files: None) -> None:
    assert sum(each.count for each in SLOW.values()) >= 500
    replica = world.one(app=build(), most=1_000)
    clients: list[Client] = []
    with contextlib.ExitStack() as stack, Asking(world.port) as other:
        for kind, slow in SLOW.items():
            for _ in range(slow.count):
                clients.append(begun(kind, world.port))
                stack.enter_context(clients[-1].socket)
        all_closed(clients)
        assert other.statuses.keys() == {200}
        assert other.statuses[200] >= 5
    for client in clients:
        assert client.ended is not None
        took = client.ended - client.since
        assert min(PATIENCE.head_s, PATIENCE.body.grace_s) < took, (client.kind, took)
        assert took < max(PATIENCE.head_s, PATIENCE.body.grace_s) + 2 * SWEEP_S + SLACK_S, (client.kind, took)
        hears = SLOW[client.kind].hears
        assert client.heard.count(b"HTTP/1.1 ") == len(hears), client
        assert client.heard.startswith(hears[0] if hears else b""), client
        assert hears == () or hears[-1] in client.heard, client
    eventually(lambda: world.edge.statistics().connections == 0)
    eventually(lambda: replica.admission.statistics().running == 0)


def uploaded(raw: Raw, size: int, rate: float) -> float:
    """Send a body at this rate, and give the longest pause between two of its pieces."""
    longest, sent = 0.0, 0
    with contextlib.suppress(ConnectionError):  # who is too late is told so, and closed
        raw.send(POST + b"content-length: %d\r\n\r\n" % size)
        began = last = time.monotonic()
        while sent < size:
            time.sleep(STEP_S)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            due = min(size, int(rate * (now - began)))
            raw.send(b"b" * (due - sent))
            sent = due
    return longest


def test_a_body_that_is_fast_enough_may_take_its_time(world: World) -> None:
    world.one(app=build())
    rate = PATIENCE.body.bytes_per_s * 3
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        with world.raw() as raw:
            pause = uploaded(raw, int(rate * 2), rate)
            answer = raw.answer()
        if answer.status != 408 or pause < PATIENCE.body.grace_s / 4:
            break
        # The machine has held up the client, which was too slow indeed.
    assert answer.json()["length"] == rate * 2
    assert time.monotonic() - began > PATIENCE.body.grace_s + SWEEP_S
