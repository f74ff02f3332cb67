"""`app-toolkit run` as its user meets it: one command, and nothing left behind however it ends."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import psutil
import pytest
from anyio.from_thread import start_blocking_portal
from websockets import ConnectionClosed
from websockets.asyncio.client import connect

from tests.cluster import Served
from tests.patience import PATIENCE_S
from tests.proxy.certificates import certificate

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
VICTIM = ROOT / "benchmarks/chaos/victim.py"


class Run:
    """One `run` in a process of its own, and the Ray that it started."""

    def __init__(self, target: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "app_toolkit.cli", "run", target, "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said = ""
        self._family: set[psutil.Process] = set()

    def url(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"Serving .* at (http\S+)", line):
                self.remember()
                return found[1]
        raise AssertionError(f"it never served: {self.said}")

    def remember(self) -> None:
        self._family = set(psutil.Process(self.process.pid).children(recursive=True))

    def left(self) -> list[str]:
        """What is still there of the processes that it had."""
        return [
            f"{process.pid} {process.name()}"
            for process in self._family
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        self.said += output
        return self.process.returncode


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(target: str, *options: str) -> Run:
        started.append(Run(target, *options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def test_it_serves_until_it_is_asked_to_stop_finishes_what_runs_and_leaves_nothing(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    own = certificate(tmp_path)
    victim = run("benchmarks/chaos/victim.py", "--ssl-certfile", own.certfile, "--ssl-keyfile", own.keyfile)
    url = victim.url()
    assert url.startswith("https://")
    with (
        # Not the client with threads: two of them in one TLS connection now and then wait for each other.
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            connect(url.replace("http", "ws") + "/other/echo", proxy=None, ssl=own.believed)
        ) as socket,
        httpx.Client(base_url=url, trust_env=False, verify=own.believed, timeout=30) as client,
        client.stream("GET", "/numbers/150") as answer,
    ):
        assert client.get("/-/healthz").json() == {"status": "ok"}
        assert client.get("/docs").status_code == 200
        lines = answer.iter_lines()
        assert next(lines) == "0"
        victim.process.send_signal(signal.SIGTERM)
        assert list(lines) == [str(number) for number in range(1, 150)]
        with pytest.raises(ConnectionClosed) as closed:
            portal.call(socket.recv)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    output, _ = victim.process.communicate(timeout=PATIENCE_S)
    assert victim.process.returncode == 0, victim.said + output
    assert "Traceback" not in victim.said + output
    wait_until(lambda: not victim.left(), 5)


def test_nothing_is_left_when_it_is_killed(run: Callable[..., Run]) -> None:
    hello = run("examples/hello/app.py")
    assert httpx.get(f"{hello.url()}/-/healthz", trust_env=False, timeout=PATIENCE_S).json() == {"status": "ok"}
    os.kill(hello.process.pid, signal.SIGKILL)
    wait_until(lambda: not hello.left(), 40)


SAYS = """
import logging
from fastapi import FastAPI

app = FastAPI()

@app.get("/sell")
def sell() -> None:
    logging.getLogger("shop").info("sold")
    print("printed")
