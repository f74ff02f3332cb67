"""`deploy` from its first line to its last, against a cluster that keeps what it is given; `delete`, and `--watch`."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app_toolkit.cli import main as command_line
from app_toolkit.cli.deploy import DeployOptions, deploy
from app_toolkit.cli.operating import summary
from app_toolkit.cli.screen import Screen
from app_toolkit.config.files import read_file
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import PlanOptions, TrafficOptions
from app_toolkit.contract.mirror_counts import Difference, MirrorCounts
from app_toolkit.control.application_specs import compare, proxy_options
from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.command import Command
from app_toolkit.control.operations import AddCandidate, Delete, Deploy, Scale
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.queries import Compare, GetEvents, GetStatus
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.status import (
    ApplicationStatus,
    CanaryStatus,
    ComparedStatus,
    InstanceStatus,
    Load,
    ReplicaSetStatus,
    ReplicaStatus,
    SplitStatus,
    TrafficStatus,
)
from app_toolkit.control.weights import SetSplit, SetTraffic
from app_toolkit.engines import select
from app_toolkit.errors import ConfigError, InstanceEnded
from app_toolkit.observability.event_log import EventPage, LoggedEvent
from app_toolkit.observability.log_query import LoggedRecord, LogPage, LogQuery
from app_toolkit.userapp.artifact import Unpacked
from tests.operate.scripted import FAILED, PROXY, STARTING, UP, OneInstance, Scripted, Unloaded

APP = """
from fastapi import APIRouter
from app_toolkit import DeploymentConfig, Toolkit

app = Toolkit(title="Shop")
app.include_router(APIRouter(prefix="/chat"), deployment=DeploymentConfig(name="chat", num_replicas=2))
"""


def status(*groups: ReplicaSetStatus, revision: int = 1) -> InstanceStatus:
    shop = ApplicationStatus("shop", "starting", "/shop", groups, revision)
    return InstanceStatus(1, 1, "starting", (shop,), (PROXY,), ())


class Cluster(OneInstance):
    """A cluster on which an instance runs once somebody has started one."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.runs = False
        self.applications: dict[str, ApplicationSpec] = {}
        self.beside: set[str] = set()
        self.http = HTTPOptions()
        self.code: dict[str, bytes] = {}

    def find(self, address: str | None) -> "Cluster | None":
        assert address == "auto"
        return self if self.runs else None

    def start(
        self, *, address: str | None, num_cpus: float | None = None, with_lease: bool = True, **_: object
    ) -> "Cluster":
        assert (address, num_cpus, with_lease) == ("auto", None, False)
        self.did.append("start")
        self.runs = True
        return self

    def execute(self, command: Command[Any]) -> Any:
        match command:
            case Compare(specs, http):
                return compare(specs, self.applications, self.http, http)
            case Deploy(spec, http, code, None, expected, initial):
                self.did.append(f"deploy {spec.name}" + (f" after {expected}" if expected is not None else ""))
                self.applications[spec.name] = spec
                self.code.update(code)
                assert initial is not None
                assert spec.route_prefix is not None or not http.model_fields_set, "it cannot move proxies of others"
                self.http = proxy_options(self.http, http)
                return 1
            case AddCandidate(spec, code, share, tag, None, 2, mirror):
                self.did.append(f"add {spec.name} with {share:g} {tag}, {mirror:g} mirrored")
                self.code.update(code)
                self.beside.add(spec.name)
                return 2
            case GetStatus(after):
                other = TrafficStatus(2, 0.1, 0.1, deployments=(replace(UP, created=2),), created=2)
                up = tuple(
                    ApplicationStatus(name, "healthy", "/", (UP,), traffic=(MAIN, other) if name in self.beside else ())
                    for name in self.applications
                )
                return InstanceStatus(1, after + 1, "healthy", up, (PROXY,), ())
            case _:
                raise AssertionError(f"deploy has no need of {command}")

    def load(self) -> Any:
        raise AssertionError("deploy shows no load")

    def close(self) -> None:
        self.did.append("close")


