"""Signal handlers of user code that runs beside the main thread, which is busy with something else."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.patience import PATIENCE_S

HARNESS = """
import asyncio, os, signal, threading, time
from concurrent.futures import Future
from tests.patience import PATIENCE_S
from app_toolkit.replica import signals as module
from app_toolkit.replica.signals import Signals

module.WAIT_S = PATIENCE_S
MINE, OTHER = signal.SIGUSR1, signal.SIGUSR2

def found(number, frame):
    calls.append(("found", threading.current_thread() is threading.main_thread()))

calls = []
signal.signal(OTHER, found)
real = signal.signal
signals = Signals()

async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)

def send(number):
    os.kill(os.getpid(), number)

{source}

def data():
    try:
        with asyncio.Runner(loop_factory=signals.new_loop) as runner:
            done.set_result(runner.run(user()))
    except BaseException as error:
        done.set_exception(error)

done = Future()
thread = threading.Thread(target=data)
thread.start()
{main}
thread.join()
done.result()
signals.close()
assert signal.signal is real
assert signal.getsignal(OTHER) is found
"""

IDLE = """
while thread.is_alive():
    time.sleep(0.01)
"""


def run(source: str, main: str = IDLE) -> None:
    program = HARNESS.format(source=dedent(source), main=dedent(main))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def test_a_handler_of_the_standard_library_runs_on_the_data_loop() -> None:
    run(
        """
        async def user():
            def handler(number, frame):
                calls.append((number, frame, threading.current_thread(), asyncio.get_running_loop()))

            assert signal.signal(MINE, handler) is signal.SIG_DFL
            assert signal.getsignal(MINE) is handler
            send(MINE)
            await until(lambda: calls)
            assert calls == [(MINE, None, thread, asyncio.get_running_loop())], calls
            assert signal.signal(MINE, signal.SIG_IGN) is handler
            send(MINE)
            assert signal.signal(MINE, signal.SIG_DFL) is signal.SIG_IGN
            assert len(calls) == 1
        """
    )


def test_a_handler_that_was_found_goes_back_to_the_main_thread() -> None:
    run(
        """
        async def user():
            before = signal.signal(OTHER, lambda number, frame: calls.append("mine"))
            assert before is found
            send(OTHER)
            await until(lambda: calls == ["mine"])
            signal.signal(OTHER, before)
            send(OTHER)
            await until(lambda: calls == ["mine", ("found", True)])
        """
    )


def test_a_handler_of_the_loop_is_called_with_its_arguments_and_removed() -> None:
    run(
        """
        async def user():
            loop = asyncio.get_running_loop()
            assert not loop.remove_signal_handler(OTHER)
            loop.add_signal_handler(OTHER, calls.append, "loop")
            send(OTHER)
            await until(lambda: calls == ["loop"])
            assert loop.remove_signal_handler(OTHER)
            assert not loop.remove_signal_handler(OTHER)
            send(OTHER)
            await until(lambda: calls == ["loop", ("found", True)])
        """
    )


def test_a_handler_ends_with_the_loop() -> None:
    run(
        """
        async def user():
            signal.signal(OTHER, lambda number, frame: calls.append("mine"))
        """,
        IDLE
        + """
