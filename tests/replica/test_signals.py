"""Signal handlers of user code that runs beside the main thread, which is busy with something else."""

import asyncio
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, Literal

import pytest

from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.host.replica_server import ReplicaServer
from app_toolkit.replica import signals as module
from app_toolkit.replica.signals import Signals
from app_toolkit.types import Address
from tests.patience import PATIENCE_S, until

from .client import SECRET, Serve, Served, wait_until

MINE, OTHER = signal.SIGUSR1, signal.SIGUSR2
WHERE: ContextVar[str] = ContextVar("where", default="nowhere")

Calls = list[Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """The notes of handlers. The signal `OTHER` has a handler of the main thread, and `MINE` has none."""
    monkeypatch.setattr(module, "WAIT_S", PATIENCE_S)
    notes: Calls = []

    def found(number: int, frame: FrameType | None) -> None:
        notes.append(("found", threading.current_thread() is threading.main_thread()))

    before = signal.signal(OTHER, found)
    yield notes
    assert signal.signal(OTHER, before) is found
    assert signal.getsignal(MINE) is signal.SIG_DFL


Kind = Literal["uvloop", "asyncio"]


def run(
    user: Callable[[], Coroutine[Any, Any, None]], main: Callable[[], None] = lambda: None, kind: Kind = "uvloop"
) -> None:
    """Run a coroutine on a data loop, and a function on the main thread."""
    real, signals, done = signal.signal, Signals(), Future[None]()

    def data() -> None:
        try:
            with asyncio.Runner(loop_factory=partial(signals.new_loop, kind)) as runner:
                done.set_result(runner.run(user()))
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=data)
    thread.start()
    try:
        main()
        while thread.is_alive():
            time.sleep(0.001)
        done.result()
    finally:
        thread.join()
        signals.close()
    assert signal.signal is real


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_a_handler_of_the_standard_library_runs_on_the_data_loop(calls: Calls, kind: Kind) -> None:
    async def user() -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            calls.append((number, frame, threading.current_thread(), asyncio.get_running_loop()))

        assert signal.signal(MINE, handler) is signal.SIG_DFL
        assert signal.getsignal(MINE) is handler
        send(MINE)
        await until(lambda: bool(calls))
        assert calls == [(MINE, None, threading.current_thread(), asyncio.get_running_loop())]
        assert signal.signal(MINE, signal.SIG_IGN) is handler
        send(MINE)
        assert signal.signal(MINE, signal.SIG_DFL) is signal.SIG_IGN
        assert len(calls) == 1

    run(user, kind=kind)


def test_a_handler_that_was_restored_runs_on_the_main_thread(calls: Calls) -> None:
    async def user() -> None:
        before = signal.signal(OTHER, lambda number, frame: calls.append("mine"))
        send(OTHER)
        await until(lambda: calls == ["mine"])
        signal.signal(OTHER, before)
        send(OTHER)
        await until(lambda: calls == ["mine", ("found", True)])

    run(user)


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_a_handler_of_the_loop_is_called_with_its_arguments_and_removed(calls: Calls, kind: Kind) -> None:
    async def user() -> None:
        loop = asyncio.get_running_loop()
        assert not loop.remove_signal_handler(OTHER)
        loop.add_signal_handler(OTHER, calls.append, "loop")
        send(OTHER)
        await until(lambda: calls == ["loop"])
        assert loop.remove_signal_handler(OTHER)
        assert not loop.remove_signal_handler(OTHER)
        send(OTHER)
        await until(lambda: calls == ["loop", ("found", True)])

    run(user, kind=kind)


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_a_handler_ends_with_the_loop(calls: Calls, kind: Kind) -> None:
    async def user() -> None:
        signal.signal(OTHER, lambda number, frame: calls.append("mine"))

    run(user, kind=kind)
    send(OTHER)
    assert calls == [("found", True)]


