"""`run` from its first line to its last, against an instance that follows a script."""

import io
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app_toolkit.cli.run import RunOptions, run
from app_toolkit.cli.screen import Screen
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import PlanOptions
from app_toolkit.control.command import Command
from app_toolkit.control.operations import Deploy
from app_toolkit.control.queries import GetApplications, GetStatus
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus
from app_toolkit.errors import ConfigError, PlacementError, StartupError, TargetError
from app_toolkit.operate import launch
from tests.control.harness import application
from tests.operate.scripted import OneInstance

APP = """
from fastapi import APIRouter
from app_toolkit import DeploymentConfig, Toolkit

app = Toolkit(title="Shop")
app.include_router(APIRouter(prefix="/chat"), deployment=DeploymentConfig(name="chat", num_replicas=2))
"""

Step = Callable[[], InstanceStatus]
LISTENING = ReplicaStatus("proxy-1-1", "running", 1.0, "r", "tcp:127.0.0.1:8000", 0, None, None)
PROXY = ReplicaSetStatus("proxy", "healthy", 1, "r", {"running": 1}, (LISTENING,), 0, None)


def group(
    name: str,
    running: int,
    target: int,
    status: str = "starting",
    last_error: str | None = None,
    asks: str = "",
) -> ReplicaSetStatus:
    waiting = ReplicaStatus("r-1", "starting", 1.0, "r", None, 0, asks or None, "0 GPU" if asks else None)
    return ReplicaSetStatus(name, status, target, "r", {"running": running}, (waiting,), 0, last_error)


def status(*ingresses: ReplicaSetStatus, proxies: Sequence[ReplicaSetStatus] = (PROXY,)) -> InstanceStatus:
    application = ApplicationStatus("default", "starting", "/", ingresses)
    return InstanceStatus(1, 1, "starting", (application,), tuple(proxies), ())


def ctrl_c() -> InstanceStatus:
    signal.raise_signal(signal.SIGINT)
    return ready()


def terminate() -> InstanceStatus:
    signal.raise_signal(signal.SIGTERM)
    return ready()


def shared_and_ready() -> InstanceStatus:
    log = ApplicationStatus("stream-log", "healthy", None, (group("stream-log/stream-log", 1, 1, "healthy"),))
    return replace(ready(), applications=(*ready().applications, log))


def ready() -> InstanceStatus:
    return status(APP_UP, group("default/chat", 2, 2, "healthy"))


APP_UP = group("default/app", 1, 1, "healthy")


class Scripted(OneInstance):
    """An engine and its one client: each look at the status takes the script's next step."""

    owner = "the lease of this process"

    def __init__(
        self,
        *script: Step,
        on_start: Callable[[], object] = lambda: None,
        on_leave: Callable[[], object] = lambda: None,
        serves_alone: bool = False,
    ) -> None:
        self.script = iter(script)
        self.on_start = on_start
        self.on_leave = on_leave
        self.serves_alone = serves_alone
        self.did: list[str] = []
        self.num_cpus: float | None = None
        self.spec: ApplicationSpec | None = None
        self.running: dict[str, ApplicationSpec] = {}
        self.number = -1

    def start(self, *, address: str | None, num_cpus: float | None = None, **_: object) -> "Scripted":
        self.did.append("start")
        self.on_start()
        self.num_cpus = num_cpus
        return self

    def execute(self, command: Command[Any]) -> Any:
        match command:
            case Deploy(spec=spec, http=http, code=code, owner=owner, expected=expected):
                assert (code.keys(), owner) == (spec.packed, self.owner)
                if spec.name == "stream-log":
                    assert (http.model_fields_set, expected) == (set(), 0)
                self.did.append("deploy stream-log" if spec.name == "stream-log" else "deploy")
                self.spec = spec
                return 1
            case GetStatus(after=after):
                assert after == self.number, "every look starts where the last one ended"
                self.number += 1
                return replace(next(self.script)(), change=self.number)
            case GetApplications():
                return self.running, HTTPOptions()
            case _:
                raise AssertionError(f"run has no need of {command}")

    def load(self) -> Any:
        raise AssertionError("run shows no load")

    def hand_over(self) -> bool:
        if self.serves_alone:
            self.did.append("hand over")
        return self.serves_alone

    def leave(self) -> None:
        self.did.append("leave")
        self.on_leave()

    def close(self) -> None:
        self.did.append("close")


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(APP)
    return str(path)


