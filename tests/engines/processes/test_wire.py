"""Calls between processes: results, errors, and the end of the other side."""

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from app_toolkit.engines.processes.wire import Peer, PeerGone, Request, Server, call, call_all, listen, serve
from app_toolkit.errors import ConfigError, ControlError
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio


class Unsendable(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("why")
        self.lock = threading.Lock()


class Unreadable:
    """A value whose class fails when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class Service:
    """Answers on a thread without an event loop."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.unanswered: list[Request] = []
        self._listener = listen(self.path)
        self._ours, self._theirs = socket.socketpair()
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        server = Server(self._listener, self._receive)
        server.watch(self._theirs, self._end)
        while not self._ended:
            server.run_once()
        server.close()

    def _end(self) -> None:
        self._ended = True

    def _receive(self, request: Request) -> None:
        match request.method:
            case "add":
                request.perform(lambda a, b: a + b)
            case "refuse":
                error = ConfigError("the port is in use")
                error.add_note("a note")
                request.fail(error)
            case "break":
                request.fail(Unsendable())
            case "unreadable":
                request.answer(Unreadable())
            case "unsendable":
                request.answer(threading.Lock())
            case "wait":
                self.unanswered.append(request)

    def close(self) -> None:
        self._ours.close()
        self._thread.join(PATIENCE_S)
        self._theirs.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with closing(Service(tmp_path / "service")) as service:
        yield service


def test_a_call_returns_the_result(service: Service) -> None:
    assert call(service.path, "add", b"a" * 3_000_000, b"b") == b"a" * 3_000_000 + b"b"


def test_a_call_raises_the_error_of_the_method_with_its_notes(service: Service) -> None:
    with pytest.raises(ConfigError, match="the port is in use") as caught:
        call(service.path, "refuse")
    assert caught.value.__notes__ == ["a note"]


@pytest.mark.parametrize("method", ["break", "unsendable"])
def test_what_cannot_be_sent_is_an_error_of_the_call(service: Service, method: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"Unsendable: why|cannot pickle"):
        call(service.path, method)


def test_what_cannot_be_read_is_an_error_of_the_call_and_the_process_continues(service: Service) -> None:
    for method, args in (("add", (Unreadable(), 1)), ("unreadable", ())):
        with pytest.raises(ControlError, match="a message cannot be read: ValueError: invalid literal"):
            call(service.path, method, *args)
    assert call(service.path, "add", 1, 2) == 3


def test_a_call_that_is_not_answered_in_time_raises_an_error(service: Service) -> None:
    with pytest.raises(TimeoutError):
        call(service.path, "wait", timeout_s=0.05)


def test_a_process_that_does_not_listen_is_gone(tmp_path: Path) -> None:
    with pytest.raises(PeerGone, match="no process answers at"):
        call(str(tmp_path / "nobody"), "add", 1, 2)


def test_a_process_whose_backlog_is_full_is_not_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "stopped")
    with ExitStack() as opened:
        opened.enter_context(listen(path))
        with suppress(BlockingIOError):
            while True:
                connection = opened.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                connection.connect(path)
        with pytest.raises(TimeoutError, match="accepts no connection"):
            call(path, "add", 1, 2, timeout_s=0.05)
        assert call_all({"is stopped": (path, "add", (1, 2))}, PATIENCE_S) == {}


def test_a_server_without_a_free_descriptor_waits_and_then_accepts(tmp_path: Path) -> None:
    path = str(tmp_path / "busy")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(Server(listen(path), Request.answer)) as server, socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(path)
        free = os.dup(waiting.fileno())
        taken = [free]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        try:
            with suppress(OSError):
                while True:  # lower ones that other tests have left free
                    taken.append(os.dup(waiting.fileno()))
            turns, ends_at = 0, time.monotonic() + 0.2
            while time.monotonic() < ends_at:
                server.run_once(0.2)
                turns += 1
            assert turns < 10
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        answers: list[Any] = []
        caller = threading.Thread(target=lambda: answers.append(call(path, "any")))
        caller.start()
        while caller.is_alive():
            server.run_once(0.05)
    assert answers == [None]


def test_several_processes_are_called_at_the_same_time_and_the_results_in_time_are_returned(
    service: Service, tmp_path: Path
) -> None:
    calls: dict[str, tuple[str, str, tuple[Any, ...]]] = {
        "answers": (service.path, "add", (1, 2)),
        "fails": (service.path, "refuse", ()),
        "waits": (service.path, "wait", ()),
        "is gone": (str(tmp_path / "nobody"), "add", (1, 2)),
    }
    assert call_all(calls, 0.2) == {"answers": 3}


async def test_one_connection_carries_several_calls(service: Service) -> None:
    peer = Peer(service.path)
    waits = asyncio.create_task(peer.call("wait"))
    assert await peer.call("add", 1, 2) == 3
    with pytest.raises(ConfigError):
        await peer.call("refuse")
    await until(lambda: bool(service.unanswered))
    service.unanswered[0].answer("late")
    assert await waits == "late"
    peer.close()


async def test_open_calls_fail_when_the_process_ends_and_the_next_call_connects_again(tmp_path: Path) -> None:
    service = Service(tmp_path / "service")
    peer = Peer(service.path)
    waits = asyncio.create_task(peer.call("wait"))
    assert await peer.call("add", 1, 2) == 3
    await asyncio.to_thread(service.close)
    with pytest.raises(PeerGone, match="has ended"):
        await waits
    with pytest.raises(PeerGone, match="no process answers"):
        await peer.call("add", 1, 2)
    with closing(Service(tmp_path / "service")):
        assert await peer.call("add", 1, 2) == 3
        peer.close()


async def test_an_answer_that_cannot_be_read_is_an_error_of_its_call_only(service: Service) -> None:
    peer = Peer(service.path)
    waits = asyncio.create_task(peer.call("wait"))
    with pytest.raises(ControlError, match="a message cannot be read"):
        await peer.call("unreadable")
    await until(lambda: bool(service.unanswered))
    service.unanswered[0].answer("late")
    assert await waits == "late"
    peer.close()


async def test_the_end_of_a_connection_fails_only_its_own_calls(tmp_path: Path) -> None:
    """A process that ends a connection first is seen to end later than the next connection begins."""
    with closing(Service(tmp_path / "service")) as service:
        peer = Peer(service.path)
        before = asyncio.create_task(peer.call("wait"))
        assert await peer.call("add", 1, 2) == 3
        peer.close()
        later = asyncio.create_task(peer.call("wait"))
        with pytest.raises(PeerGone):
            await before
        assert await peer.call("add", 1, 2) == 3
        service.unanswered[-1].answer("late")
        assert await later == "late"
        peer.close()


async def test_an_event_loop_answers_and_cancels_the_calls_of_a_caller_that_leaves(tmp_path: Path) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(method: str, args: tuple[Any, ...]) -> Any:
        if method == "add":
            return sum(args)
        if method == "unreadable":
            return Unreadable()
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    path = str(tmp_path / "service")
    server = await serve(listen(path), answer)
    peer = Peer(path)
    waits = asyncio.create_task(peer.call("wait"))
    assert await peer.call("add", 1, 2) == 3
    assert await asyncio.to_thread(call, path, "add", 3, 4) == 7
    for unreadable in (("add", Unreadable()), ("unreadable",)):
        with pytest.raises(ControlError, match="a message cannot be read"):
            await asyncio.to_thread(call, path, *unreadable)
    await begun.wait()
    peer.close()
    with suppress(PeerGone):
        await waits
    async with asyncio.timeout(PATIENCE_S):
        await cancelled.wait()
    server.close()