"""


def test_requests_and_what_the_app_logs_and_prints_appear_in_the_terminal(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    says = run(str(tmp_path / "says.py"), "--access-log", "-")
    answer = httpx.get(f"{says.url()}/sell", headers={"x-request-id": "one"}, trust_env=False, timeout=PATIENCE_S)
    assert answer.status_code == 200
    assert says.process.stdout is not None
    seen: list[str] = []
    while sum(any(word in line for word in ("sold", "printed", '"path":"/sell"')) for line in seen) < 3:
        seen.append(next(says.process.stdout))
    assert says.end(signal.SIGTERM) == 0
    lines = [line.rstrip() for line in seen]
    assert "default.app-1-1 | printed" in lines
    assert any(re.fullmatch(r"default\.app-1-1 \| .* INFO shop \[one\]: sold", line) for line in lines)
    (access,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert (access["path"], access["request_id"], access["status"]) == ("/sell", "one", 200)
    said = says.said + "".join(seen)
    assert "\x1b" not in said
    assert "(raylet)" not in said


def test_a_signal_for_the_whole_process_group_drains_as_one_for_the_command_does(run: Callable[..., Run]) -> None:
    victim = run("benchmarks/chaos/victim.py")
    with (
        httpx.Client(base_url=victim.url(), trust_env=False, timeout=30) as client,
        client.stream("GET", "/numbers/150") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "0"
        os.killpg(victim.process.pid, signal.SIGTERM)
        assert list(lines) == [str(number) for number in range(1, 150)]
    output, _ = victim.process.communicate(timeout=PATIENCE_S)
    assert victim.process.returncode == 0, victim.said + output
    assert "Traceback" not in victim.said + output
    wait_until(lambda: not victim.left(), 5)


def test_a_terminal_that_is_closed_drains_and_leaves_nothing() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "app_toolkit.cli", "run", str(VICTIM), "--port", "0"])
    said = b""
    while b"Ctrl-C drains" not in said:
        said += os.read(terminal, 4096)
    found = re.search(rb"Serving .* at (http\S+)", said)
    assert found is not None
    command = psutil.Process(pid)
    family = command.children(recursive=True)
    with (
        httpx.Client(base_url=found[1].decode(), trust_env=False, timeout=30) as client,
        client.stream("GET", "/numbers/150") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "0"
        os.close(terminal)
        assert list(lines) == [str(number) for number in range(1, 150)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not psutil.wait_procs(family, 5)[1]


def refused(*arguments: str) -> str:
    """What a run that cannot be says; it ends with 2 and leaves no process of its session."""
    done = subprocess.run(
        [sys.executable, "-m", "app_toolkit.cli", "run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def test_a_startup_that_raises_is_told_with_the_users_traceback(victim: Served) -> None:
    address = victim.cluster.address()  # that it fails has nothing to do with whose Ray it is
    said = refused("tests/e2e/broken.py", "--port", "0", "--address", address, "--route-prefix", "/broken")
    assert "Error: 'app' did not come up: RuntimeError: the model file is missing" in said
    assert 'broken.py", line 11, in lifespan' in said


def test_a_replica_that_cannot_be_placed_is_told_with_what_it_asks_for(victim: Served) -> None:
    address = victim.cluster.address()
    said = refused("tests/e2e/greedy.py", "--port", "0", "--address", address, "--route-prefix", "/greedy")
    assert "asks for 0.1 CPU, 3 GPU" in said


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in refused("examples/hello/app.py", "--port", str(port))


def test_a_file_without_an_app_is_told() -> None:
    assert "holds no FastAPI app" in refused("tests/e2e/test_run.py")


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)


KEYED = """
import os
from typing import Annotated
from fastapi import Depends
from app_toolkit import Deployment, Toolkit

class Door(Deployment):
    async def reconfigure(self, config): self.key = config["key"]
    async def opens(self, key: str) -> bool: return key == self.key

app = Toolkit(title=os.path.basename(os.getcwd()))

@app.get("/opens/{key}")
async def opens(key: str, door: Annotated[Door, Depends(Door.bind())]) -> list[str | bool]:
    return [app.title, await door.opens(key)]
"""


def test_all_applications_of_a_file_are_served_with_their_secrets_and_none_is_told(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applications = []
    for name in ("front", "back"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keyed.py").write_text(KEYED)
        monkeypatch.setenv(f"KEY_OF_{name.upper()}", f"s3cret-{name}")
        applications.append(
            f"  {name}: {{target: 'keyed:app', route_prefix: /{name}, app_dir: {name}, working_dir: {name},\n"
            f"    deployments: {{door: {{user_config: {{key: '${{KEY_OF_{name.upper()}}}'}}}}}}}}\n"
        )
    (tmp_path / "app.yaml").write_text("applications:\n" + "".join(applications))
    both = run(str(tmp_path / "app.yaml"))
    url = both.url().removesuffix("/front")
    assert both.url() == f"{url}/back"
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        assert client.get("/front/opens/s3cret-front").json() == ["front", True]
        assert client.get("/back/opens/s3cret-back").json() == ["back", True]
        assert client.get("/back/opens/s3cret-front").json() == ["back", False]
    assert both.end(signal.SIGINT) == 0
    assert "s3cret" not in both.said
    wait_until(lambda: not both.left(), 5)


CHANGING = """
import os
from pathlib import Path
from fastapi import FastAPI

app = FastAPI()

@app.get("/said")
def said() -> list[str]:
    return ["first", str(Path(__file__)), os.getcwd()]

@app.get("/pid")
def pid() -> int:
    return os.getpid()
"""


def test_a_replica_that_is_started_after_an_edit_serves_the_files_of_the_start(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    file = tmp_path / "changing.py"
    file.write_text(CHANGING)
    changing = run(str(file))
    with httpx.Client(base_url=changing.url(), trust_env=False, timeout=PATIENCE_S) as client:
        before, pid = client.get("/said").json(), client.get("/pid").json()
        assert before == ["first", str(file), str(ROOT)]
        file.write_text("raise ValueError('half an edit')\n" + CHANGING.replace("first", "second"))
        os.kill(pid, signal.SIGKILL)

        def replaced() -> bool:
            answer = client.get("/pid")
            return bool(answer.status_code == 200 and answer.json() != pid)

        wait_until(replaced)
        assert client.get("/said").json() == before
    assert changing.end(signal.SIGINT) == 0
