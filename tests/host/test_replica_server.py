"""A replica's life: starting, probes, draining, stopping, and the sockets it keeps to itself."""

import os
import pickle
import re
import resource
import socket
import stat
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from sse_starlette import sse

from app_toolkit.errors import (
    InsecurePath,
    NotWell,
    ReconfigureError,
    ReplicaGone,
    StartupError,
    TargetError,
    Unresponsive,
)
from app_toolkit.host.replica_server import ReplicaServer, bind
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import Address
from app_toolkit.wire import hop
from tests.forked import forked_child
from tests.patience import PATIENCE_S
from tests.replica.client import SECRET, Connection, Serve, WebSocketClient, dial, field, wait_until

REFUSED = hop.REFUSED.decode()

LIFESPAN = """
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(app):
        mark("up")
        yield {"model": "small"}
        mark("down")

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def root(request: Request):
        return request.state.model
"""

SLOW = """
    import threading, time

    app = FastAPI()

    @app.get("/")
    async def root():
        return "root"

    @app.get("/slow")
    async def slow():
        mark("entered")
        await hold_until("go")
        return "slow"

    @app.get("/background")
    async def background(tasks: BackgroundTasks):
        tasks.add_task(hold_until, "go")
        return "done"

    @app.get("/blocked")
    async def blocked():
        mark("blocked")
        while not (FOLDER / "go").exists():
            time.sleep(0.005)

    @app.get("/thread")
    async def thread():
        return [threading.current_thread().name, threading.main_thread() is threading.current_thread()]

    @app.websocket("/ws")
    async def talk(ws: WebSocket):
        await ws.accept()
        message = await ws.receive()
        (FOLDER / f"code-{message['code']}").touch()
"""


# Starting


def test_the_app_starts_serves_and_is_shut_down(serve: Serve) -> None:
    served = serve(LIFESPAN)
    assert served.marked("up")
    assert served.connect().ask("/").read() == b'"small"'
    assert not served.marked("down")
    assert served.server.stop(PATIENCE_S)
    assert served.marked("down")
    with pytest.raises(ReplicaGone, match="the data loop of shop/chat-1-1 has ended"):
        served.server.probe(1)
    assert served.server.stop(PATIENCE_S)


IN_A_LOOP = """
    from app_toolkit import Deployment

    def is_asyncio():
        return isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)

    IMPORTED_IN_ASYNCIO = is_asyncio()
    app = FastAPI()

    class Chat(Deployment):
        async def start(self):
            mark(f"started in asyncio: {is_asyncio()}")

    chat = Chat.bind()

    @app.get("/")
    async def root() -> list[bool]:
        return [IMPORTED_IN_ASYNCIO, is_asyncio()]
"""


def test_an_app_runs_in_the_event_loop_that_its_option_names(serve: Serve) -> None:
    assert serve(IN_A_LOOP).connect().ask("/").read() == b"[false,false]"
    assert serve(IN_A_LOOP, loop="asyncio").connect().ask("/").read() == b"[true,true]"


def test_a_class_runs_in_the_event_loop_that_its_option_names(serve: Serve) -> None:
    served = serve(IN_A_LOOP, attribute="chat", kind="class", loop="asyncio")
    assert served.marked("started in asyncio: True")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no such wish")
def test_user_code_lets_the_proxy_finish_and_control_does_not(serve: Serve) -> None:
    served = serve(
        """
        import os

        app = FastAPI()

        @app.get("/loop")
        async def loop():
            return os.sched_getscheduler(0) == os.SCHED_BATCH

        @app.get("/thread")
        def thread():
            return os.sched_getscheduler(0) == os.SCHED_BATCH
        """
    )
    for path in ("/loop", "/thread"):
        assert served.connect().ask(path).read() == b"true", path
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_probe_fails_if_the_socket_file_leads_to_no_replica(serve: Serve) -> None:
    served = serve(SLOW)
    assert served.server.probe(PATIENCE_S).ongoing == 0, "the probe itself is no request"
    path = Path(served.address.removeprefix("unix:"))
    path.unlink()
    with pytest.raises(NotWell, match=r"^callers cannot reach shop/chat-1-1 at unix:.*: .*No such file"):
        served.server.probe(PATIENCE_S)
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(str(path))
        with pytest.raises(NotWell, match=r"Connection refused"):
            served.server.probe(PATIENCE_S)
        other.listen()
        with pytest.raises(Unresponsive):
            served.server.probe(0.2)
    served.server.drain(PATIENCE_S)