@pytest.fixture(autouse=True)
def _signals_are_as_before(_planned_here: None) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    yield
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def options(app: str, **more: Any) -> RunOptions:
    return RunOptions(**{"target": app, "app_dir": None, "http": HTTPOptions(port=0), "plan": PlanOptions(), **more})


def ran(app: str, engine: Scripted, *, terminal: bool = False, **more: Any) -> str:
    """What `run` said."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=100, highlight=False, soft_wrap=not terminal)

    run(options(app, **more), Screen(console), engine)
    return output.getvalue()


def test_run_shows_starting_replicas_and_the_url_and_then_drains(app: str) -> None:
    engine = Scripted(
        lambda: status(group("default/app", 0, 1), group("default/chat", 0, 2), proxies=[group("proxy", 0, 1)]),
        lambda: status(APP_UP, group("default/chat", 1, 2)),
        lambda: status(APP_UP, group("default/chat", 1, 2)),
        ready,
        ready,
        ctrl_c,
    )
    assert ran(app, engine).splitlines() == [
        "proxy: starting, 0 of 1 running",
        "app: starting, 0 of 1 running",
        "chat: starting, 0 of 2 running",
        "proxy: healthy, 1 of 1 running",
        "app: healthy, 1 of 1 running",
        "chat: starting, 1 of 2 running",
        "chat: healthy, 2 of 2 running",
        "Serving Shop at http://127.0.0.1:8000",
        "Documentation at http://127.0.0.1:8000/docs",
        "Press Ctrl-C to drain and stop.",
        "Draining. Press Ctrl-C again to stop at once.",
    ]
    assert engine.did == ["start", "deploy", "leave", "close"]
    assert engine.spec is not None
    assert engine.spec.target == "shop:app"


def test_a_command_hands_over_once_the_dashboard_is_known(app: str) -> None:
    def with_dashboard() -> InstanceStatus:
        return replace(ready(), admin_url="http://127.0.0.1:8001")

    engine = Scripted(with_dashboard, with_dashboard, serves_alone=True)
    assert ran(app, engine).splitlines()[-2:] == [
        "Press Ctrl-C to drain and stop.",
        "Dashboard at http://127.0.0.1:8001",
    ]
    assert engine.did == ["start", "deploy", "hand over", "close"]


def test_a_command_hands_over_although_the_dashboard_has_failed(app: str) -> None:
    def without_dashboard() -> InstanceStatus:
        return replace(ready(), admin_failure="the admin server cannot listen on port 8001")

    engine = Scripted(ready, without_dashboard, serves_alone=True)
    ran(app, engine)
    assert engine.did == ["start", "deploy", "hand over", "close"]


def test_run_serves_although_the_reader_of_its_output_has_left(app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scripted(ready, ready, ctrl_c)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        run(options(app), Screen.of_server(), engine)
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_a_shared_stream_log_is_started_unless_it_runs(app: str) -> None:
    Path(app).write_text(APP.replace('title="Shop"', 'title="Shop", stream_log="shared"'))
    first = Scripted(shared_and_ready, ctrl_c)
    said = ran(app, first, named=HTTPOptions(port=0)).splitlines()
    assert said[-4:-2] == ["Serving Shop at http://127.0.0.1:8000", "Documentation at http://127.0.0.1:8000/docs"]
    assert first.did == ["start", "deploy stream-log", "deploy", "leave", "close"]
    second = Scripted(shared_and_ready, ctrl_c)
    assert first.spec is not None
    second.running = {"stream-log": first.spec}
    ran(app, second)
    assert second.did == ["start", "deploy", "leave", "close"]


def test_an_engine_that_takes_the_signals_as_it_starts_does_not_keep_them(app: str) -> None:
    engine = Scripted(ready, terminate, on_start=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    ran(app, engine)
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_ctrl_c_while_the_engine_starts_deploys_nothing(app: str) -> None:
    engine = Scripted(on_start=lambda: signal.raise_signal(signal.SIGINT))
    ran(app, engine)
    assert engine.did == ["start", "leave", "close"]


def test_a_terminal_gets_a_table_that_moves(app: str) -> None:
    said = ran(app, Scripted(ready, ctrl_c), terminal=True)
    assert "\x1b[" in said
    assert "2/2" in said


def test_run_shows_when_an_ingress_fails_and_recovers(app: str) -> None:
    def broken() -> InstanceStatus:
        return status(APP_UP, group("default/chat", 1, 2, last_error="default.chat-1-2 exited while it was running"))

    said = ran(app, Scripted(ready, broken, broken, ready, ctrl_c))
    assert said.count("chat: starting, 1 of 2 running (default.chat-1-2 exited while it was running)") == 1
    assert said.count("chat: healthy, 2 of 2 running") == 2


def test_url_is_shown_once_a_proxy_listens(app: str) -> None:
    def no_proxy() -> InstanceStatus:
        return status(APP_UP, proxies=[])

    engine = Scripted(no_proxy, no_proxy, ctrl_c)
    assert "Serving" not in ran(app, engine)


def test_ctrl_c_while_replicas_start_drains_the_running_ones(app: str) -> None:
    engine = Scripted(lambda: status(group("default/app", 0, 1)), ctrl_c)
    assert "Serving" not in ran(app, engine)
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_a_second_ctrl_c_does_not_wait_for_the_draining(app: str) -> None:
    engine = Scripted(ready, ctrl_c, on_leave=lambda: signal.raise_signal(signal.SIGINT))
    output = io.StringIO()
    with pytest.raises(SystemExit, match="130"):
        run(options(app), Screen(Console(file=output)), engine)
    assert "Stopped waiting. The remaining requests are aborted." in output.getvalue()
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_app_that_fails_at_startup_is_drained_and_its_traceback_is_shown(app: str) -> None:
    traceback = "\n".join([*(f"line {number}" for number in range(100)), "ValueError: no model"])
    failed = group("default/chat", 0, 2, "failed", last_error=traceback)
    engine = Scripted(lambda: status(APP_UP, failed))
    with pytest.raises(StartupError, match=r"^'chat' did not come up: ValueError: no model") as raised:
        ran(app, engine)
    (note,) = raised.value.__notes__
    assert note.splitlines()[0] == "line 81"
    assert note.endswith("ValueError: no model")
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_error_of_a_proxy_that_does_not_start_is_shown(app: str) -> None:
    failed = group("proxy", 0, 1, "failed", last_error="port 8000 on 127.0.0.1 is in use")
    with pytest.raises(StartupError, match=r"^'proxy' did not come up: port 8000 on 127.0.0.1 is in use$"):
        ran(app, Scripted(lambda: status(APP_UP, proxies=[failed])))


def test_run_ends_if_a_replica_can_never_be_placed(app: str) -> None:
    waits = group("default/chat", 0, 2, "waiting_for_resources", asks="1 GPU")
    never = group("default/chat", 0, 2, "failed", asks="2 GPU", last_error="r-1 asks for 2 GPU; the instance has 1 GPU")
    engine = Scripted(lambda: status(waits), lambda: status(never))
    with pytest.raises(PlacementError, match=r"^'chat' cannot be placed: r-1 asks for 2 GPU; the instance has 1 GPU$"):
        ran(app, engine)
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_an_engine_that_breaks_is_left_behind_drained(app: str) -> None:
    def broken() -> InstanceStatus:
        raise ConnectionError("the cluster is gone")

    engine = Scripted(broken)
    with pytest.raises(ConnectionError):
        ran(app, engine)
    assert engine.did == ["start", "deploy", "leave", "close"]


def test_an_app_that_does_not_import_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('no model')\n")
    engine = Scripted()
    with pytest.raises(TargetError, match="the module 'broken' does not import: ValueError: no model"):
        ran(str(tmp_path / "broken.py"), engine)
    assert engine.did == []


def test_a_ray_of_our_own_has_as_many_logical_cpus_as_the_plan_asks_for(
    app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    engine = Scripted(ready, ctrl_c)
    ran(app, engine)
    assert engine.num_cpus == 2
    Path(app).write_text(APP.replace("num_replicas=2", "num_replicas=44"))
    engine = Scripted(ready, ctrl_c)
    said = ran(app, engine)
    assert engine.num_cpus == 5
    assert (
        "The replicas reserve 4.5 CPUs; this machine has 2. The replicas will share them. Reduce `num_replicas` or "
        "`num_cpus` if the app is slow."
    ) in said


def test_an_application_that_is_scaled_while_it_starts_is_waited_for(app: str) -> None:
    def scaled(*groups: ReplicaSetStatus) -> InstanceStatus:
        [application] = status(*groups).applications
        return replace(status(), applications=(replace(application, revision=2),))

    engine = Scripted(
        lambda: status(group("default/app", 0, 1)),
        lambda: scaled(APP_UP, group("default/chat", 2, 3)),
        lambda: scaled(APP_UP, group("default/chat", 3, 3, "healthy")),
        ctrl_c,
    )
    assert "Serving Shop at http://127.0.0.1:8000" in ran(app, engine).splitlines()
    failed = group("default/chat", 0, 3, "failed", "ValueError: no")
    engine = Scripted(lambda: scaled(APP_UP, group("default/chat", 2, 3)), lambda: scaled(APP_UP, failed))
    with pytest.raises(StartupError, match=r"ValueError: no$"):
        ran(app, engine)


def test_a_cluster_that_is_joined_keeps_its_own_cpus(app: str) -> None:
    engine = Scripted(ready, ctrl_c)
    ran(app, engine, address="auto")
    assert engine.num_cpus is None


def test_options_without_an_effect_in_the_engine_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class OnOneMachine(Scripted):
        capabilities = frozenset({"processes"})

    launch.start(OnOneMachine(), [application(cpus=2)], None)
    assert caplog.messages == ["in this engine these options have no effect: chat: resources.num_cpus"]


def test_a_port_that_is_taken_is_refused_before_anything_starts(app: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        engine = Scripted()
        taken = RunOptions(app, None, HTTPOptions(port=server.getsockname()[1]), PlanOptions())
        with pytest.raises(ConfigError, match="is in use"):
            run(taken, Screen(), engine)
    assert engine.did == []


def test_changes_of_files_update_only_replicas_on_processes(app: str) -> None:
    engine = Scripted()
    with pytest.raises(ConfigError, match="--reload needs replicas on processes of this machine"):
        run(options(app, reload=True), Screen(), engine)
    assert engine.did == []


def test_admin_server_that_others_reach_needs_a_token_before_anything_starts(
    app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APP_TOOLKIT_ADMIN_TOKEN", raising=False)
    engine = Scripted()
    exposed = RunOptions(app, None, HTTPOptions(port=0, admin_host="0.0.0.0"), PlanOptions())
    with pytest.raises(ConfigError, match=r"^admin_host = '0\.0\.0\.0': other machines .* APP_TOOLKIT_ADMIN_TOKEN$"):
        run(exposed, Screen(), engine)
    assert engine.did == []
