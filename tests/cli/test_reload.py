"""`run --reload`: changes of files update the replicas, and no request fails."""

import io
import signal
import threading
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from app_toolkit.cli.reload import Reloading
from app_toolkit.cli.screen import Screen
from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.status import InstanceStatus
from tests.patience import PATIENCE_S, wait_until
from tests.running import runs

APP = """
from app_toolkit import Toolkit

app = Toolkit()

@app.get("/")
async def version() -> int:
    return {version}
"""


def test_changes_are_served_and_mistakes_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir()
    file = tmp_path / "changing.py"
    file.write_text(APP.format(version=1))
    ended, answers, failures = threading.Event(), set[int](), list[httpx.HTTPError]()
    with runs() as start:
        run = start(str(file), "--engine", "processes", "--reload")
        url = run.url()

        def request() -> None:
            with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
                while not ended.wait(0.01):
                    try:
                        answers.add(http.get(url).raise_for_status().json())
                    except httpx.HTTPError as error:
                        failures.append(error)

        client = threading.Thread(target=request)
        client.start()
        try:
            run.until_said("Press Ctrl-C")
            file.write_text(APP.format(version="1 +"))
            run.until_said("SyntaxError", "The last version serves on.")
            file.write_text(APP.format(version=2))
            run.until_said("The change serves.")
            assert httpx.get(url, trust_env=False).json() == 2
            wait_until(lambda: failures or 2 in answers)
        finally:
            ended.set()
            client.join()
        assert run.end(signal.SIGTERM) == 0
    assert (failures, answers) == ([], {1, 2})


def test_the_end_of_the_watch_is_reported_once(tmp_path: Path) -> None:
    output, client = io.StringIO(), cast(Any, None)
    status = InstanceStatus(epoch=1, change=1, status="healthy", applications=(), proxies=(), leaving=())

    def has_reported() -> bool:
        reloading.step(client, status)
        return output.getvalue() != ""

    with Reloading([str(tmp_path / "removed")], lambda: None, Screen.on(output)) as reloading:
        wait_until(has_reported)
        reported = output.getvalue()
        assert reported.startswith(f"Changes in {tmp_path / 'removed'} are not seen any more: ")
        reloading.step(client, status)
        assert output.getvalue() == reported