AILING = """
    from app_toolkit import Deployment, Toolkit

    class Writer(Deployment, name="chat"):
        async def check_health(self):
            if (FOLDER / "ill").exists():
                raise TimeoutError("the database is slow")
            if (FOLDER / "broken").exists():
                raise LookupError("the model is missing")
            if (FOLDER / "hangs").exists():
                await hold_until("go")

    app = Toolkit(deployments=[Writer.bind()])
"""


def test_a_timeout_raised_by_a_health_check_differs_from_a_late_check(serve: Serve) -> None:
    served = serve(AILING, kind="class")
    served.release("ill")
    with pytest.raises(TimeoutError, match=r"^the database is slow$"):
        served.server.probe(PATIENCE_S)
    (served.folder / "ill").unlink()
    served.release("hangs")
    with pytest.raises(Unresponsive, match=r"^the data loop of shop/chat-1-1 did not answer within 0.05 s$"):
        served.server.probe(0.05)


def test_a_probe_of_a_process_without_file_descriptors_names_their_limit(serve: Serve) -> None:
    served = serve(SLOW)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay open
    try:
        with pytest.raises(NotWell, match=r"RLIMIT_NOFILE\) is 3"):
            served.server.probe(PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    served.server.probe(PATIENCE_S)


def test_a_probe_of_a_blocked_loop_names_the_code_and_the_running_requests(serve: Serve) -> None:
    served = serve(SLOW)
    served.connect().send_head("GET", "/blocked", [field(request_id=b"the-blocker")])
    wait_until(lambda: served.marked("blocked"), "the handler blocks the loop")
    with pytest.raises(Unresponsive) as late:
        served.server.probe(1.0)
    assert re.search(r"its event loop is blocked for \d s at .*py:\d+ in blocked$", str(late.value)), late.value
    assert late.value.running == ("the-blocker",)
    assert str(pickle.loads(pickle.dumps(late.value))) == str(late.value), "it crosses processes"
    served.release("go")
    assert served.server.probe(PATIENCE_S).draining is False


def test_a_replica_whose_first_probe_fails_does_not_start(serve: Serve) -> None:
    spec = serve.spec(AILING, kind="class")
    Path(spec.app_dir, "broken").touch()
    server = ReplicaServer()
    with pytest.raises(StartupError, match=r"^replica shop/chat-1-1 started, and its first probe failed:\n") as raised:
        server.start(spec, SECRET, Address(f"unix:{spec.app_dir}/r.sock"))
    assert "in check_health" in str(raised.value)
    assert str(raised.value).endswith("\nLookupError: the model is missing")
    with pytest.raises(ReplicaGone):
        server.probe(1)


def test_changed_limits_apply_to_new_requests(serve: Serve) -> None:
    served = serve(SLOW, max_ongoing_requests=1)
    first = served.connect()
    first.send_head("GET", "/slow", [field()])
    wait_until(lambda: served.marked("entered"), "the first is inside")
    assert served.connect().ask("/").getheader(REFUSED) == "busy"
    served.server.reconfigure(ReloadableOptions(2, max_open_websockets=0), PATIENCE_S)
    assert served.connect().ask("/").read() == b'"root"'
    assert served.websocket("/ws").answer.headers[REFUSED] == "websockets"
    served.server.reconfigure(ReloadableOptions(1), PATIENCE_S)
    assert served.connect().ask("/").getheader(REFUSED) == "busy"
    served.release("go")
    assert first.getresponse().read() == b'"slow"'
    assert served.server.reloadable == ReloadableOptions(1)


def test_changed_batch_limits_of_an_endpoint_apply_to_requests_that_already_wait(serve: Serve) -> None:
    served = serve("""
        from app_toolkit import batch

        app = FastAPI()

        @app.get("/size")
        @batch(max_batch_size=3, batch_wait_timeout_s=60)
        async def size(names: list[str]) -> list[int]:
            return [len(names)] * len(names)
    """)
    waiting = [served.connect() for _ in range(2)]
    for connection in waiting:
        connection.send_head("GET", "/size?names=any", [field()])
    wait_until(lambda: served.server.statistics().buffered == 2, "both wait for a third")
    served.server.reconfigure(ReloadableOptions(100, batch={"size": {"max_batch_size": 2}}), PATIENCE_S)
    assert [connection.getresponse().read() for connection in waiting] == [b"2", b"2"]


CLASS = """
    from app_toolkit import Deployment, Toolkit

    class Writer(Deployment, name="chat"):
        async def reconfigure(self, config):
            mark(f"given-{config['n']}")
            if config["n"] < 0:
                raise ValueError("n is below 0")
            if config["n"] == 0:
                await hold_until("go")
            mark(f"taken-{config['n']}")

    app = Toolkit(deployments=[Writer.bind()])
"""


def given(number: int) -> ReloadableOptions:
    return ReloadableOptions(100, user_config={"n": number})


def test_a_failed_reconfiguration_is_raised_and_repeated(serve: Serve) -> None:
    served = serve(CLASS, kind="class", user_config={"n": 1})
    server = served.server
    assert served.marked("taken-1")
    assert server.reloadable == given(1)
    server.reconfigure(given(2), PATIENCE_S)
    assert served.marked("taken-2")
    with pytest.raises(
        ReconfigureError, match="chat could not apply its user_config: ValueError: n is below 0"
    ) as caught:
        server.reconfigure(given(-1), PATIENCE_S)
    assert "in reconfigure" in caught.value.__notes__[0]
    assert server.reloadable is None
    server.probe(PATIENCE_S)
    (served.folder / "taken-2").unlink()
    server.reconfigure(given(2), PATIENCE_S)
    assert served.marked("taken-2"), "what the failure has left, nobody knows"
    (served.folder / "taken-2").unlink()
    server.reconfigure(ReloadableOptions(50, user_config={"n": 2}), PATIENCE_S)
    assert not served.marked("taken-2"), "what did not change is not given again"


def test_a_reconfiguration_that_takes_too_long_is_cancelled(serve: Serve) -> None:
    served = serve(CLASS, kind="class", user_config={"n": 1})
    with pytest.raises(TimeoutError, match=r"shop/chat-1-1 was not reconfigured within 0.05 s"):
        served.server.reconfigure(given(0), 0.05)
    served.server.probe(PATIENCE_S)  # after the cancellation, which may come while the app looks at its gate
    served.release("go")
    served.server.reconfigure(given(2), PATIENCE_S)
    assert served.marked("taken-2")
    assert not served.marked("taken-0")


def test_a_reconfiguration_waits_for_the_one_before_it(serve: Serve) -> None:
    served = serve(
        """
        import time
        from app_toolkit import Deployment, Toolkit

        class Writer(Deployment, name="chat"):
            def reconfigure(self, config):
                mark(f"given-{config['n']}")
                while config["n"] == 0 and not (FOLDER / "go").exists():
                    time.sleep(0.005)
                mark(f"taken-{config['n']}")

        app = Toolkit(deployments=[Writer.bind()])
        """,
        kind="class",
        user_config={"n": 1},
    )
    for seconds in (0.05, 0.5, 5.0):
        with pytest.raises(TimeoutError):
            served.server.reconfigure(given(0), seconds)
        if served.marked("given-0"):  # else its thread had no chance to begin
            break
    assert served.marked("given-0")
    with pytest.raises(TimeoutError):
        served.server.reconfigure(given(2), 0.05)
    served.release("go")
    served.server.reconfigure(given(3), PATIENCE_S)
    assert served.marked("taken-0")
    assert not served.marked("given-2"), "its time was over before its turn came"
    assert served.marked("taken-3")
    assert served.server.reloadable == given(3)


def test_a_server_that_has_not_started_is_gone() -> None:
    server = ReplicaServer()
    with pytest.raises(ReplicaGone, match="the replica has not started"):
        server.probe(1)
    assert server.stop(1)


def test_a_server_serves_once(serve: Serve) -> None:
    served = serve(SLOW)
    with pytest.raises(StartupError, match="was started before"):
        served.server.start(serve.spec(SLOW), SECRET, Address("tcp:127.0.0.1:0"))


def test_an_empty_secret_is_no_secret(serve: Serve) -> None:
    with pytest.raises(StartupError, match="empty secret"):
        ReplicaServer().start(serve.spec(SLOW), b"", Address("tcp:127.0.0.1:0"))


def test_a_failing_import_is_raised_with_its_traceback_and_leaves_no_socket(serve: Serve) -> None:
    spec = serve.spec("1 / 0")
    path = Path(spec.app_dir, "r.sock")
    server = ReplicaServer()
    with pytest.raises(TargetError, match="division by zero") as raised:
        server.start(spec, SECRET, Address(f"unix:{path}"))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert not path.exists()
    with pytest.raises(ReplicaGone):
        server.probe(1)


@pytest.mark.parametrize(
    "source",
    [
        """
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def lifespan(app):
            raise RuntimeError("the model is missing")
            yield

        app = FastAPI(lifespan=lifespan)
        """,
        """
        class App(FastAPI):
            async def __call__(self, scope, receive, send):
                raise RuntimeError("the model is missing")

        app = App()
        """,
    ],
)
def test_a_failing_lifespan_is_raised_with_its_traceback_and_not_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    spec = serve.spec(source)
    with pytest.raises(StartupError) as raised:
        ReplicaServer().start(spec, SECRET, Address(f"unix:{spec.app_dir}/r.sock"))
    assert "the app's startup failed:\nTraceback" in str(raised.value)
    assert "RuntimeError: the model is missing" in str(raised.value)
    assert not Path(spec.app_dir, "r.sock").exists()
    assert caplog.messages == [], "whoever starts the replica shows it, once"


def test_user_code_runs_on_a_thread_of_its_own(serve: Serve) -> None:
    answer = serve(SLOW).connect().ask("/thread").read()
    assert answer == b'["app-toolkit data shop/chat-1-1",false]'


# Draining


def test_a_drain_waits_for_ongoing_requests_and_refuses_others(serve: Serve) -> None:
    served = serve(SLOW)
    held = served.connect()
    held.send_head("GET", "/slow", [field()])
    wait_until(lambda: served.marked("entered"), "the handler runs")
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(served.server.drain(PATIENCE_S)))
    draining.start()
    wait_until(lambda: served.server.statistics().draining, "the drain begins")
    refused = served.connect().ask("/")
    assert (refused.status, refused.getheader("x-app-toolkit-refused")) == (503, "draining")
    denied = served.websocket("/ws")
    assert denied.answer.status_code == 503
    assert denied.answer.headers["x-app-toolkit-refused"] == "draining"
    assert draining.is_alive()
    served.release("go")
    assert held.getresponse().read() == b'"slow"'
    draining.join(PATIENCE_S)
    assert drained == [True]