@pytest.fixture
def app(_planned_here: None, _planned_in_forks: None, tmp_path: Path) -> Path:
    path = tmp_path / "app" / "shop.py"
    path.parent.mkdir()
    path.write_text(APP)
    return path


def deployed(cluster: Cluster, target: Path, **more: Any) -> list[str]:
    """What `deploy` said, line by line."""
    output = io.StringIO()
    options = {"http": HTTPOptions(), "plan": PlanOptions(name="shop", route_prefix="/shop"), **more}
    screen = Screen(Console(file=output, highlight=False, soft_wrap=True))
    deploy(DeployOptions(target=str(target), app_dir=None, address="auto", **options), screen, cluster)
    return output.getvalue().splitlines()


def test_shown_plan_is_applied_with_its_files(app: Path, tmp_path: Path) -> None:
    cluster = Cluster()
    new = [
        "application shop at /shop: new",
        "  app: will be added (num_replicas none -> 1)",
        "  chat: will be added (num_replicas none -> 2)",
    ]
    assert deployed(cluster, app, dry_run=True) == new
    assert cluster.did == []
    said = deployed(cluster, app)
    assert said == [*new, "Applied. `app-toolkit status --watch` shows the progress."]
    assert cluster.did == ["start", "deploy shop", "close"]
    spec = cluster.applications["shop"]
    assert (spec.app_dir, spec.working_dir, list(cluster.code)) == (".", ".", [spec.artifact])
    unpacked = Unpacked(spec.artifact, lambda: cluster.code[spec.artifact], tmp_path / "node")
    assert (unpacked.folder / "shop.py").read_text() == APP
    unpacked.close()

    assert deployed(cluster, app, dry_run=True) == [
        "application shop at /shop: no changes",
        "  app: unchanged",
        "  chat: unchanged",
    ]
    app.write_text(APP.replace('"Shop"', '"Shops"').replace("num_replicas=2", "num_replicas=3"))
    assert deployed(cluster, app, dry_run=True, named=HTTPOptions(port=9000)) == [
        "application shop at /shop: files changed: shop.py",
        "  app: will be restarted",
        "  chat: will be restarted (num_replicas 2 -> 3)",
        "proxies: will be restarted (port 8000 -> 9000)",
    ]
    assert cluster.did == ["start", "deploy shop", "close", "close", "close"]
    assert cluster.http == HTTPOptions()


def test_a_shared_stream_log_is_deployed_once_and_then_left_alone(app: Path) -> None:
    cluster = Cluster()
    app.write_text(APP.replace('title="Shop"', 'title="Shop", stream_log="shared"'))
    log = ["application stream-log: new", "  stream-log: will be added (num_replicas none -> 1)"]
    assert deployed(cluster, app, dry_run=True)[:2] == log
    assert deployed(cluster, app, wait=True, named=HTTPOptions(port=9000))[:2] == log
    assert cluster.did == ["start", "deploy stream-log after 0", "deploy shop", "close"]
    assert cluster.http == HTTPOptions(port=9000)
    assert deployed(cluster, app)[0] == "application shop at /shop: no changes"
    assert cluster.did[4:] == ["deploy shop", "close"]
    app.write_text(APP)
    assert deployed(cluster, app)[0] == "application shop at /shop: stream_log shared -> memory, files changed: shop.py"


@pytest.mark.slow
def test_all_applications_of_a_file_are_deployed_and_no_secret_is_shown(app: Path) -> None:
    (app.parent / "keyed.py").write_text(
        "from app_toolkit import Deployment, Toolkit\n"
        "class Door(Deployment):\n"
        "    def reconfigure(self, config): ...\n"
        "app = Toolkit(deployments=[Door.bind()])\n"
    )
    (app.parent / "app.yaml").write_text(
        "applications:\n"
        "  shop: {target: 'shop:app', route_prefix: /shop}\n"
        "  keyed: {target: 'keyed:app', deployments: {door: {user_config: {key: '${KEY}'}}}}\n"
    )
    cluster = Cluster()
    file = read_file(app.parent / "app.yaml")
    deployed(cluster, app.parent / "app.yaml", file=file, variables={"KEY": "s3cret-1"})
    said = deployed(cluster, app.parent / "app.yaml", file=file, variables={"KEY": "s3cret-2"}, wait=True)
    assert said[:3] == ["application shop at /shop: no changes", "  app: unchanged", "  chat: unchanged"]
    assert "  door: will be reconfigured (user_config changed)" in said
    assert "Serving Shop at http://127.0.0.1:8000/shop" in said
    assert "s3cret" not in "".join(said)
    assert cluster.applications["keyed"].deployments[1].config.reloadable_options.user_config == {"key": "s3cret-2"}


