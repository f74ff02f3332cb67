"""How a replica is asked on the socket of its callers."""

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app_toolkit.replica.http.reach import ask
from tests.patience import PATIENCE_S
from tests.replica.client import SECRET


class Full:
    """A socket file at which no more connections fit until one is accepted."""

    def __init__(self, open_until_closed: ExitStack) -> None:
        folder = open_until_closed.enter_context(tempfile.TemporaryDirectory(prefix="atk"))
        self.path = str(Path(folder) / "r.sock")
        self.listener = open_until_closed.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(self.path)
        self.listener.listen(1)
        self.waiting = 0
        while True:
            other = open_until_closed.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            try:
                other.connect(self.path)
            except BlockingIOError:
                return
            self.waiting += 1


@pytest.fixture
def full() -> Iterator[Full]:
    with ExitStack() as open_until_closed:
        yield Full(open_until_closed)


def test_a_probe_times_out_if_the_replica_accepts_no_connection(full: Full) -> None:
    with pytest.raises(TimeoutError, match="nothing was accepted"):
        ask(full.path, SECRET, 0.1)


def test_a_probe_waits_for_a_replica_with_a_full_backlog(full: Full) -> None:
    outcome: list[object] = []

    def probe() -> None:
        try:
            outcome.append(ask(full.path, SECRET, PATIENCE_S))
        except OSError as error:
            outcome.append(error)

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        full.listener.settimeout(PATIENCE_S)
        for _ in range(full.waiting):
            full.listener.accept()[0].close()
        with full.listener.accept()[0] as connection:
            assert connection.recv(4).startswith(b"HEAD")
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    finally:
        probing.join(PATIENCE_S)
    assert outcome == [None]
