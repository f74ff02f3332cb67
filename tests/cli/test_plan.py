"""The output of `plan`, and the child process in which `run` plans."""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app_toolkit.cli.plan import planning_of
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import PlanOptions
from app_toolkit.errors import PlanningError
from tests import prepared
from tests.patience import PATIENCE_S, wait_until

from .conftest import Ended

EXAMPLE = Path(__file__).parents[2] / "examples/hello/app.py"
NOISY = """
import os, sys
print("a print")
os.write(1, b"a write\\n")
from fastapi import FastAPI
app = FastAPI()
import atexit, threading, time
atexit.register(print, "a last word")
def tick():
    while True:
        print("a tick")
        time.sleep(0.0002)
threading.Thread(target=tick).start()
"""


Plan = Callable[..., Ended]

in_a_fork = pytest.mark.usefixtures("_planned_in_forks")


def always() -> bool:
    return True


def test_json_is_the_whole_spec(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    done = plan(str(EXAMPLE), "--format", "json", "--name", "greeter", "--route-prefix", "/g", "-n", "3")
    spec = ApplicationSpec(**json.loads(done.stdout))
    assert (done.returncode, spec.name, spec.route_prefix, spec.target) == (0, "greeter", "/g", "hello.app:app")
    assert [i.config.num_replicas for i in spec.deployments] == [3, 2]
    assert caplog.messages == ["deployment 'chat' keeps num_replicas = 2: its code sets that, so 3 was not applied"]


def test_table_is_plain_text_without_a_terminal(plan: Plan) -> None:
    done = plan(str(EXAMPLE))
    assert "deployment=chat  kind=ingress  replicas=2" in done.stdout
    assert "path=/chat/ws  methods=websocket  ingress=chat" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_log_of_streams_that_does_not_suit_several_replicas_is_warned_of(plan: Plan, tmp_path: Path) -> None:
    app = tmp_path / "talk.py"
    app.write_text(
        "from app_toolkit import Toolkit\nfrom app_toolkit.streaming import stream_router\n"
        "app = Toolkit()\napp.include_router(stream_router(), prefix='/streams')\n"
    )
    warned = plan(str(app), "-n", "2", "--stream-log", "memory")
    assert warned.stderr.startswith("The streams of GET /streams/{stream} are in the memory of one replica")
    shared = plan(str(app), "-n", "2")
    assert shared.stderr == ""
    assert shared.stdout.splitlines()[0].endswith(" at /, with the stream log shared")
    assert "\napplication stream-log (app_toolkit.streaming.service:log from " in shared.stdout
    automatic = plan(str(app), "-n", "2", "--format", "yaml")
    assert "    # stream_log: null  # where routes that name no log" in automatic.stdout
    written = plan(str(app), "-n", "2", "--stream-log", "shared", "--format", "yaml")
    assert "    stream_log: shared  # where routes that name no log" in written.stdout
    assert plan(str(app), "-n", "2", "--stream-log", "memory", "--format", "json").stderr == "", (
        "the command that reads it warns"
    )
    refused = plan(str(app), "--stream-log", "redis://:s3cret@cache")
    assert refused.stderr.startswith("Error: --stream-log: a URL in options must not have a password")
    assert "s3cret" not in refused.stderr


def test_a_database_beside_the_code_is_named_unless_the_file_includes_it(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from app_toolkit import Toolkit\napp = Toolkit()\n")
    (tmp_path / "shop.db").touch()
    assert plan(str(tmp_path / "shop.py")).stderr.startswith("Not packed by deploy: shop.db. ")
    assert plan(str(tmp_path / "shop.py"), "--format", "json").stderr == "", "the command that reads it says so"
    (tmp_path / "app.yaml").write_text("applications: {shop: {target: 'shop:app', include: [shop.db]}}")
    included = plan(str(tmp_path / "app.yaml"), "--format", "yaml")
    assert included.stderr == ""
    assert '    include: ["shop.db"]  # files that deploy packs' in included.stdout


def test_the_plan_says_between_which_numbers_a_load_decides(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(
        "from app_toolkit import DeploymentConfig, Toolkit\n"
        "scaled = {'initial_replicas': 2, 'max_replicas': 5}\n"
        "app = Toolkit(deployment=DeploymentConfig(name='app', autoscaling_config=scaled))\n"
    )
    done = plan(str(tmp_path / "scaled.py"))
    assert "deployment=app (default)  kind=ingress  replicas=1 to 5, 2 at first" in done.stdout


def test_the_plan_of_a_class_without_http_names_no_prefix(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(
        "from app_toolkit import Deployment\n"
        "class Writer(Deployment):\n"
        "    async def write(self) -> str: ...\n"
        "writer = Writer.bind()\n"
    )
    done = plan(f"{tmp_path / 'silent.py'}:writer")
    assert done.stdout.splitlines()[0] == f"application default (silent:writer from {tmp_path}), which serves no HTTP"


@in_a_fork
def test_output_of_an_app_does_not_corrupt_the_plan(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    with planning_of(str(tmp_path / "noisy.py"), None, PlanOptions()) as planning:
        output, _ = planning.process.communicate(timeout=PATIENCE_S)
    assert json.loads(output)["target"] == "noisy:app"


def test_a_module_that_changes_the_handlers_of_uvicorn_is_planned(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "styled.py").write_text(
        "import logging\nfrom fastapi import FastAPI\napp = FastAPI()\n"
        "for name in ('uvicorn', 'uvicorn.access'):\n"
        "    logging.getLogger(name).handlers[0].setFormatter(logging.Formatter('%(message)s'))\n"
    )
    assert plan(str(tmp_path / "styled.py")).returncode == 0


def test_child_process_makes_the_same_plan(capfd: pytest.CaptureFixture[str]) -> None:
    options = PlanOptions(name="greeter", route_prefix="/g", num_replicas=4, loop="asyncio")
    with planning_of("hello.app:app", EXAMPLE.parents[1], options) as planning:
        spec = planning.result(always)
    assert spec is not None
    assert (spec.name, spec.route_prefix, spec.app_dir) == ("greeter", "/g", str(EXAMPLE.parents[1]))
    assert spec.loop == "asyncio"
    assert [i.config.num_replicas for i in spec.deployments] == [4, 2]
    assert "deployment 'chat' keeps num_replicas = 2" in capfd.readouterr().err


@in_a_fork
def test_command_ends_with_the_error_and_the_code_of_the_child(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with planning_of("absent:app", None, PlanOptions()) as planning, pytest.raises(SystemExit) as ended:
        planning.result(always)
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("Error: no module 'absent'")


@in_a_fork
def test_error_names_the_exit_code_if_the_child_process_dies(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos._exit(7)\n")
    with (
        planning_of(str(tmp_path / "deadly.py"), None, PlanOptions()) as planning,
        pytest.raises(PlanningError, match=r"deadly.py ended with exit code 7"),
    ):
        planning.result(always)


@in_a_fork
def test_a_plan_that_is_cancelled_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    with planning_of(str(tmp_path / "slow.py"), None, PlanOptions()) as planning:
        assert planning.result(lambda: False) is None
    assert planning.process.returncode is not None


LASTING = """
import os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
if os.fork() == 0:  # holds the pipe of the plan
    os.setsid()
    time.sleep(600)
from fastapi import FastAPI
app = FastAPI()
"""


@in_a_fork
def test_a_plan_does_not_wait_for_what_the_app_has_started(tmp_path: Path) -> None:
    (tmp_path / "lasting.py").write_text(LASTING)
    with planning_of(str(tmp_path / "lasting.py"), None, PlanOptions()) as planning:
        spec = planning.result(always)
    assert spec is not None


@in_a_fork
def test_an_error_of_an_app_with_a_thread_ends_the_plan_with_its_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"
    )
    with planning_of(str(tmp_path / "empty.py"), None, PlanOptions()) as planning, pytest.raises(SystemExit) as ended:
        planning.result(always)
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("Error: the module 'empty'")


@in_a_fork
@pytest.mark.parametrize("code", ["os._exit(7)", "time.sleep(600)"])
def test_a_plan_that_does_not_succeed_leaves_no_process(code: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    (tmp_path / "parent.py").write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(ready)!r} + '.new', 'w') as file: file.write(str(child.pid))\n"
        f"os.rename({str(ready)!r} + '.new', {str(ready)!r})\n{code}\n"
    )
    with planning_of(str(tmp_path / "parent.py"), None, PlanOptions()) as planning, suppress(PlanningError):
        planning.result(lambda: not ready.exists() or code.startswith("os"))
    child = int(ready.read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


BLOCKED = """
import logging, time
while not logging.getLogger("app_toolkit.start").filters[0].said:
    time.sleep(0.01)
from fastapi import FastAPI
app = FastAPI()
"""


class Said(logging.Filter):
    said = False

    def filter(self, record: logging.LogRecord) -> bool:
        self.said = True
        return True


def test_an_import_that_takes_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plan: Plan
) -> None:
    monkeypatch.setattr("app_toolkit.observability.slow_start.SLOW_START_S", 0.01)
    monkeypatch.setattr(logging.getLogger("app_toolkit.start"), "filters", [Said()])
    (tmp_path / "blocked.py").write_text(BLOCKED)
    assert plan(str(tmp_path / "blocked.py")).returncode == 0
    (message,) = caplog.messages
    assert message.startswith("importing 'blocked' has taken 0.01 s so far")


def test_planning_imports_no_ray() -> None:
    code = (
        "import sys, app_toolkit.cli.main as m\n"
        f"try: m.main(['plan', {str(EXAMPLE)!r}])\n"
        "except SystemExit: pass\n"
        "sys.exit('ray' in sys.modules)"
    )
    assert prepared.run(code).returncode == 0


def test_mounts_are_shown_as_such_with_their_paths(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "mounts.py").write_text(
        "from fastapi import FastAPI\n"
        "from starlette.staticfiles import StaticFiles\n"
        "app = FastAPI(openapi_url=None)\n"
        "app.mount('/inner', FastAPI())\n"
        "app.mount('/', StaticFiles(directory='.'))\n"
    )
    lines = plan(str(tmp_path / "mounts.py")).stdout.splitlines()
    assert lines[-2:] == ["  path=/inner  methods=mount  ingress=app", "  path=/  methods=mount  ingress=app"]
