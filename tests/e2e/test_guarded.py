"""An instance whose admin API has a token, operated from a machine without Ray."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.patience import PATIENCE_S
from tests.running import Run, runs

HERE = Path(__file__).parent
TOKEN = "c2VjcmV0-of-the-operator"
BEARER = {"authorization": f"Bearer {TOKEN}"}

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Run]:
    with runs() as start:
        secret = {"APP_TOOLKIT_ADMIN": "true", "APP_TOOLKIT_ADMIN_TOKEN": TOKEN}
        yield start(str(HERE / "guarded.py"), "--admin-port", "0", env=os.environ | secret)


@pytest.fixture(scope="module")
def url(guarded: Run) -> str:
    return guarded.url()


@pytest.fixture(scope="module")
def admin_url(guarded: Run, url: str) -> str:
    found = re.search(r"Dashboard at (http\S+)", "".join(guarded.until_said("Dashboard at")))
    assert found is not None
    return found[1]


def get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, trust_env=False, timeout=PATIENCE_S)


def test_metrics_and_api_need_the_token_which_user_code_does_not_have(guarded: Run, url: str, admin_url: str) -> None:
    for path in ("/metrics", "/api/status", "/api/config"):
        assert get(admin_url + path).status_code == 401
        assert get(admin_url + path, **BEARER).status_code == 200
    assert TOKEN not in get(f"{url}/environment").json()
    processes = psutil.Process(guarded.process.pid).children(recursive=True)
    assert not [each for each in processes if TOKEN in " ".join(each.cmdline())]


def test_command_line_without_ray_deploys_and_operates(admin_url: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "ray.py").write_text("raise ImportError('this machine has no Ray')")
    (tmp_path / "app.yaml").write_text(
        "applications:\n  other:\n    target: other:app\n    route_prefix: /other\n"
        "    deployments: {echo: {user_config: {key: '${KEY}'}, resources: {num_cpus: 0.1}}}\n"
    )
    (tmp_path / "other.py").write_text(
        "from app_toolkit import Deployment\n\nclass Echo(Deployment):\n"
        "    def reconfigure(self, config): self.key = config['key']\n"
        "    def __call__(self, request): return self.key\n\napp = Echo.bind()\n"
    )
    remote = {
        "APP_TOOLKIT_ADMIN_URL": admin_url,
        "APP_TOOLKIT_ADMIN_TOKEN": TOKEN,
        "KEY": "s3cret-key",
        "PYTHONPATH": str(tmp_path / "blocked"),
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "APP_"))} | remote

    def operate(*arguments: str) -> str:
        command = [sys.executable, "-m", "app_toolkit.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert "s3cret" not in done.stdout + done.stderr
        return done.stdout

    operate("deploy", "app.yaml", "--wait")
    assert get(f"{url}/other/").json() == "s3cret-key"
    config = operate("config")
    assert "${KEY}" in config
    assert "s3cret" not in get(f"{admin_url}/api/applications", **BEARER).text
    assert "echo: unchanged" in operate("deploy", "app.yaml", "--wait")
    assert get(f"{url}/other/").json() == "s3cret-key"
    operate("scale", "other/echo", "2", "--wait")
    assert "other/echo: 2 of 2" in operate("status") or "2 of 2 running" in operate("status")
    operate("restart", "other")
    assert "the environment is" in operate("logs", "default", "-n", "100")
    assert "other" in operate("events", "other")
    operate("delete", "other")
    assert get(f"{url}/other/").status_code == 404


def test_token_is_in_no_log_metric_event_or_answer(guarded: Run, admin_url: str) -> None:
    assert get(f"{admin_url}/api/status", authorization=f"Bearer {TOKEN[:-1]}").status_code == 401
    shown = [get(admin_url + path, **BEARER).text for path in ("/metrics", "/api/status", "/api/events", "/api/config")]
    logs = httpx.post(f"{admin_url}/api/logs", json={"query": {}}, headers=BEARER, trust_env=False).text
    assert guarded.end(signal.SIGINT) == 0
    assert TOKEN not in "".join((*shown, logs, guarded.said))
