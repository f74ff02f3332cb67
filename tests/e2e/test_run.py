"""`app-toolkit run` as its user meets it: one command, and nothing left behind however it ends.

A Ray takes seconds to start, so these tests share as few runs as they can. Each run ends in another way.
"""

import json
import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from anyio.from_thread import start_blocking_portal
from websockets import ConnectionClosed
from websockets.asyncio.client import connect

from app_toolkit.observability.log_query import LoggedRecord
from tests.cluster import Cluster
from tests.e2e.targets import KINDS, file
from tests.edge.certificates import certificate
from tests.groups import ROOT
from tests.patience import PATIENCE_S, wait_until
from tests.running import Run, Start, runs

HERE = Path(__file__).parent
SPREAD = HERE / "spread.py"

LEFT_S = 5.0
"""Seconds until nothing of a run is left that ended by itself."""


@pytest.mark.slow
def test_signal_to_the_process_group_drains_tls_requests_and_leaves_nothing(run: Start, tmp_path: Path) -> None:
    own = certificate(tmp_path)
    tls = ("--ssl-certfile", own.certfile, "--ssl-keyfile", own.keyfile)
    served = run(str(SPREAD), *tls, "--log-file", "-", "--log-format", "json")
    url = served.url()
    assert url.startswith("https://")
    with (
        # Not the client with threads: two of them in one TLS connection now and then wait for each other.
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            connect(url.replace("http", "ws") + "/echo", proxy=None, ssl=own.believed)
        ) as socket,
        httpx.Client(base_url=url, trust_env=False, verify=own.believed, timeout=PATIENCE_S) as client,
        client.stream("GET", "/numbers/150") as answer,
    ):
        assert client.get("/-/healthz").json() == {"status": "success"}
        assert client.get("/docs").status_code == 200
        lines = answer.iter_lines()
        assert next(lines) == "0"
        os.killpg(served.process.pid, signal.SIGTERM)
        assert list(lines) == [str(number) for number in range(1, 150)]
        with pytest.raises(ConnectionClosed) as closed:
            portal.call(socket.recv)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    assert served.wait() == 0, served.said
    assert "Traceback" not in served.said
    records = [record for line in served.said.splitlines() if (record := LoggedRecord.parse(line)) is not None]
    assert [record.message for record in records if record.logger == "spread"] == ["150 numbers"]
    wait_until(lambda: not served.left(), LEFT_S)


@pytest.mark.slow
@pytest.mark.ray
def test_a_terminal_that_is_closed_drains_and_leaves_nothing() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "app_toolkit.cli", "run", str(SPREAD), "--port", "0"])
    command = psutil.Process(pid)
    try:
        said = b""
        while b"Press Ctrl-C" not in said:
            said += os.read(terminal, 4096)
        found = re.search(rb"Serving .* at (http\S+)", said)
        assert found is not None
        family = command.children(recursive=True)
        with (
            httpx.Client(base_url=found[1].decode(), trust_env=False, timeout=PATIENCE_S) as client,
            client.stream("GET", "/numbers/150") as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines) == "0"
            os.close(terminal)
            assert list(lines) == [str(number) for number in range(1, 150)]
        assert command.wait(PATIENCE_S) == 0
        assert not psutil.wait_procs(family, LEFT_S)[1]
    finally:
        if command.is_running():
            command.kill()
            command.wait()


KEYED = """
import os
from typing import Annotated
from fastapi import Depends
from app_toolkit import Deployment, Toolkit

class Door(Deployment, resources={"num_cpus": 0.1}):  # beside those of the session's cluster
    async def reconfigure(self, config): self.key = config["key"]
    async def opens(self, key: str) -> bool: return key == self.key

app = Toolkit(title=os.path.basename(os.getcwd()))

@app.get("/opens/{key}")
async def opens(key: str, door: Annotated[Door, Depends(Door.bind())]) -> list[str | bool]:
    return [app.title, await door.opens(key)]
"""