def test_a_handler_sees_the_context_that_it_was_installed_in(calls: Calls) -> None:
    async def user() -> None:
        WHERE.set("lifespan")
        asyncio.get_running_loop().add_signal_handler(MINE, lambda: calls.append(WHERE.get()))
        WHERE.set("later")
        send(MINE)
        await until(lambda: calls == ["lifespan"])

    run(user)


def test_an_unusable_handler_is_refused_as_the_standard_library_does(calls: Calls) -> None:
    async def coroutine() -> None: ...

    def refused(kind: type[Exception], call: Callable[..., object], *arguments: object) -> None:
        with pytest.raises(kind):
            call(*arguments)

    async def user() -> None:
        add = asyncio.get_running_loop().add_signal_handler
        refused(TypeError, signal.signal, MINE, "no handler")
        refused(ValueError, signal.signal, 1000, print)
        refused(OSError, signal.signal, signal.SIGKILL, print)
        refused(TypeError, add, MINE, coroutine)
        refused(ValueError, add, 1000, print)
        refused(RuntimeError, add, signal.SIGKILL, print)
        await asyncio.to_thread(refused, ValueError, signal.signal, MINE, print)
        await asyncio.to_thread(refused, RuntimeError, add, MINE, print)
        refused(RuntimeError, Signals)

    run(user)


def test_signal_functions_are_unchanged_on_the_main_thread(calls: Calls) -> None:
    patched = threading.Event()

    async def user() -> None:
        patched.set()
        await until(lambda: bool(calls))

    def main() -> None:
        assert patched.wait(PATIENCE_S)
        found = signal.getsignal(OTHER)
        assert signal.signal(MINE, found) is signal.SIG_DFL
        assert signal.getsignal(MINE) is found
        send(MINE)
        assert calls == [("found", True)]
        signal.signal(MINE, signal.SIG_DFL)

    run(user, main)


def test_a_blocked_main_thread_is_named_and_installs_nothing_later(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.1)
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t: a thread that waits for it runs no Python
    libc.pthread_mutex_lock(lock)

    async def user() -> None:
        last = signal.getsignal(MINE)
        async with asyncio.timeout(PATIENCE_S):
            while True:  # until the main thread waits
                await asyncio.sleep(0.005)

                def handler(number: int, frame: FrameType | None) -> None: ...

                try:
                    assert signal.signal(MINE, handler) is last
                except RuntimeError as late:
                    error = str(late)
                    break
                last = handler
        libc.pthread_mutex_unlock(lock)
        assert "the main thread did not install a signal handler within 0.1 s" in error
        monkeypatch.setattr(module, "WAIT_S", PATIENCE_S)
        assert signal.signal(MINE, handler) is last

    run(user, lambda: libc.pthread_mutex_lock(lock))


def test_the_lifespan_of_a_replica_installs_handlers(calls: Calls, serve: Serve) -> None:
    spec = serve.spec(
        """
        import signal
        from contextlib import asynccontextmanager

        heard = []

        @asynccontextmanager
        async def lifespan(app):
            before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append("library"))
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.append, "loop")
            yield
            asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
            signal.signal(signal.SIGUSR2, before)

        app = FastAPI(lifespan=lifespan)

        @app.get("/")
        async def root():
            return sorted(heard)
        """
    )
    signals, failures = Signals(), list[BaseException]()

    def control() -> None:  # as in an actor: neither the main thread nor that of the data loop
        try:
            _controls(spec, ReplicaServer(signals))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=control)
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
    signals.close()
    assert failures == []
    assert calls == []


def _controls(spec: ReplicaSpec, server: ReplicaServer) -> None:
    served = Served(server, server.start(spec, SECRET, Address(f"unix:{spec.app_dir}/r.sock")))
    try:
        for number in (MINE, OTHER):
            send(number)
        connection = served.connect()
        wait_until(lambda: connection.ask("/").read() == b'["library","loop"]', "both handlers have run")
    finally:
        served.close()
