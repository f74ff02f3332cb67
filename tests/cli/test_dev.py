"""`dev`: a real server in one process, and in one that is replaced when a file changes."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app_toolkit.cli import main as command_line
from tests import prepared
from tests.patience import PATIENCE_S
from tests.prepared import COMMAND, Program

APP = """
import os
from app_toolkit import Toolkit
app = Toolkit()

@app.get("/")
def read() -> dict[str, str | None]:
    return {"said": "first", "environment": os.environ.get("FASTAPI_ENV")}
"""


URL = re.compile(r"http://127\.0\.0\.1:\d+\b")


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts `app-toolkit dev` in the folder of the app, gives its URL, and ends it as Ctrl-C would."""
    started: list[Program] = []
    (tmp_path / "main.py").write_text(APP)

    def dev(*arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "FASTAPI_ENV"}
        said = tmp_path / "said"
        with said.open("w") as output:
            command = [COMMAND, "dev", "--port", "0", *arguments]
            started.append(Program(*command, cwd=tmp_path, env=environment, stderr=output.fileno()))
        eventually(lambda: URL.search(said.read_text()) is not None)
        return URL.findall(said.read_text())[0]

    yield dev
    for program in started:
        with program:
            program.send_signal(signal.SIGINT)
            program.wait()


def answers(url: str) -> dict[str, str] | None:
    try:
        answer: dict[str, str] = httpx.get(url, trust_env=False, timeout=PATIENCE_S).json()
        return answer
    except httpx.TransportError:
        return None


def test_it_serves_the_app_it_finds_in_development_and_logs_in_the_chosen_format(
    dev: Callable[..., str], tmp_path: Path
) -> None:
    url = dev("--no-reload", "--log-format", "json")
    eventually(lambda: answers(url) == {"said": "first", "environment": "development"})
    records = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert "Application startup complete." in [record["message"] for record in records]


IN_A_LOOP = """
import asyncio
@app.get("/loop")
async def loop() -> dict[str, str]: return {"loop": str(asyncio.get_running_loop())}
"""


def test_the_event_loop_of_asyncio_can_be_chosen(dev: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(APP + IN_A_LOOP)
    (tmp_path / "app.yaml").write_text("applications: {shop: {target: 'main:app', loop: asyncio}}")
    for arguments in (["--loop", "asyncio"], ["app.yaml"]):
        url = dev("--no-reload", *arguments)
        eventually(lambda: answers(f"{url}/loop") is not None)  # noqa: B023
        assert (answers(f"{url}/loop") or {})["loop"].startswith("<_UnixSelectorEventLoop")


CONFIGURED = """
applications:
  shop:
    target: main:app
    logging_config:
      version: 1
      formatters: {short: {format: 'shop says %(message)s'}}
      handlers: {stderr: {class: logging.StreamHandler, formatter: short}}
      loggers: {shop: {level: INFO, handlers: [stderr]}}
"""


def test_the_logging_configuration_of_an_application_is_applied(dev: Callable[..., str], tmp_path: Path) -> None:
    log = 'import logging\n@app.get("/log")\ndef log() -> None:\n    logging.getLogger("shop").info("sold")\n'
    (tmp_path / "main.py").write_text(APP + log)
    (tmp_path / "app.yaml").write_text(CONFIGURED)
    url = dev("app.yaml", "--no-reload")
    eventually(lambda: answers(f"{url}/log") is None)
    eventually(lambda: "shop says sold" in (tmp_path / "said").read_text().splitlines())


@pytest.mark.parametrize("target", ["main.py", "app.yaml"])
def test_the_app_finds_the_folder_for_its_data_when_it_is_imported(
    dev: Callable[..., str], tmp_path: Path, target: str
) -> None:
    code = 'DATA = os.environ["APP_TOOLKIT_DATA"]\n@app.get("/data")\ndef data() -> str:\n    return DATA\n'
    (tmp_path / "main.py").write_text(APP + code)
    (tmp_path / "app.yaml").write_text("applications: {shop: {target: 'main:app'}}")
    url = dev(target, "--no-reload")
    eventually(lambda: answers(url) is not None)
    folder = Path(str(answers(f"{url}/data")))
    assert folder.is_dir()
    assert folder.name.startswith(f"{tmp_path.name}-")


@pytest.mark.parametrize(
    ("shop", "option"),
    [(CONFIGURED, "logging_config"), (CONFIGURED.partition("logging")[0] + "loop: asyncio\n", "loop")],
)
def test_applications_with_different_options_of_the_process_are_refused(tmp_path: Path, shop: str, option: str) -> None:
    (tmp_path / "main.py").write_text(APP)
    (tmp_path / "app.yaml").write_text(f"{shop}  other: {{target: 'main:app', route_prefix: /other}}\n")
    done = prepared.run(COMMAND, "dev", "--port", "0", "--no-reload", "app.yaml", cwd=tmp_path)
    assert done.returncode == 2
    said = f"its applications have different values of {option}, and `dev` serves them in one process"
    assert said in done.stderr


SHARED = """
applications:
  shop: {{target: 'main:app', deployments: {{app: {{max_ongoing_requests: 3}}}}}}
  other: {{target: 'main:app', route_prefix: /other, deployments: {{app: {{{options}}}}}}}
"""


def test_one_app_of_two_applications_must_have_the_same_options_in_both(
    dev: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "app.yaml").write_text(SHARED.format(options="num_replicas: 1"))
    done = prepared.run(COMMAND, "dev", "--port", "0", "--no-reload", "app.yaml", cwd=tmp_path)
    assert done.returncode == 2
    said = "its applications 'shop' and 'other' give the same deployment 'app' different options"
    assert said in done.stderr
    (tmp_path / "app.yaml").write_text(SHARED.format(options="max_ongoing_requests: 3"))
    url = dev("app.yaml", "--no-reload")
    eventually(lambda: answers(f"{url}/other/") is not None)


@pytest.mark.slow
def test_a_changed_file_replaces_the_process(dev: Callable[..., str], tmp_path: Path) -> None:
    url = dev("main:app")
    eventually(lambda: answers(url) is not None)

    def says_second() -> bool:
        # Written again each time: a watcher that is only just starting misses what happens before it watches.
        (tmp_path / "main.py").write_text(APP.replace("first", "second"))
        return (answers(url) or {}).get("said") == "second"

    eventually(says_second)


@pytest.mark.slow
def test_a_reload_and_the_end_leave_nothing_that_the_app_has_started(dev: Callable[..., str], tmp_path: Path) -> None:
    started = (
        "import subprocess, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        '@app.get("/child")\ndef pid() -> dict[str, int]: return {"pid": child.pid}\n'
    )
    (tmp_path / "main.py").write_text(APP + started)
    url = dev("main:app")

    def child() -> int:
        eventually(lambda: answers(f"{url}/child") is not None)
        return int((answers(f"{url}/child") or {})["pid"])

    first = child()
    (tmp_path / "main.py").write_text(f"{APP}{started}\n")
    eventually(lambda: not psutil.pid_exists(first))
    assert child() != first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_can_be_interrupted(number: int, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import pathlib, time\npathlib.Path('imports').touch()\ntime.sleep(600)\n")
    with Program(COMMAND, "dev", "--port", "0", "--no-reload", cwd=tmp_path) as program:
        eventually(lambda: (tmp_path / "imports").exists())
        program.send_signal(number)
        assert program.wait() in (0, -signal.SIGTERM)


def test_a_port_that_is_taken_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            command_line.main(["dev", "--port", port])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"Error: port {port} on 127.0.0.1 is in use\n"