def test_a_drain_logs_the_requests_that_it_ends(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(SLOW)
    assert served.connect().ask("/background").read() == b'"done"'
    served.connect().send_head("GET", "/slow", [field(request_id=b"req-2")])
    wait_until(lambda: served.marked("entered"), "the handler runs")
    with caplog.at_level("WARNING", logger="app_toolkit.replica"):
        assert not served.server.drain(0.05)
    assert sorted(caplog.messages) == [
        "shop/chat-1-1 ends GET '/slow' (request req-2), which did not end within 0.05 s, its "
        "graceful_shutdown_timeout_s",
        "shop/chat-1-1 ends the background tasks of GET '/background' (request req-1), which did not end within "
        "0.05 s, its graceful_shutdown_timeout_s",
    ]
    served.release("go")


SOCKETS = """
    from app_toolkit import on_disconnect
    from starlette.websockets import WebSocketDisconnect

    app = FastAPI()

    @app.websocket("/idle")
    async def idle(ws: WebSocket):
        await ws.accept()
        await asyncio.Event().wait()

    @app.websocket("/answers")
    @on_disconnect("notify")
    async def answers(ws: WebSocket):
        await ws.accept()
        try:
            await ws.receive_text()
        except WebSocketDisconnect as left:
            mark(f"code-{left.code}")
        await hold_until("go")
        mark("stored")

    @app.websocket("/sends")
    @on_disconnect("notify")
    async def sends(ws: WebSocket):
        await ws.accept()
        try:
            while True:
                await ws.send_bytes(bytes(1_000_000))
                mark("sent")
        except WebSocketDisconnect:
            mark("ended")

    @app.websocket("/converses")
    @on_disconnect("notify")
    async def converses(ws: WebSocket):
        await ws.accept()
        sending = asyncio.create_task(flood(ws))
        mark((await ws.receive())["type"])
        await hold_until("go")
        await sending

    async def flood(ws):
        try:
            while True:
                await ws.send_bytes(bytes(1_000_000))
                mark("sent")
        except WebSocketDisconnect:
            mark("ended")

    @app.websocket("/late")
    async def late(ws: WebSocket):
        mark("entered")
        await hold_until("go")
        await ws.accept()
        await ws.receive()
"""


def test_drain_closes_websockets_and_waits_for_their_handlers(serve: Serve) -> None:
    served = serve(SOCKETS)
    idle, answers = served.websocket("/idle"), served.websocket("/answers")
    wait_until(lambda: served.server.statistics().websockets == 2, "the sockets are open")
    assert not served.server.drain(0.05)
    assert (idle.closed_with(), answers.closed_with()) == (1012, 1012)
    wait_until(lambda: served.server.statistics().websockets == 1, "the handler that ignores its client is cancelled")
    assert served.marked("code-1012")
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(served.server.drain(PATIENCE_S)))
    draining.start()
    served.release("go")
    draining.join(PATIENCE_S)
    assert drained == [True]
    assert served.marked("stored")
    assert served.server.stop(PATIENCE_S)


