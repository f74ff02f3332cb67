"""Secrets in the environment, in arguments, in a file and in exceptions appear nowhere."""

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app_toolkit.config.secrets import MASK
from benchmarks.servers import free_port
from tests.patience import PATIENCE_S, wait_until
from tests.running import runs
from tests.streaming.redis_server import RedisServer

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SECRETS = {
    "VAULT_PASSWORD": "argument-and-environment-1",
    "HEADER": "referenced-in-user-config-2",
    "CODE": "referenced-in-the-variables-3",
    "APP_TOOLKIT_ADMIN_TOKEN": "token-of-the-operator-4",
}
PLAIN = {"api_key": "plain-text-in-the-file-5", "URL": "plain-text-in-a-url-6", "argument": "argument-in-the-code-7"}
FILE = f"""
applications:
  vault:
    target: tests.e2e.vault:app
    deployments:
      store:
        health_check_period_s: 0.2
        health_check_failure_threshold: 1
        user_config: {{header: 'Bearer ${{HEADER}}', api_key: {PLAIN["api_key"]}}}
        resources:
          ray:
            runtime_env: {{env_vars: {{STORE_CODE: '${{CODE}}', STORE_URL: 'redis://me:{PLAIN["URL"]}@host'}}}}
"""


@pytest.fixture
def ray() -> Iterator[str]:
    # The path of a socket below it has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        yield folder


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the folder in which a Redis keeps everything that Ray's control store has written to it."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, port := free_port())
    server.start()
    monkeypatch.setenv("RAY_REDIS_ADDRESS", f"127.0.0.1:{port}")
    yield folder
    server.end()


def test_secrets_are_in_no_status_metric_log_event_page_stored_value_and_command_line(
    tmp_path: Path, ray: str, stored: Path
) -> None:
    (tmp_path / "app.yaml").write_text(f"{FILE}    app_dir: {Path(__file__).parents[2]}\n")
    sick = tmp_path / "sick"
    env = {**os.environ, **SECRETS, "VAULT_SICK": str(sick), "APP_TOOLKIT_ADMIN": "true", "RAY_TMPDIR": ray}
    with runs() as start:
        run = start(str(tmp_path / "app.yaml"), "--admin-port", "0", env=env)
        url = run.url()
        found = re.search(r"Dashboard at (http\S+)", "".join(run.until_said("Dashboard at")))
        assert found is not None
        headers = {"authorization": f"Bearer {SECRETS['APP_TOOLKIT_ADMIN_TOKEN']}"}
        with httpx.Client(base_url=found[1], headers=headers, trust_env=False, timeout=PATIENCE_S) as admin:
            assert httpx.get(f"{url}/read", trust_env=False, timeout=PATIENCE_S).status_code == 500
            sick.touch()
            # First the health check fails, and then the constructor of the next replica.
            wait_until(lambda: "the constructor has" in admin.get("/api/status").text)
            paths = ("/metrics", "/api/status", "/api/events?last=500", "/api/get-applications", "/api/config")
            shown = [admin.get(path).text for path in paths]
            configuration = json.loads(shown[-1])
            store = configuration["applications"]["vault"]["deployments"]["store"]
            assert store["user_config"] == {"header": "Bearer ${HEADER}", "api_key": MASK}
            shown.append(admin.get("/api/slow").text)
            shown.append(admin.post("/api/logs", json={"query": {}, "last": 500}).text)
            with admin.stream("GET", "/api/live") as live:
                shown.append(next(live.iter_text()))
        processes = [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]
        shown += [" ".join(each.cmdline()) for each in processes]
        shown += [path.read_text(errors="replace") for path in Path(ray).glob("ray*/ray/session_2*/logs/**/*.*")]
        run.end(signal.SIGINT)
    shown.append(run.said)
    kept = b"".join(path.read_bytes() for path in stored.rglob("*") if path.is_file()).decode(errors="replace")
    assert "applications/vault@" in kept
    shown.append(kept)
    everything = "\n".join(shown)
    for said in ("it is ill with", "the constructor has", "it reads with", "it prints", "it cannot read with"):
        assert re.search(f"{said}.*{re.escape(MASK)}", everything), said
    assert {name for name, secret in {**SECRETS, **PLAIN}.items() if secret in everything} == set()
