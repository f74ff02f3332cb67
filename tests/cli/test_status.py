"""The output of `status` and `shutdown`."""

import io
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from app_toolkit.cli import main as command_line
from app_toolkit.cli.screen import Screen
from app_toolkit.config.models import HTTPOptions
from app_toolkit.config.options import StartOptions
from app_toolkit.control.command import Command
from app_toolkit.control.facts import Facts, Frozen
from app_toolkit.control.queries import GetStatus
from app_toolkit.control.status import (
    ApplicationStatus,
    InstanceStatus,
    Load,
    ReplicaSetStatus,
    ReplicaStatus,
    ScalingStatus,
)
from app_toolkit.engines import select
from app_toolkit.errors import ConfigError
from app_toolkit.observability.log_query import LoggedRecord, LogPage, LogQuery
from app_toolkit.observability.slowest import SlowAttempt, SlowRequest
from app_toolkit.observability.stalls import Blocked
from tests.docs.pages import page
from tests.operate.scripted import LISTENING, OneInstance

WAITING = ReplicaStatus("shop.chat-1-2", "starting", 1.0, "r", None, 0, "1 GPU", "0 of 1 GPU")
PROXY = ReplicaSetStatus("proxy@3f20", "healthy", 1, "r", {"running": 1}, (), 0, None)
STATUS = InstanceStatus(
    epoch=1,
    change=7,
    status="waiting_for_resources",
    applications=(
        ApplicationStatus(
            "shop",
            "waiting_for_resources",
            "/shop",
            (
                ReplicaSetStatus("shop/app", "healthy", 1, "r", {"running": 1}, (), 3, "it died, once"),
                ReplicaSetStatus(
                    "shop/chat",
                    "waiting_for_resources",
                    2,
                    "r",
                    {"running": 1, "starting": 1},
                    (WAITING,),
                    0,
                    None,
                ),
            ),
        ),
    ),
    proxies=(PROXY,),
    leaving=(),
)

FULL = {
    "proxy@abc-1-1": "1,000 of 1,000 max_queued_requests",
    "shop.app-1-1": "100 of 100 max_ongoing_requests, 1,000 of 1,000 max_open_streams",
}
LOAD = {"shop/app": Load(3, 0, 100, 0, reached=FULL), "shop/chat": Load(0, 2, 16, 7)}


class Running(OneInstance):
    """An engine on whose cluster one instance runs."""

    def __init__(self) -> None:
        self.did: list[object] = []
        self.shown = STATUS
        self.loads: dict[str, Load] = LOAD
        self.slow_requests: list[SlowRequest] = []
        self.warnings: list[LoggedRecord] = []

    def connect(self, address: str | None) -> "Running":
        self.did.append(address)
        return self

    def execute(self, command: Command[Any]) -> Any:
        assert command == GetStatus()
        return self.shown

    def load(self) -> dict[str, Load]:
        return self.loads

    def slow(self, name: str | None, last: int) -> list[SlowRequest]:
        self.did.append((name, last))
        return self.slow_requests

    def logs(self, query: LogQuery, last: int = 0) -> LogPage:
        assert query == LogQuery(level="warning")
        return LogPage(tuple(self.warnings), {})

    def shutdown(self) -> None:
        self.did.append("shutdown")

    def close(self) -> None:
        self.did.append("close")


