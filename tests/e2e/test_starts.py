"""A deployment whose replicas cannot start refuses requests at once, and recovers by itself."""

import shutil
import time
from pathlib import Path

import pytest

from app_toolkit import DeploymentConfig
from tests.cluster import Cluster
from tests.e2e import starts
from tests.patience import PATIENCE_S

LONGEST_WAIT_S = DeploymentConfig(name="writer").max_queue_wait_s


@pytest.mark.slow
def test_requests_are_refused_with_a_reason_if_no_replica_starts(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copy(starts.__file__, tmp_path / "starts_here.py")
    stopper = tmp_path / "stopper"
    stopper.touch()
    served = cluster.deploy("starts_here:app", tmp_path)
    try:
        with served.client() as client:
            served.wait(lambda now: any(each["restarts"] for each in now["deployments"]))
            began = time.monotonic()
            refused = client.get("/write")
            assert time.monotonic() - began < LONGEST_WAIT_S / 2, "it waited for no replica"
            assert refused.status_code == 503
            assert refused.json()["error"] == "cannot_start"
            detail = refused.json()["detail"]
            assert detail.startswith(
                f"no replica of {served.spec.name}/writer runs: each one that is started fails with"
            )
            assert "RuntimeError" in detail
            assert "hunter2" not in refused.text
            assert "hunter2" in served.ingress("writer")["last_error"], "the operator sees it"
            stopper.unlink()
            deadline = time.monotonic() + PATIENCE_S
            while (got := client.get("/write")).status_code == 503:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert got.json() == "written"
    finally:
        served.delete()
