"""A replica that has served enough requests is replaced, and no request is lost."""

from pathlib import Path

import httpx
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.queries import GetEvents
from app_toolkit.engines.processes.engine import ProcessEngine
from tests.patience import PATIENCE_S, wait_until
from tests.running import runs

APP = """
import os
from app_toolkit import DeploymentConfig, RecyclingConfig, Toolkit

limits = RecyclingConfig(max_requests=5, jitter=0)
app = Toolkit(deployment=DeploymentConfig(name="api", recycling=limits, health_check_period_s=0.5))

@app.get("/pid")
async def pid() -> int:
    return os.getpid()
"""

SOONER = """
from app_toolkit.control import recycling
recycling.LEAST_S = 0.1
"""
"""Python runs this first, so the controller replaces a replica before it has served for ten seconds."""


def test_a_replica_that_has_received_enough_requests_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "api.py").write_text(APP)
    (tmp_path / "sitecustomize.py").write_text(SOONER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))  # commands of other tests must not find this instance
    with runs() as start:
        run = start(str(tmp_path / "api.py"), "--engine", "processes")
        with httpx.Client(base_url=run.url(), timeout=PATIENCE_S, trust_env=False) as http:

            def pid() -> int:
                replica: int = http.get("/pid").raise_for_status().json()
                return replica

            first = pid()
            wait_until(lambda: pid() != first)
        with ProcessEngine().connect(f"processes-{run.process.pid}") as client:
            events = client.execute(GetEvents("default/api", None)).events
    assert next(event.cause for event in events if event.name == "Recycle").endswith("and max_requests is 5")
