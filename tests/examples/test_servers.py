"""The example under the servers that people start it with while they develop: none of them knows of us."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SERVERS = {
    "uvicorn": ["uvicorn", "hello.app:app", "--app-dir", "examples"],
    "fastapi dev": ["fastapi", "dev", "examples/hello/app.py", "--no-reload"],
}


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_the_example_runs_under_servers_that_know_nothing_of_it(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", *SERVERS[server], "--port", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        answer = patiently(f"http://127.0.0.1:{port}/hello/Ada")
        assert answer.json()["text"] == "Hello, Ada!"
        assert answer.headers["x-request-id"]
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def patiently(url: str) -> httpx.Response:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return httpx.get(url, trust_env=False, timeout=PATIENCE_S)
        except httpx.ConnectError:
            assert time.monotonic() < deadline, f"{url} never answered"
            time.sleep(0.05)