def test_drain_ends_a_send_to_a_websocket_whose_client_does_not_read(serve: Serve) -> None:
    served = serve(SOCKETS)
    served.websocket("/sends")
    wait_until(lambda: served.marked("sent"), "the handler sends")
    assert served.server.drain(PATIENCE_S)
    assert served.marked("ended")
    assert served.server.stop(PATIENCE_S)


def test_websocket_whose_client_has_closed_and_does_not_read_disturbs_no_drain(serve: Serve) -> None:
    served = serve(SOCKETS)
    leaving = served.websocket("/converses")
    wait_until(lambda: served.marked("sent"), "the handler sends more than the client reads")
    leaving.leave()
    wait_until(lambda: served.marked("websocket.disconnect"), "the close frame has arrived")
    idle = served.websocket("/idle")
    wait_until(lambda: served.server.statistics().websockets == 2, "the sockets are open")
    assert not served.server.drain(0.05)
    assert idle.closed_with() == 1012
    wait_until(lambda: served.marked("ended"), "the handler sends nothing more")
    served.release("go")
    assert served.server.drain(PATIENCE_S)
    assert served.server.stop(PATIENCE_S)


def test_drain_closes_a_websocket_right_after_it_is_accepted(serve: Serve) -> None:
    served = serve(SOCKETS)
    opened: list[WebSocketClient] = []
    opening = threading.Thread(target=lambda: opened.append(served.websocket("/late")))
    opening.start()
    wait_until(lambda: served.marked("entered"), "the handler runs")
    assert not served.server.drain(0.05)
    served.release("go")
    opening.join(PATIENCE_S)
    assert opened[0].answer.status_code == 101
    assert opened[0].closed_with() == 1012
    assert served.server.drain(PATIENCE_S)