class Nothing(OneInstance):
    def execute(self, command: Command[Any]) -> Any:
        raise AssertionError("there is no client")

    def connect(self, address: str | None) -> Running:
        raise ConfigError("no instance runs here")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    running = Running()
    monkeypatch.setattr(select, "engine", lambda *_, **__: running)
    return running


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_slow_requests_are_shown_with_their_stages_and_calls(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = datetime(2026, 5, 4, 9, 30, 0, 123_000).timestamp()
    stages = (0.0, 0.8021, (SlowAttempt("shop.web-1-1", 0.0004, "busy"),), 0.5002, 0.0001)
    request = SlowRequest(
        begun, 1.3028, "http", "shop/web", "shop.web-1-2", "GET", "/items/7", 200, "ok", "5f1c-2a", *stages
    )
    stages = (0.0, 0.0, (), 0.4809, 0.0)
    call = SlowRequest(
        begun + 0.803, 0.4809, "call", "shop/model", "shop.model-1-1", "rank", "", 200, "ok", "5f1c-2a", *stages
    )
    running.slow_requests = [replace(request, calls=(call,))]
    assert command("slow", "shop/web", "-n", "5") == 0
    assert running.did == ["auto", ("shop/web", 5), "close"]
    assert capsys.readouterr().out.split() == page("docs/observability.md").shown("text")[0].split()
    assert command("slow", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads(json.dumps(asdict(running.slow_requests[0])))


STAGES = (0.0, 0.0, (), 1.0, 0.0)


def test_slow_requests_name_the_line_that_blocked_the_event_loop_of_their_replica(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    def request(began: float, replica: str) -> SlowRequest:
        return SlowRequest(began, 1.0, "http", "shop/web", replica, "GET", f"/{began:.0f}", 200, "ok", "r", *STAGES)

    def warning(at: float, message: str) -> LoggedRecord:
        time = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}.000Z"
        return LoggedRecord(time, "WARNING", "app_toolkit.watchdog", message, replica="shop.web-1-1")

    running.warnings = [
        warning(101, f"the event loop of shop.web-1-1 is {Blocked(1, 'shop.py:7 in block')} and serves nothing else"),
        warning(110, "the event loop of shop.web-1-1 was blocked for 10.0 s"),
    ]
    running.slow_requests = [
        *(request(began, "shop.web-1-1") for began in (98, 100, 105, 111)),
        request(105, "shop.web-1-2"),
    ]
    assert command("slow") == 0
    rows = [line.partition("loop blocked at=")[2] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["", "shop.py:7 in block", "shop.py:7 in block", "", ""]


@pytest.mark.parametrize("width", [80, 120, 160, 400])
def test_slow_requests_are_shown_whole_on_a_terminal_of_any_width(width: int) -> None:
    path, id = "/shops/" + "lamp/" * 30, "5f1c" * 8
    request = SlowRequest(0.0, 1.0, "http", "shop/web", "shop.web-1-1", "GET", path, 200, "ok", id, *STAGES)
    console = Console(file=io.StringIO(), force_terminal=True, width=width, soft_wrap=True, color_system=None)
    Screen(console).slow([request])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(any(each in line for line in lines) for each in (path, id, "shop.web-1-1"))
    assert all(len(line) <= width for line in lines if path not in line)


def test_slow_requests_of_a_name_that_does_not_exist_are_an_error(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("slow", "nope") == 2
    assert capsys.readouterr() == ("", "Error: there is no application 'nope'\n")
    assert command("slow", "shop/nope", "--json") == 2
    assert capsys.readouterr() == ("", "Error: application 'shop' has no deployment 'nope'; it has app, chat\n")
    assert command("slow", "shop/app") == 0
    assert capsys.readouterr() == ("no requests have ended in the last ten minutes\n", "")


def test_the_path_of_a_slow_request_is_escaped(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    stages = (0.0, 0.0, (), 1.0, 0.0)
    running.slow_requests = [
        SlowRequest(0.0, 1.0, "http", "shop/web", "-", "GET", "/a\x1b[0m", 504, "deadline_exceeded", "r-1", *stages)
    ]
    assert command("slow") == 0
    assert "request=GET /a\\x1b[0m  for=shop/web  status=504 deadline_exceeded  " in capsys.readouterr().out


def test_status_is_a_line_for_each_ingress(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("status") == 0
    assert capsys.readouterr().out.splitlines() == [
        "application shop at /shop, revision 1",
        "  proxy: healthy, 1 of 1 running",
        "  app: healthy, 1 of 1 running, 3 restarts",
        "  chat: waiting for resources, 1 of 2 running (one replica asks for 1 GPU; the instance has 0 of 1 GPU free)",
        "    shop.chat-1-2: starting for 1 s, requests 1 GPU; the instance has 0 of 1 GPU free",
        "  requests for=app  wait in proxies=3  wait in handles=0  ongoing=100  wait for a batch=0  open streams=0",
        "  requests for=chat  wait in proxies=0  wait in handles=2  ongoing=16  wait for a batch=7  open streams=0",
        "  app: proxy@abc-1-1 has reached 1,000 of 1,000 max_queued_requests",
        "  app: shop.app-1-1 has reached 100 of 100 max_ongoing_requests, 1,000 of 1,000 max_open_streams",
    ]
    assert running.did == ["auto", "close"]


def test_status_names_the_options_of_the_start_that_differ_from_the_defaults(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**HTTPOptions(port=80).model_dump(), **StartOptions(resources={"NPU": 2}).model_dump()}
    running.shown = replace(STATUS, options=options)
    assert command("status") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "started with resources = {'NPU': 2.0}"
    assert command("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["options"] == options


def test_an_application_that_was_rolled_back_says_why_and_which_revision_serves(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    group = ReplicaSetStatus("shop/app", "healthy", 1, "r", {"running": 1}, (), 3, None)
    error = "shop/app: Traceback (most recent call last):\n  line 3\nRuntimeError: no weights"
    back = ApplicationStatus("shop", "rolled_back", "/shop", (group,), 3, error, 2)
    running.shown = replace(STATUS, applications=(back,))
    assert command("status") == 0
    assert capsys.readouterr().out.splitlines()[:5] == [
        "application shop at /shop, revision 3",
        "  revision 3 of 'shop' was rolled back to revision 2: RuntimeError: no weights",
        "      shop/app: Traceback (most recent call last):",
        "        line 3",
        "      RuntimeError: no weights",
    ]


def test_page_shows_the_reason_of_a_target(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = page("docs/autoscaling.md").shown("console")
    why = "from 2 to 3: the load is 6, on average 5.2, and one replica is meant to have 2"
    follow = {"shop": ScalingStatus(1, 100, 6, 5.8, 3, why), "writer": ScalingStatus(0, 8, 0, 0.0, 0, None)}
    groups = [
        ReplicaSetStatus(f"shop/{name}", "healthy", each.needed, "r", {"running": each.needed}, (), 0, None, each)
        for name, each in follow.items()
    ]
    running.shown = replace(STATUS, applications=(ApplicationStatus("shop", "healthy", "/", tuple(groups)),))
    running.loads = {"shop/shop": Load(0, 0, 6, 0), "shop/writer": Load(0, 0, 0, 0)}
    assert command("status") == 0
    assert f"$ app-toolkit status\n{capsys.readouterr().out}" == shown


def test_page_shows_where_requests_wait(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = page("docs/requests.md").shown("console")
    groups = [
        ReplicaSetStatus(f"default/{name}", "healthy", replicas, "r", {"running": replicas}, (), 0, None)
        for name, replicas in (("app", 1), ("writer", 2))
    ]
    proxies = replace(PROXY, replicas=(LISTENING,))
    application = ApplicationStatus("default", "healthy", "/", tuple(groups), 1)
    running.shown = replace(STATUS, applications=(application,), proxies=(proxies,))
    full = {f"default.writer-1-{number}": "16 of 16 max_ongoing_requests" for number in (1, 2)}
    running.loads = {"default/app": Load(0, 0, 12, 0), "default/writer": Load(0, 5, 32, 8, reached=full)}
    assert command("status") == 0
    assert f"$ app-toolkit status\n{capsys.readouterr().out}" == shown


def test_verbose_status_shows_each_replica(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    serving = ReplicaStatus("shop.app-1-1", "running", 61.6, "r", "unix:/x", 0, None, None, node="3f" * 28)
    (shop,) = STATUS.applications
    app, chat = shop.deployments
    shop = replace(shop, deployments=(replace(app, replicas=(serving,)), chat))
    running.shown = replace(STATUS, applications=(shop,))
    running.loads = {**LOAD, "shop/app": replace(LOAD["shop/app"], replicas={"shop.app-1-1": 100})}
    assert command("status", "--replicas") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[2:5] == [
        "  app: healthy, 1 of 1 running, 3 restarts",
        "    shop.app-1-1: running for 62 s, on node 3f3f3f3f, 100 ongoing",
        "      it died, once",
    ]


def test_a_replica_that_does_not_answer_health_checks_is_marked(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = ReplicaStatus(
        "shop.app-1-1", "running", 61.6, "r", "unix:/x", 2, None, None, unhealthy="did not answer 2 health checks"
    )
    (shop,) = STATUS.applications
    group = ReplicaSetStatus("shop/app", "unhealthy", 1, "r", {"running": 1}, (silent,), 0, None)
    running.shown = replace(STATUS, applications=(replace(shop, deployments=(group,)),))
    running.loads = {}
    assert command("status") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  app: unhealthy, 1 of 1 running (shop.app-1-1 did not answer 2 health checks)",
        "    shop.app-1-1: running for 62 s, did not answer 2 health checks",
    ]
    assert command("status", "--json") == 0
    ((replica,),) = [each["replicas"] for each in json.loads(capsys.readouterr().out)["applications"][0]["deployments"]]
    assert replica["unhealthy"] == "did not answer 2 health checks"


def test_status_has_a_line_for_the_proxies_of_each_node(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    running.shown = replace(STATUS, proxies=tuple(replace(PROXY, name=f"proxy@{letter * 56}") for letter in "ab"))
    assert command("status") == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  proxy@aaaaaaaa: healthy, 1 of 1 running",
        "  proxy@bbbbbbbb: healthy, 1 of 1 running",
    ]


def test_status_as_json_is_all_that_is_known(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("status", "--json", "--address", "auto") == 0
    load = {name: asdict(each) for name, each in LOAD.items()}
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps({**asdict(STATUS), "load": load}))
    assert running.did == ["auto", "close"]


def test_shutdown_drains_and_lets_go(running: Running) -> None:
    assert command("shutdown") == 0
    assert running.did == ["auto", "shutdown", "close"]


@pytest.mark.parametrize("name", ["status", "shutdown"])
def test_status_says_that_nothing_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(select, "engine", lambda *_, **__: Nothing())
    assert command(name) == 2
    assert capsys.readouterr().err == "Error: no instance runs here\n"


def test_status_shows_the_url_with_the_revision(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    serving = ReplicaStatus("proxy@abc-1-1", "running", 61.6, "r", "tls:127.0.0.1:8443", 0, None, None, node="3f" * 28)
    proxies = ReplicaSetStatus("proxy@abc", "healthy", 1, "r", {"running": 1}, (serving,), 0, None)
    running.shown = replace(STATUS, proxies=(proxies,))
    assert command("status") == 0
    assert capsys.readouterr().out.splitlines()[0] == "application shop at https://127.0.0.1:8443/shop, revision 1"


def test_status_says_why_an_application_is_frozen(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (shop,) = STATUS.applications
    frozen = Frozen("the sale ends on Monday", datetime(2026, 11, 28, 9, 30).timestamp())
    running.shown = replace(STATUS, applications=(replace(shop, facts=Facts(frozen)),))
    assert command("status") == 0
    assert "  frozen since 2026-11-28 09:30: the sale ends on Monday\n" in capsys.readouterr().out


def test_status_says_why_there_is_no_dashboard(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    running.shown = replace(STATUS, admin_failure="the admin server cannot listen on port 8001")
    assert command("status") == 0
    assert "no dashboard: the admin server cannot listen on port 8001\n" in capsys.readouterr().out


def test_a_terminal_has_one_table_for_each_application() -> None:
    written = io.StringIO()
    Screen(Console(file=written, force_terminal=True, color_system=None, width=160)).status(STATUS, LOAD)
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    assert [line.split() for line in lines[1:4]] == [
        ["status", "running", "restarts", "ongoing", "waiting", "streams"],
        ["proxy", "healthy", "1/1"],
        ["app", "healthy", "1/1", "3", "100", "3", "0"],
    ]
    assert "chat" in lines[4]
    assert "one replica asks for 1 GPU; the instance has 0 of 1 GPU free" in lines[4]