def test_an_edit_of_a_file_beside_the_code_only_changes_the_options_that_are_edited(app: Path) -> None:
    file, another = app.parent / "app.yaml", app.parent / "another.yaml"
    options = "applications: {{shop: {{target: 'shop:app', deployments: {{chat: {{num_replicas: {}}}}}}}}}"
    cluster = Cluster()
    file.write_text(options.format(2))
    deployed(cluster, file, file=read_file(file))
    before = cluster.applications["shop"].artifact
    file.write_text(options.format(4))
    another.write_text(options.format(8))
    (app.parent / ".pytest_cache").mkdir()
    (app.parent / ".pytest_cache" / "README.md").touch()
    said = deployed(cluster, file, file=read_file(file))
    assert said[1:3] == ["  app: unchanged", "  chat: will be scaled (num_replicas 2 -> 4)"]
    assert cluster.applications["shop"].artifact == before


@pytest.mark.usefixtures("_planned_here")
def test_files_that_are_not_packed_are_named_first_unless_they_are_asked_for(app: Path) -> None:
    for name in (".env", "shop.db", "uploads/a.png"):
        (app.parent / name).parent.mkdir(exist_ok=True)
        (app.parent / name).touch()
    cluster = Cluster()
    place = "Data belongs in the folder that APP_TOOLKIT_DATA names."
    folders = f"Packed by deploy, and read-only for the app: uploads/. {place}"
    assert deployed(cluster, app, dry_run=True)[:3] == [
        f"Not packed by deploy: .env, shop.db. The option `include` packs files. {place}",
        folders,
        "application shop at /shop: new",
    ]
    assert deployed(cluster, app, include=[".env", "*.db"])[0] == folders
    assert {".env", "shop.db"} < {*cluster.applications["shop"].files}