VAST = """
    from fastapi import Response

    app = FastAPI()

    @app.get("/vast")
    async def vast():
        return Response(bytes(20_000_000))

    @app.websocket("/vast")
    async def send_vast(ws: WebSocket):
        await ws.accept()
        await ws.send_bytes(bytes(20_000_000))
        mark("sent")
"""


def test_a_drain_waits_until_a_response_has_left_to_its_last_byte(serve: Serve) -> None:
    served = serve(VAST)
    answer = served.connect().ask("/vast")
    wait_until(lambda: served.server.statistics().running == 0, "the handler ends")
    assert not served.server.drain(0.1)
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(served.server.drain(PATIENCE_S)))
    draining.start()
    assert len(answer.read()) == 20_000_000
    draining.join(PATIENCE_S)
    assert drained == [True]


def test_a_drain_does_not_wait_for_a_websocket_client_that_does_not_read(serve: Serve) -> None:
    served = serve(VAST)
    served.websocket("/vast")
    wait_until(lambda: served.marked("sent"), "the handler has sent")
    assert served.server.drain(PATIENCE_S)


# Stopping


def test_a_stop_closes_websockets_with_1012(serve: Serve) -> None:
    served = serve(SLOW)
    socket = served.websocket("/ws")
    assert served.server.stop(PATIENCE_S)
    assert socket.closed_with() == 1012
    assert served.marked("code-1012")


