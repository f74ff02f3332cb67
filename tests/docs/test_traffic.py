"""The page about traffic shows how requests get faults."""

from pathlib import Path

from fastapi import FastAPI
from starlette.testclient import TestClient

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.config.files import read_file
from app_toolkit.declare.planning import plan
from app_toolkit.engines.one_process.engine import in_one_process

from .pages import page


def test_a_request_may_name_its_own_faults_as_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(page("docs/traffic.md").shown("yaml")[0])
    overrides = read_file(tmp_path / "app.yaml").application("shop").deployments
    app = Toolkit(deployment=DeploymentConfig(name="web"))
    config = plan(app, target="shop:app", app_dir=".", name="shop", overrides=overrides).deployment("web").config
    client = TestClient(in_one_process(FastAPI(), config))
    aborted = client.get("/", headers={"X-Fault-Delay-Ms": "0", "X-Fault-Abort-Status": "429"})
    assert (aborted.status_code, aborted.json()["error"]) == (429, "fault_injected")