send(OTHER)
assert calls == [("found", True)]
""",
    )


def test_a_handler_sees_the_context_that_it_was_installed_in() -> None:
    run(
        """
        from contextvars import ContextVar

        where = ContextVar("where", default="nowhere")

        async def user():
            where.set("lifespan")
            asyncio.get_running_loop().add_signal_handler(MINE, lambda: calls.append(where.get()))
            where.set("later")
            send(MINE)
            await until(lambda: calls == ["lifespan"])
        """
    )


def test_an_unusable_handler_is_refused_as_the_standard_library_does() -> None:
    run(
        """
        def raises(kind, call, *arguments):
            try:
                call(*arguments)
            except kind:
                return
            raise AssertionError((kind, call, arguments))

        async def coroutine(): ...

        async def user():
            loop = asyncio.get_running_loop()
            raises(TypeError, signal.signal, MINE, "no handler")
            raises(ValueError, signal.signal, 1000, print)
            raises(OSError, signal.signal, signal.SIGKILL, print)
            raises(TypeError, loop.add_signal_handler, MINE, coroutine)
            raises(ValueError, loop.add_signal_handler, 1000, print)
            raises(RuntimeError, loop.add_signal_handler, signal.SIGKILL, print)
            await asyncio.to_thread(raises, ValueError, signal.signal, MINE, print)
            await asyncio.to_thread(raises, RuntimeError, loop.add_signal_handler, MINE, print)
        """
    )


def test_signal_functions_are_unchanged_on_the_main_thread() -> None:
    run(
        """
        async def user():
            await until(lambda: calls)
        """,
        """
        time.sleep(0.05)
        assert signal.signal(MINE, found) is signal.SIG_DFL
        assert signal.getsignal(MINE) is found
        send(MINE)
        assert calls == [("found", True)]
        """,
    )


def test_a_main_thread_that_never_looks_is_named_and_installs_nothing_later() -> None:
    run(
        """
        import ctypes
        import app_toolkit.replica.signals

        app_toolkit.replica.signals.WAIT_S = 0.1
        libc = ctypes.CDLL(None)
        lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t: who waits for it lets no Python run
        libc.pthread_mutex_lock(lock)

        async def user():
            last = signal.getsignal(MINE)
            async with asyncio.timeout(PATIENCE_S):
                while True:  # until the main thread has come to wait
                    await asyncio.sleep(0.005)
                    handler = lambda number, frame: None
                    try:
                        assert signal.signal(MINE, handler) is last
                    except RuntimeError as error:
                        assert "the main thread did not install a signal handler within 0.1 s" in str(error)
                        break
                    last = handler
            libc.pthread_mutex_unlock(lock)
            assert signal.signal(MINE, handler) is last
        """,
        """
        libc.pthread_mutex_lock(lock)
        while thread.is_alive():
            time.sleep(0.01)
        """,
    )


def test_signals_belong_to_the_main_thread() -> None:
    run(
        """
        async def user():
            try:
                Signals()
            except RuntimeError as error:
                assert "not the main one" in str(error)
            else:
                raise AssertionError("it was made")
        """
    )


def test_a_replica_lets_its_lifespan_install_handlers(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        dedent(
            """
            import asyncio, signal
            from contextlib import asynccontextmanager
            from fastapi import FastAPI

            heard = []

            @asynccontextmanager
            async def lifespan(app):
                before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append("term"))
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.append, "usr1")
                yield
                asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
                signal.signal(signal.SIGTERM, before)

            app = FastAPI(lifespan=lifespan)

            @app.get("/")
            async def root():
                return sorted(heard)
            """
        )
    )
    program = f"""
        import http.client, os, signal, socket, threading, time
        from app_toolkit.interfaces import ReloadableOptions, ReplicaSpec
        from app_toolkit.replica.server import ReplicaServer
        from app_toolkit.replica.signals import Signals
        from app_toolkit.transport import hop
        from app_toolkit.transport.preface import RESPONSE, first_line, read_response

        def ours(number, frame):
            raise SystemExit("the replica's own")

        signal.signal(signal.SIGTERM, ours)
        server = ReplicaServer(Signals())
        spec = ReplicaSpec("r", "shop", "app", "1", "shop:app", {str(tmp_path)!r}, "", ReloadableOptions(10), 1.0)
        failures = []

        def control():
            try:
                address = server.start(spec, b"secret", "tcp:127.0.0.1:0")
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGUSR1)
                field = hop.encode(hop.token(b"secret"), b"id", b"1.1", hop.peers(None, None, "http"))
                deadline = time.monotonic() + 20
                answer = b""
                while answer != b'["term","usr1"]':
                    assert time.monotonic() < deadline, answer
                    connection = http.client.HTTPConnection("127.0.0.1", int(address.rpartition(":")[2]))
                    connection.connect()
                    connection.send(asked := first_line())
                    said = connection.sock.recv(RESPONSE, socket.MSG_WAITALL)
                    connection.send(read_response(b"secret", asked, connection.sock.getpeername(), said))
                    connection.putrequest("GET", "/", skip_host=True, skip_accept_encoding=True)
                    connection.putheader("x-app-toolkit-hop", field)
                    connection.putheader("host", "a")
                    connection.endheaders()
                    answer = connection.getresponse().read()
                    connection.close()
                assert server.stop(5)
                assert signal.getsignal(signal.SIGTERM) is ours
            except BaseException as error:
                failures.append(error)

        # As in an actor: what controls the replica is neither the main thread nor the data loop's.
        thread = threading.Thread(target=control)
        thread.start()
        while thread.is_alive():
            time.sleep(0.01)
        if failures:
            raise failures[0]
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