def test_a_stop_lets_exchanges_end(serve: Serve) -> None:
    served = serve(SLOW)
    held = served.connect()
    held.send_head("GET", "/slow", [field()])
    wait_until(lambda: served.marked("entered"), "the handler runs")
    stopping = threading.Thread(target=served.server.stop, args=(PATIENCE_S,))
    stopping.start()
    served.release("go")
    assert held.getresponse().read() == b'"slow"'
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()


def test_a_stop_does_not_wait_for_the_wait_queue(serve: Serve) -> None:
    served = serve(SLOW, max_ongoing_requests=1)
    waiting = served.connect().ask("/", (hop.QUEUE.decode(), "a"))
    began = time.monotonic()
    assert served.server.stop(20)
    assert time.monotonic() - began < 10
    assert waiting.read() == b"."


def test_a_stop_returns_false_if_user_code_blocks(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app_toolkit.host.replica_server.SHUTDOWN_S", 0.1)
    served = serve(SLOW)
    served.connect().send_head("GET", "/blocked", [field()])
    wait_until(lambda: served.marked("blocked"), "the handler blocks the loop")
    assert not served.server.stop(0)
    served.release("go")
    assert served.server.stop(PATIENCE_S)


def test_streams_of_sse_starlette_end_with_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(
        """
        from sse_starlette import EventSourceResponse

        app = FastAPI()

        @app.get("/events")
        async def events():
            async def body():
                yield {"data": "first"}
                await asyncio.sleep(60)
            return EventSourceResponse(body())
        """
    )
    monkeypatch.setattr(sse.AppStatus, "should_exit", False)  # the library keeps that a server has ended
    answer = served.connect().ask("/events")
    assert answer.readline() == b"data: first\r\n"
    began = time.monotonic()
    assert served.server.stop(20)
    assert time.monotonic() - began < 15


# Sockets


def test_a_unix_socket_is_private_and_goes_with_the_replica(serve: Serve) -> None:
    spec = serve.spec(SLOW)
    path = Path(spec.app_dir, "inner", "r.sock")
    server = ReplicaServer()
    assert server.start(spec, SECRET, Address(f"unix:{path}")) == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert server.stop(0)
    assert not path.exists()


def test_a_replica_listens_for_other_nodes_and_asks_them_for_the_secret(serve: Serve) -> None:
    served = serve(SLOW, remote_host="127.0.0.1")
    assert served.connect().ask("/", hop=None).status == 200
    remote = served.server.remote_address
    assert remote is not None
    assert remote.startswith("tcp:127.0.0.1:")
    with closing(Connection(remote)) as stranger, closing(Connection(remote)) as proxy:
        assert stranger.ask("/", hop=None).getheader("x-app-toolkit-refused") == "secret"
        assert proxy.ask("/").read() == b'"root"'
    assert served.server.stop(0)
    with pytest.raises(ConnectionRefusedError):
        dial(remote)


def test_an_unavailable_address_for_other_nodes_is_an_error_and_leaves_no_socket(serve: Serve) -> None:
    spec = serve.spec(SLOW)
    path = Path(spec.app_dir, "r.sock")
    with pytest.raises(StartupError, match=r"cannot listen on tcp:203\.0\.113\.1:0"):
        ReplicaServer().start(spec, SECRET, Address(f"unix:{path}"), "203.0.113.1")
    assert not path.exists()


def test_idle_connections_to_other_machines_are_probed() -> None:
    listener, _ = bind(Address("tcp:127.0.0.1:0"))
    with listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                probing = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
                assert [accepted.getsockopt(socket.IPPROTO_TCP, option) for option in probing] == [10, 5, 3]


def test_tcp_speaks_ipv6(serve: Serve) -> None:
    listener, address = bind(Address("tcp:[::1]:0"))
    with listener:
        assert listener.family == socket.AF_INET6
        assert address == f"tcp:[::1]:{listener.getsockname()[1]}"


def test_a_path_that_is_too_long_falls_back_to_this_host_alone(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(SLOW, address=f"unix:/tmp/{'long' * 30}/r.sock")
    assert served.address.startswith("tcp:127.0.0.1:")
    assert "the path has 132 bytes, a socket's has at most 107" in caplog.text
    # Whoever is on this host reaches it, so the secret is needed.
    assert served.connect().ask("/", hop=None).getheader("x-app-toolkit-refused") == "secret"


def test_a_replica_refuses_to_listen_in_a_folder_that_others_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(InsecurePath, match=f"the folder {folder} has mode 0755, and must have mode 0700"):
        bind(Address(f"unix:{folder}/r.sock"))
    assert not list(folder.iterdir())


def test_a_replica_refuses_to_listen_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InsecurePath, match=f"{tmp_path}/file is not a folder"):
        bind(Address(f"unix:{tmp_path}/file/inner/r.sock"))


def test_a_dead_socket_is_replaced_and_a_living_one_is_not(serve: Serve) -> None:
    address = Address(f"unix:{serve.spec(SLOW).app_dir}/r.sock")
    dead, _ = bind(address)
    dead.close()  # its file stays, as after a kill
    living, again = bind(address)
    with living:
        assert again == address
        living.listen()
        other, elsewhere = bind(address)
        other.close()
        assert elsewhere.startswith("tcp:127.0.0.1:")


@pytest.mark.parametrize("address", ["", "unix:", "tcp:", "tcp:localhost", "tcp::80", "tcp:a:99999", "udp:a:1"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(StartupError, match="is not an address"):
        bind(Address(address))


def test_a_port_that_is_taken_is_named() -> None:
    listener, address = bind(Address("tcp:127.0.0.1:0"))
    with listener:
        listener.listen()
        with pytest.raises(StartupError, match=f"cannot listen on {address}: .*in use"):
            bind(address)


def test_a_forked_child_keeps_no_socket_open(serve: Serve) -> None:
    served = serve(SLOW, address="tcp:127.0.0.1:0", remote_host="127.0.0.1")
    with dial(served.address) as held:
        name, value = field()
        held.sendall(b"GET /slow HTTP/1.1\r\n%b: %b\r\nhost: a\r\n\r\n" % (name.encode(), value))
        wait_until(lambda: served.marked("entered"), "the handler runs")
        with forked_child():
            assert served.server.stop(0)
            assert held.recv(1) == b""
            for address in (served.address, served.server.remote_address):
                with pytest.raises(ConnectionRefusedError):
                    dial(address)
