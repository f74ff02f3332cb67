"""What a killed process of an instance takes with it: nothing but what ran in it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.operations import Scale
from app_toolkit.control.queries import GetStatus
from app_toolkit.engines.processes.engine import ProcessEngine
from tests.docs.pages import page
from tests.patience import PATIENCE_S, wait_until
from tests.running import Run, runs

APP = """
import os, subprocess, sys, time
from fastapi import APIRouter
from app_toolkit import DeploymentConfig, Toolkit

app, router = Toolkit(), APIRouter()
imported = os.getpid()

@router.get("/pids")
async def pids() -> tuple[int, int]:
    return imported, os.getpid()

@router.get("/child")
async def child() -> int:
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

@router.post("/exit")
async def leave() -> None:
    os._exit(3)

@router.post("/signal/{number}")
async def signal(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)  # until the signal arrives

app.include_router(router, deployment=DeploymentConfig(name="api", num_replicas=2))
"""


class Instance:
    """An instance of `run` with two replicas."""

    def __init__(self, run: Run) -> None:
        self.http = httpx.Client(base_url=run.url(), timeout=PATIENCE_S, trust_env=False)
        self.supervisor = psutil.Process(run.process.pid)
        self.run = run
        self.client = ProcessEngine().connect(f"processes-{run.process.pid}")

    def processes(self, name: str) -> list[psutil.Process]:
        """Return the processes that the system shows under a name."""
        processes = []
        for process in self.supervisor.children():
            with suppress(psutil.NoSuchProcess):  # it ends now
                if process.name() == name:
                    processes.append(process)
        return processes

    def process(self, name: str) -> psutil.Process:
        (process,) = self.processes(name)
        return process

    def pids(self) -> tuple[int, int]:
        """Return the process that has imported the app, and the replica that responds."""
        imported, replica = self.http.get("/pids").raise_for_status().json()
        return imported, replica

    def replicas(self) -> set[int]:
        return {process.pid for process in self.processes("at-replica")}

    def is_healthy(self) -> bool:
        status = self.client.execute(GetStatus())
        return {status.status, *(proxies.status for proxies in status.proxies)} == {"healthy"}

    def admin_url(self) -> str | None:
        return self.client.execute(GetStatus()).admin_url

    def last_error(self, deployment: str) -> str | None:
        (application,) = self.client.execute(GetStatus()).applications
        return next(each.last_error for each in application.deployments if each.name == deployment)

    def wait_until_healthy(self) -> None:
        wait_until(self.is_healthy)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("app")
    (folder / "api.py").write_text(APP)
    with runs() as start:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(RUNTIME_DIR, str(folder))  # commands of other tests must not find this instance
            instance = Instance(start(str(folder / "api.py"), "--engine", "processes", "--admin"))
        yield instance
        instance.http.close()


@pytest.fixture(autouse=True)
def healthy(instance: Instance) -> None:
    instance.wait_until_healthy()


def test_the_page_shows_the_processes_of_an_instance(instance: Instance) -> None:
    (tree,) = page("docs/processes.md").shown("text")
    _, *children = tree.splitlines()
    named = {line.split()[1] for line in children}
    wait_until(lambda: {process.name() for process in instance.supervisor.children()} == named)


def test_replicas_are_forks_of_one_process_that_has_imported_the_app(instance: Instance) -> None:
    template = instance.process("at-template").pid
    served = {instance.pids() for _ in range(50)}
    assert {imported for imported, _ in served} == {template}
    assert {replica for _, replica in served} <= instance.replicas()


def test_a_killed_replica_is_replaced_and_no_request_fails(instance: Instance) -> None:
    before = instance.replicas()
    ended, failures = threading.Event(), []

    def request() -> None:
        while not ended.wait(0.01):
            try:
                instance.pids()
            except httpx.HTTPError as error:
                failures.append(error)

    client = threading.Thread(target=request)
    client.start()
    os.kill(instance.pids()[1], signal.SIGKILL)
    wait_until(lambda: len(instance.replicas() - before) == 1 and instance.is_healthy())
    ended.set()
    client.join()
    assert failures == []


def test_a_killed_template_changes_no_replica_and_another_one_forks_the_next_replica(instance: Instance) -> None:
    before, template = instance.replicas(), instance.process("at-template")
    template.kill()
    template.wait(PATIENCE_S)
    assert instance.replicas() == before
    revision = instance.client.execute(Scale("default/api", 3))
    instance.client.wait_until_serving({"default": revision}, PATIENCE_S)
    assert len(instance.replicas() - before) == 1
    assert instance.process("at-template") != template
    instance.client.execute(Scale("default/api", 2))
    wait_until(lambda: len(instance.replicas()) == len(before))


def test_a_killed_controller_is_replaced_and_keeps_the_replicas_and_its_address(instance: Instance) -> None:
    before, controller = instance.replicas(), instance.process("at-controller")
    wait_until(instance.admin_url)
    admin_url = instance.admin_url()
    controller.kill()
    controller.wait(PATIENCE_S)
    assert instance.pids()[1] in before, "requests need no controller"
    instance.wait_until_healthy()
    assert instance.replicas() == before
    wait_until(lambda: instance.admin_url() == admin_url)
    assert httpx.get(f"{admin_url}/metrics", trust_env=False).status_code == 200


def test_clients_wait_while_a_killed_proxy_is_replaced(instance: Instance) -> None:
    proxy = instance.process("at-proxy")
    proxy.kill()
    proxy.wait(PATIENCE_S)
    with httpx.Client(base_url=instance.http.base_url, timeout=PATIENCE_S, trust_env=False) as client:
        assert client.get("/pids").status_code == 200


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/exit", "the process ended with exit code 3: os._exit was called in api.py:"),
        (f"/signal/{signal.SIGSEGV.value}", "the process ended: SIGSEGV ended it"),
        (f"/signal/{signal.SIGKILL.value}", "the process ended: SIGKILL ended it"),
    ],
)
def test_the_status_says_how_a_process_has_ended(instance: Instance, path: str, why: str) -> None:
    assert instance.http.post(path).status_code == 502
    wait_until(lambda: why in (instance.last_error("default/api") or ""))


def test_what_a_replica_has_started_ends_with_it(instance: Instance) -> None:
    child = psutil.Process(instance.http.get("/child").json())
    (replica,) = [process for process in instance.processes("at-replica") if child in process.children()]
    replica.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_the_end_of_run_leaves_no_process_and_no_file_except_logs(tmp_path: Path) -> None:
    (tmp_path / "api.py").write_text(APP)
    environment = {**os.environ, RUNTIME_DIR: str(tmp_path)}
    with runs() as start:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a command that a script starts with `&`
        try:
            run = start(str(tmp_path / "api.py"), "--engine", "processes", env=environment, forked=False)
        finally:
            signal.signal(signal.SIGINT, before)
        run.url()
        processes = psutil.Process(run.process.pid).children(recursive=True)
        assert run.end(signal.SIGINT) == 0
    _, alive = psutil.wait_procs(processes, PATIENCE_S)
    assert alive == []
    (session,) = tmp_path.glob("app_toolkit-*/processes-*")
    assert [entry.name for entry in session.iterdir()] == ["logs"]


def test_a_killed_supervisor_leaves_no_process(instance: Instance) -> None:
    processes = instance.supervisor.children(recursive=True)
    assert {"at-controller", "at-proxy", "at-replica", "at-template"} <= {process.name() for process in processes}
    instance.supervisor.kill()
    _, alive = psutil.wait_procs(processes, PATIENCE_S)
    assert alive == []
