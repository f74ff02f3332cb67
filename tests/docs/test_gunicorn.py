"""The page about gunicorn moves a project that runs under both."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.patience import wait_until
from tests.running import Run

from .pages import page

config = pytest.importorskip("gunicorn.config", reason="gunicorn is not installed")

PAGE = page("docs/coming-from.md").part("gunicorn")
PATHS = ["/prices/tea", "/prices/milk", "/client", "/none", "/openapi.json"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PAGE.code)
    (tmp_path / "gunicorn.conf.py").write_text(PAGE.shown("py")[0])
    (tmp_path / "app.yaml").write_text(PAGE.shown("yaml")[0])
    return tmp_path


@pytest.fixture
def under_gunicorn(project: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "shop:app", "--bind", address],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"http://{address}/worker").is_success
        return False

    try:
        wait_until(answers)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def test_the_project_of_the_page_answers_as_under_gunicorn(project: Path, under_gunicorn: str) -> None:
    run = Run(str(project / "app.yaml"), "--engine", "processes")
    try:
        url = run.url()
        for path in PATHS:
            expected, response = httpx.get(under_gunicorn + path), httpx.get(url + path)
            assert (response.status_code, response.text) == (expected.status_code, expected.text)

        def workers() -> bool:
            return len({httpx.get(f"{url}/worker").json() for _ in range(20)}) == 2

        wait_until(workers)
        assert run.end(signal.SIGTERM) == 0
    finally:
        run.kill()