@pytest.mark.slow
@pytest.mark.timeout(300)  # a replica or more of each of eight applications
def test_all_kinds_of_applications_of_a_file_are_served_and_no_secret_is_shown(
    cluster: Cluster, run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applications = file(str(HERE))
    for name in ("front", "back"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keyed.py").write_text(KEYED)
        monkeypatch.setenv(f"KEY_OF_{name.upper()}", f"s3cret-{name}")
        applications += (
            f"  {name}: {{target: 'keyed:app', route_prefix: /{name}, app_dir: {name}, working_dir: {name},\n"
            f"    deployments: {{door: {{user_config: {{key: '${{KEY_OF_{name.upper()}}}'}}}}}}}}\n"
        )
    (tmp_path / "app.yaml").write_text(applications)
    every = run(str(tmp_path / "app.yaml"), "--address", cluster.address())
    prefixes = [*KINDS, "front", "back"]
    urls = [every.url() for _ in prefixes]
    url = urls[0].removesuffix(f"/{prefixes[0]}")
    assert urls == [f"{url}/{prefix}" for prefix in prefixes]
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        for name, kind in KINDS.items():
            assert client.get(f"/{name}/kind").json() == kind
        assert client.get("/front/opens/s3cret-front").json() == ["front", True]
        assert client.get("/back/opens/s3cret-back").json() == ["back", True]
        assert client.get("/back/opens/s3cret-front").json() == ["back", False]
    assert every.end(signal.SIGINT) == 0
    assert "s3cret" not in every.said


SHOP = """
import logging
import os
from pathlib import Path
from fastapi import FastAPI

app = FastAPI()

@app.get("/sell")
def sell() -> None:
    logging.getLogger("shop").info("sold")
    print("printed")

@app.get("/said")
def said() -> list[str]:
    return ["first", str(Path(__file__)), os.getcwd()]

@app.get("/pid")
def pid() -> int:
    return os.getpid()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder of the user who runs the shop. It is empty at first."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shop(home: Path) -> Iterator[Run]:
    """One run for the tests below, which are all marked `ray`. The last one of them kills it."""
    (home / "shop.py").write_text(SHOP)
    with runs() as start:
        yield start(str(home / "shop.py"), "--access-log", "-", env={**os.environ, "HOME": str(home)})


@pytest.fixture(scope="module")
def url(shop: Run) -> str:
    return shop.url()


@pytest.mark.slow
@pytest.mark.ray
def test_requests_and_output_of_the_app_appear_in_the_terminal(shop: Run, url: str) -> None:
    answer = httpx.get(f"{url}/sell", headers={"x-request-id": "one"}, trust_env=False, timeout=PATIENCE_S)
    assert answer.status_code == 200
    lines = shop.until_said("sold", "printed", '"path":"/sell"')
    assert "default.app-1-1 | printed" in lines
    assert any(re.fullmatch(r"default\.app-1-1 \| .* INFO shop \[one\]: sold", line) for line in lines)
    (access,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert (access["path"], access["request_id"], access["status"]) == ("/sell", "one", 200)
    assert "\x1b" not in shop.said
    assert "(raylet)" not in shop.said


@pytest.mark.ray
def test_a_replica_that_is_started_after_an_edit_serves_the_files_of_the_start(home: Path, url: str) -> None:
    source = home / "shop.py"
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        before, pid = client.get("/said").json(), client.get("/pid").json()
        assert before == ["first", str(source), str(ROOT)]
        source.write_text("raise ValueError('half an edit')\n" + SHOP.replace("first", "second"))
        os.kill(pid, signal.SIGKILL)

        def replaced() -> bool:
            answer = client.get("/pid")
            return bool(answer.status_code == 200 and answer.json() != pid)

        wait_until(replaced)
        assert client.get("/said").json() == before


@pytest.mark.ray
@pytest.mark.usefixtures("url")
def test_nothing_is_left_when_it_is_killed(shop: Run) -> None:
    os.kill(shop.process.pid, signal.SIGKILL)
    wait_until(lambda: not shop.left(), 40)
