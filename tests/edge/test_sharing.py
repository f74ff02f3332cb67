"""One port for the proxies of one instance on one host."""

import errno
import fcntl
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge import sharing
from app_toolkit.edge.server import bind
from app_toolkit.edge.sharing import SharedPort
from app_toolkit.errors import StartupError


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def listens(shared: SharedPort) -> HTTPOptions:
    """It accepts from now on; the options for whoever wants the same port."""
    shared.socket.listen()
    return HTTPOptions(port=shared.socket.getsockname()[1])


def test_processes_of_one_instance_share_a_port(tmp_path: Path, opened: ExitStack) -> None:
    first = opened.enter_context(closing(SharedPort(HTTPOptions(port=0), tmp_path)))
    options = listens(first)
    second = opened.enter_context(closing(SharedPort(options, tmp_path)))
    listens(second)
    for each in (first, second):
        each.socket.settimeout(0.01)
    reached: set[SharedPort] = set()
    while len(reached) < 2:  # the kernel chooses by the client's port, which is another one each time
        client = opened.enter_context(socket.create_connection(("127.0.0.1", options.port)))
        for each in (first, second):
            try:
                accepted, peer = each.socket.accept()
            except TimeoutError:
                continue
            opened.enter_context(accepted)
            assert peer == client.getsockname()
            reached.add(each)


def test_a_port_shared_by_another_instance_is_refused(tmp_path: Path, opened: ExitStack) -> None:
    options = listens(opened.enter_context(closing(SharedPort(HTTPOptions(port=0), tmp_path / "ours"))))
    with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{options.port}: Address already in use"):
        SharedPort(options, tmp_path / "theirs")
    with pytest.raises(StartupError, match="already in use"):
        bind(options)
    # What was refused holds nothing: when ours has gone, theirs is the first.
    opened.close()
    opened.enter_context(closing(SharedPort(options, tmp_path / "theirs")))


def test_a_port_that_is_not_shared_is_refused(tmp_path: Path, opened: ExitStack) -> None:
    alone = opened.enter_context(bind(HTTPOptions(port=0)))
    alone.listen()
    with pytest.raises(StartupError, match="already in use"):
        SharedPort(HTTPOptions(port=alone.getsockname()[1]), tmp_path)


def test_the_first_process_after_all_have_ended_takes_the_port_alone(tmp_path: Path, opened: ExitStack) -> None:
    first = SharedPort(HTTPOptions(port=0), tmp_path)
    options = listens(first)
    first.close()
    stranger = opened.enter_context(bind(options, shared=True))
    stranger.listen()
    with pytest.raises(StartupError, match="already in use"):
        SharedPort(options, tmp_path)


def test_a_port_taken_alone_is_not_shared(opened: ExitStack) -> None:
    alone = opened.enter_context(bind(HTTPOptions(port=0)))
    alone.listen()
    with pytest.raises(StartupError, match="already in use"):
        bind(HTTPOptions(port=alone.getsockname()[1]), shared=True)


def test_no_process_listens_if_the_last_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = HTTPOptions(port=0)
    made: list[socket.socket] = []

    def binding(options: HTTPOptions, *, shared: bool = False) -> socket.socket:
        made.append(bind(options, shared=shared))
        return made[-1]

    def lock(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            raise OSError(errno.ENOLCK, "no locks are left")

    monkeypatch.setattr(sharing, "bind", binding)
    monkeypatch.setattr(sharing.fcntl, "flock", lock)
    with pytest.raises(OSError, match="no locks are left"):
        SharedPort(options, tmp_path)
    assert [each.fileno() for each in made] == [-1] * 3