@pytest.mark.usefixtures("_planned_here")
def test_include_has_no_effect_where_replicas_use_the_folder_of_the_app(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(Cluster, "runs_here", True)
    said = "--include has no effect here: the replicas use the folder of the app, with all of its files."
    assert deployed(cluster, app, include=[".env"])[0] == said
    assert said not in deployed(cluster, app)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(instance: object, *arguments: str) -> int:
        monkeypatch.setattr(select, "engine", lambda *_, **__: instance)
        with pytest.raises(SystemExit) as ended:
            command_line.main(arguments)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def test_an_application_is_deleted_by_its_name(command: Callable[..., int]) -> None:
    instance = Scripted(status(UP))
    assert command(instance, "delete", "shop") == 0
    assert instance.did == [Delete("shop"), "close"]


def test_a_delete_that_is_refused_does_not_drain(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(Scripted):
        def execute(self, command: Command[Any]) -> Any:
            raise ConfigError("there is no application 'shop'")

    assert command(Refusing(), "delete", "shop") == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "Error: there is no application 'shop'\n")


def test_the_help_of_an_operation_ends_before_its_result() -> None:
    assert summary(Promote) == "Make a live revision the main revision, which gets all requests."


def test_a_deployment_is_deleted_by_its_name(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    instance = Scripted(status(UP))
    assert command(instance, "delete", "shop/chat") == 0
    assert instance.did == [Delete("shop/chat"), "close"]
    assert command(instance, "delete", "shop/") == 2
    assert capsys.readouterr().err == "Error: 'shop/' names no deployment: it should be APPLICATION/DEPLOYMENT\n"


def test_a_deployment_is_scaled_by_its_name(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    instance = Scripted(status(STARTING), status(UP))
    assert command(instance, "scale", "shop/app", "1", "--wait") == 0
    assert instance.did == [Scale("shop/app", 1), "close"]
    assert "app: healthy, 1 of 1 running" in capsys.readouterr().out
    assert command(instance, "scale", "shop", "1") == 2
    assert capsys.readouterr().err == "Error: 'shop' names no deployment: it should be APPLICATION/DEPLOYMENT\n"


def test_a_restart_is_waited_for_unless_that_is_not_asked_for(command: Callable[..., int]) -> None:
    instance = Scripted(status(STARTING), status(UP))
    assert command(instance, "restart", "shop/app") == 0
    assert next(instance.script, None) is None, "it was up"
    assert instance.did == [Restart("shop/app", 3), "close"]
    instance = Scripted(status(STARTING))
    assert command(instance, "restart", "shop", "--no-wait") == 0
    assert next(instance.script, None) is not None


def test_events_are_shown_and_followed(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    applied = LoggedEvent(61.0, "shop", "Applied", None, "revision 3")
    exited = LoggedEvent(1.0, "shop/chat", "Exited", "shop.chat-1-2", "Traceback:\n  in chat\nKeyError: '\x1b[31m'")
    instance = Scripted(EventPage((applied, exited), 1, 7))
    assert command(instance, "events", "shop/chat", "-n", "2") == 0
    assert instance.did == [GetEvents("shop/chat", 2), "close"]
    lines = capsys.readouterr().out.splitlines()
    assert [line[19:] for line in lines[:2]] == [
        "  shop  Applied: revision 3",
        "  shop/chat  Exited  shop.chat-1-2: Traceback:",
    ]
    assert lines[2:] == ["        in chat", r"      KeyError: '\x1b[31m'"]
    times = [datetime.fromisoformat(line[:19]) for line in lines[:2]]
    assert timedelta(seconds=59) <= times[1] - times[0] <= timedelta(seconds=61)
    pages = [EventPage(events, 1, number) for events, number in (((applied,), 7), ((), 7), ((exited,), 8))]
    instance = Scripted(*pages, InstanceEnded("over"))
    assert command(instance, "events", "--follow", "--json") == 0
    assert instance.did[:3] == [GetEvents(None, 50), GetEvents(None, None, 1, 7, 0.5), GetEvents(None, None, 1, 7, 0.5)]
    *shown, end = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in shown] == ["Applied", "Exited"]
    assert end == "The events ended: over."


def test_events_of_a_name_that_does_not_exist_are_an_error_unless_the_log_has_some(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--json",), ("--follow",)):
        assert command(Scripted(EventPage((), 1, 7), status(UP)), "events", "nope", *options) == 2
        assert capsys.readouterr() == ("", "Error: there is no application 'nope'\n")
    assert command(Scripted(EventPage((), 1, 7), status(UP)), "events", "shop") == 0
    deleted = EventPage((LoggedEvent(61.0, "nope", "Deleted", None, None),), 1, 7)
    assert command(Scripted(deleted), "events", "nope") == 0
    assert "nope  Deleted" in capsys.readouterr().out


def test_logs_are_shown_and_followed(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    forged = LoggedRecord(
        "2026-05-04T09:30:00.123Z", "INFO", "stdout", "tea\r\nPAID\x1b[2K", "5f1c", replica="shop.a-1-1"
    )
    failed = replace(forged, logger="shop", exception="Traceback:\nKeyError: '\x00'", request_id="")
    first, second = LogPage((forged,), {"n": {"shop.a-1-1": "7:90"}}), LogPage((failed,), {}, missing=("192.0.2.7",))
    instance = Scripted(first)
    assert command(instance, "logs", "shop/a", "-n", "5", "--request-id", "5f1c", "--level", "info") == 0
    assert instance.did == [(LogQuery("shop", "a", request_id="5f1c", level="info"), 5, None), "close"]
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"shop.a-1-1 \| 2026-05-0\d \d\d:\d\d:00.123 INFO stdout \[5f1c\]: tea\\r\\nPAID\\x1b\[2K", line
    )

    instance = Scripted(first, second, InstanceEnded("over"))
    assert command(instance, "logs", "--controller", "--follow") == 0
    assert instance.did[1] == (LogQuery(kind="controller"), 10_000, first.positions)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2:] == ["  Traceback:", "  KeyError: '\\x00'", "The logs ended: over."]
    assert shown.err == "The logs of node 192.0.2.7 are missing: no proxy answers there.\n"

    assert command(Scripted(first), "logs", "--json") == 0
    assert LoggedRecord.parse(capsys.readouterr().out) == forged
    nothing = Scripted(LogPage((), {}))
    assert command(nothing, "logs", "shop/a", "--level", "WARNING") == 0
    assert nothing.did[0] == (LogQuery("shop", "a", level="warning"), 100, None)
    assert capsys.readouterr() == ("", "No records match.\n")
    assert command(Scripted(), "logs", "shop", "--proxies") == 2
    assert capsys.readouterr().err == "Error: shop names replicas, so --proxies and --controller would show nothing\n"


def test_a_new_revision_starts_beside_the_running_one(app: Path) -> None:
    cluster = Cluster()
    with pytest.raises(ConfigError, match="a revision beside the running one needs a running application, and"):
        deployed(cluster, app, traffic=TrafficOptions(percent=10))
    with pytest.raises(ConfigError, match=r"^traffic = 101: input should be less than or equal to 100"):
        TrafficOptions(percent=101)
    deployed(cluster, app)
    said = deployed(cluster, app, traffic=TrafficOptions(percent=10, tag="preview", mirror=50), wait=True)
    assert cluster.did[-2:] == ["add shop with 0.1 preview, 0.5 mirrored", "close"]
    assert said[:3] == [
        "application shop: a new revision beside the running one",
        "Revision 2 of shop gets 10 % of the requests once it runs.",
        "It gets copies of 50 % of the requests of the other revisions.",
    ]
    assert said[-2] == "Serving Shop at http://127.0.0.1:8000/shop"
    with pytest.raises(ConfigError, match="a live revision cannot change options of the proxies: tag_source none -> "):
        deployed(cluster, app, traffic=TrafficOptions(tag="preview"), named=HTTPOptions(tag_source="header:x-tag"))


def test_a_file_says_which_revisions_start_beside_the_running_ones(app: Path) -> None:
    path = app.with_name("app.yaml")
    text = "applications:\n  shop: {target: shop:app}\n  two: {target: shop:app, route_prefix: /two"
    path.write_text(text + "}\n")
    cluster = Cluster()
    deployed(cluster, path, file=read_file(path))
    path.write_text(text + ", traffic: {percent: 25, tag: preview}}\n")
    cluster.did.clear()
    deployed(cluster, path, file=read_file(path))
    assert cluster.did == ["deploy shop", "add two with 0.25 preview, 0 mirrored", "close"]
    path.write_text(text + ", traffic: {percent: 101}}\n")
    with pytest.raises(ConfigError, match=r"app.yaml:3: applications.two.traffic.percent = 101: input should be"):
        read_file(path)


def live(*traffic: TrafficStatus) -> InstanceStatus:
    found = status(UP)
    (shop,) = found.applications
    return replace(found, applications=(replace(shop, traffic=traffic, next_revision=4),))


MAIN, NEW = TrafficStatus(1, 1.0, 0.9), TrafficStatus(3, 0.0, 0.1, "preview", is_ready=False, created=3)


def test_the_shares_of_the_live_revisions_are_shown_and_set(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Scripted(live(MAIN, NEW))
    assert command(instance, "traffic", "shop", "1=90", "3=10") == 0
    assert instance.did == [SetTraffic("shop", {1: 90.0, 3: 10.0}), "close"]
    assert capsys.readouterr().out.splitlines() == [
        "  revision=1  traffic=100 %  mirror=  tag=  state=ready",
        "  revision=3  traffic=0 %  mirror=  tag=preview  state=starts, then 10 %",
    ]
    lacking = ReplicaStatus("shop.app-3-1", "starting", 1.0, "r", None, 0, "1 GPU", "0 GPU")
    waiting = replace(UP, status="waiting_for_resources", replicas=(lacking,))
    waits = "waits for resources: shop/app: one replica asks for 1 GPU; the instance has 0 GPU free"
    for deployments, state in (
        ((UP, waiting), waits),
        ((UP, waiting, FAILED), "failed: shop/app: ValueError: no model"),
    ):
        assert command(Scripted(live(MAIN, replace(NEW, deployments=deployments))), "traffic", "shop") == 0
        shown = f"  revision=3  traffic=0 %  mirror=  tag=preview  state={state}"
        assert capsys.readouterr().out.splitlines()[1] == shown
    assert command(Scripted(status(UP)), "traffic", "shop") == 0
    assert capsys.readouterr().out == "  revision=1  traffic=100 %  mirror=  tag=  state=ready\n"
    assert command(Scripted(), "traffic", "shop", "3=1", "3=2") == 2
    assert capsys.readouterr().err == "Error: a revision is named twice: 3=1 3=2\n"
    assert command(Scripted(), "traffic", "shop", "3:10") == 2
    assert capsys.readouterr().err == "Error: '3:10' should be REVISION=WEIGHT, such as 13=10\n"
    assert command(Scripted(status(UP)), "traffic", "shoe") == 2
    assert capsys.readouterr().err == "Error: there is no application 'shoe'; did you mean 'shop'?\n"


DIFFERENT = Difference("it", "GET /cart", "200", "500", 10, 4, 0.002, 0.004)
MIRRORED = MirrorCounts(
    9, 1, 3, 2, same=7, different_status=1, primary_s=0.016, mirror_s=0.04, differences=(DIFFERENT,)
)


class Loaded(Scripted):
    def load(self) -> dict[str, Load]:
        calls = MirrorCounts(completed=5)
        return {"shop/web": Load(0, 0, 0, 0, mirrored_calls=calls), "shop@3/web": Load(0, 0, 0, 0, mirrored=MIRRORED)}


def test_mirrors_are_set_and_shown_with_their_counts(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Loaded(live(MAIN, replace(NEW, mirror=0.5, is_ready=True)))
    assert command(instance, "traffic", "shop", "--mirror", "3=50") == 0
    assert instance.did == [SetTraffic("shop", {}, {3: 50.0}), "close"]
    assert capsys.readouterr().out.splitlines() == [
        "  revision=1  traffic=100 %  mirror=  tag=  state=ready",
        "  revision=3  traffic=0 %  mirror=50 %  tag=preview  state=ready",
        "  mirrored to=3  completed=9  dropped=3  too large=2  failed=1  compared=8  different status=1  "
        "different body=0  primary=2.0 ms  mirror=5.0 ms",
        "  GET /cart (it): 200, 10 bytes, 2.0 ms; mirror: 500, 4 bytes, 4.0 ms",
    ]
    assert command(Scripted(), "traffic", "shop", "--mirror", "3") == 2
    assert capsys.readouterr().err == "Error: '3' should be REVISION=PERCENT, such as 13=50\n"


def test_a_canary_release_is_begun_shown_paused_and_resumed(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = ComparedStatus(1_200, 3, 0.0124, 0.05, 1.5)
    going_on = CanaryStatus(3, (1, 50), 2, 60, ("p95<1.2x",), False, None, "it waits", 61.2, seen, seen)
    found = live(MAIN, NEW)
    found = replace(found, applications=(replace(found.applications[0], canary=going_on),))
    instance = Scripted(found)
    options = ("--steps", "1,50", "--every", "1m", "--guard", "error_rate<1%", "--guard", "p95<1.2x")
    assert command(instance, "rollout", "shop", "3", *options, "--min-requests", "50") == 0
    release = BeginRelease("shop", 3, (1.0, 50.0), "1m", ["error_rate<1%", "p95<1.2x"], 50)
    assert instance.did == [release, "close"]
    shown = [
        "  canary release of revision 3: step 2 of 2, 50 %, for 61 s; it waits",
        "    candidate: 1,200 requests, 3 errors, p50 12.4 ms, p95 50.0 ms, p99 1,500.0 ms",
        "    baseline: 1,200 requests, 3 errors, p50 12.4 ms, p95 50.0 ms, p99 1,500.0 ms",
    ]
    assert capsys.readouterr().out.splitlines() == shown
    assert command(Scripted(found), "traffic", "shop") == 0
    assert capsys.readouterr().out.splitlines()[2:] == shown
    for option, paused in (("--pause", True), ("--resume", False)):
        instance = Scripted(found)
        assert command(instance, "rollout", "shop", option) == 0
        assert instance.did == [PauseRelease("shop", paused), "close"]
    ended = CanaryStatus(3, (1, 50), 1, 60, ("p95<1.2x",), False, "returned", "the guard p95<1.2x does not hold")
    (shop,) = status(UP).applications
    instance = Scripted(replace(found, applications=(replace(shop, canary=ended),)))
    capsys.readouterr()
    assert command(instance, "status") == 0
    why = "  canary release of revision 3: returned in step 1 of 2, 1 %: the guard p95<1.2x does not hold"
    assert why in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--pause", "--resume"), "--pause, --resume and the options of a new release exclude each other"),
        (("--steps", "1", "--pause"), "--pause, --resume and the options of a new release exclude each other"),
        (("--steps", "5,1"), "the steps 5, 1 should rise"),
        ((), "application 'shop' has no canary release; begin one with --steps"),
    ],
)
def test_a_canary_release_is_refused(
    arguments: tuple[str, ...], why: str, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(Scripted(status(UP)), "rollout", "shop", *arguments) == 2
    assert capsys.readouterr().err == f"Error: {why}\n"


def test_the_shares_of_a_split_are_shown_and_set(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    found = status(UP)
    shares = SplitStatus("writer", {"writer-v1": 0.875, "writer-v2": 0.125})
    found = replace(found, applications=(replace(found.applications[0], splits=(shares,)),))
    instance = Scripted(found)
    assert command(instance, "traffic", "shop/writer", "writer-v1=7", "writer-v2=1") == 0
    assert instance.did == [SetSplit("shop/writer", {"writer-v1": 7.0, "writer-v2": 1.0}), "close"]
    lines = [
        "  split=writer  member=writer-v1  traffic=87.5 %  mirror=",
        "  split=writer  member=writer-v2  traffic=12.5 %  mirror=",
    ]
    assert capsys.readouterr().out.splitlines() == lines
    assert command(Scripted(found), "traffic", "shop/writer") == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert command(Scripted(found), "status") == 0
    assert set(lines) <= set(capsys.readouterr().out.splitlines())
    for arguments, error in (
        (["shop/reader"], "application 'shop' has no split 'reader'; it has writer"),
        (["shop/writer", "writer-v1"], "'writer-v1' should be MEMBER=WEIGHT, such as writer-v2=10"),
        (["shop/writer", "a=1", "a=2"], "a member is named twice: a=1 a=2"),
        (["shop/writer", "--mirror", "a"], "'a' should be MEMBER=PERCENT, such as writer-v3=50"),
        (["shop/", "a=1"], "'shop/' names no split: it should be APPLICATION/SPLIT"),
    ):
        assert command(Scripted(found), "traffic", *arguments) == 2
        assert capsys.readouterr().err == f"Error: {error}\n"


def test_mirrors_of_a_split_are_set_and_shown_with_their_counts(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    found = status(UP)
    shares = SplitStatus("writer", {"web": 1.0, "writer-v3": 0.0}, {"web": 0.5})
    instance = Loaded(replace(found, applications=(replace(found.applications[0], splits=(shares,)),)))
    assert command(instance, "traffic", "shop/writer", "web=1", "--mirror", "web=50", "--mirror", "writer-v3=0") == 0
    assert instance.did == [SetSplit("shop/writer", {"web": 1.0}, {"web": 50.0, "writer-v3": 0.0}), "close"]
    assert capsys.readouterr().out.splitlines() == [
        "  split=writer  member=web  traffic=100 %  mirror=50 %",
        "  split=writer  member=writer-v3  traffic=0 %  mirror=",
        "  mirrored to=web  completed=5  dropped=0  too large=0  failed=0  compared=0  different status=0  "
        "different body=0  primary=  mirror=",
    ]


def test_a_live_revision_is_promoted_or_aborted(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Scripted(status(STARTING, revision=4), status(UP, revision=4))
    instance.revision = 4
    assert command(instance, "promote", "shop", "3", "--wait") == 0
    assert instance.did == [Promote("shop", 3), "close"]
    assert capsys.readouterr().out.startswith("application shop becomes revision 4\n")
    instance = Scripted()
    assert command(instance, "abort", "shop") == 0
    assert instance.did == [Abort("shop"), "close"]


def test_an_application_is_rolled_back_by_its_name(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Scripted(status(STARTING, revision=4), status(UP, revision=4))
    instance.revision = 4
    assert command(instance, "rollback", "shop", "--wait") == 0
    assert instance.did == [Rollback("shop", 3), "close"]
    said = capsys.readouterr().out
    assert said.startswith("application shop goes back from revision 3 to revision 2, which is revision 4 now\n")
    assert "app: healthy, 1 of 1 running" in said


def test_a_status_that_is_watched_is_shown_whenever_it_changes_until_nothing_runs(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Scripted(status(STARTING), status(FAILED), InstanceEnded("the instance was shut down"))
    assert command(instance, "status", "--watch") == 0
    assert capsys.readouterr().out.splitlines() == [
        "application shop at http://127.0.0.1:8000/shop, revision 1",
        "  proxy: healthy, 1 of 1 running",
        "  app: starting, 0 of 1 running",
        "application shop at http://127.0.0.1:8000/shop, revision 1",
        "  proxy: healthy, 1 of 1 running",
        "  app: failed, 1 of 1 running, 3 restarts (ValueError: no model)",
        "      Traceback",
        "        line",
        "      ValueError: no model",
        "The watch ended: the instance was shut down.",
    ]
    assert instance.did == ["close"]


def test_nothing_is_planned_if_no_cluster_responds(app: Path) -> None:
    options = DeployOptions(str(app), None, HTTPOptions(), PlanOptions(), address="127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        deploy(options, Screen(), Unloaded())


def test_one_application_of_a_file_is_deployed(
    app: Path, command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[DeployOptions] = []
    monkeypatch.setattr(command_line, "deploy_on_cluster", lambda options, *_: taken.append(options))
    monkeypatch.chdir(app.parent)
    (app.parent / "app.yaml").write_text(
        "applications:\n  shop: {target: 'shop:app'}\n  b: {target: 'shop:app', route_prefix: /b}\n"
    )
    assert command(Scripted(), "deploy", "app.yaml", "--application", "b") == 0
    (file,) = [each.file for each in taken]
    assert file is not None
    assert [*file.applications] == ["b"]
    assert command(Scripted(), "deploy", "app.yaml", "--application", "c") == 2
    assert "app.yaml has no application 'c', only shop, b" in capsys.readouterr().err
    assert command(Scripted(), "deploy", "shop.py", "--application", "c") == 2
    assert "the target is one app, not an application file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "named", "timeout_s"),
    [
        ([], {}, 600.0),
        (["--port", "9000"], {"port": 9000}, 600.0),
        (["--ssl-certfile", ""], {"ssl_certfile": None}, 600.0),
        (["--wait", "--wait-timeout-s", "5"], {}, 5.0),
    ],
)
def test_proxies_change_only_the_options_that_are_named_and_a_platforms_port_is_none_of_them(
    said: list[str],
    named: dict[str, object],
    timeout_s: float,
    app: Path,
    command: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[DeployOptions] = []
    monkeypatch.setattr(command_line, "deploy_on_cluster", lambda options, *_: taken.append(options))
    monkeypatch.chdir(app.parent)
    monkeypatch.delenv("APP_TOOLKIT_ADMIN")
    monkeypatch.setenv("PORT", "9001")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert command(Scripted(), "deploy", "shop.py", *said) == 0
    assert [(each.named.model_dump(exclude_unset=True), each.timeout_s, each.address) for each in taken] == [
        (named, timeout_s, "auto")
    ]
    assert [(each.http.port, each.http.forwarded_allow_ips) for each in taken] == [(named.get("port", 9001), "*")]
