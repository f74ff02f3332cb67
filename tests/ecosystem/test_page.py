"""What the page on stateful packages recommends, as far as the tests of the packages themselves do not have it."""

import re
import time
from pathlib import Path

from benchmarks.conformance.ecosystem import APPS
from tests.cluster import Cluster
from tests.docs.pages import page
from tests.patience import PATIENCE_S

PAGE = page("docs/stateful.md")


def test_code_on_the_page_is_that_of_the_app() -> None:
    apps = [file.read_text("utf-8") for file in APPS.glob("*.py")]
    shown = PAGE.shown("py")
    assert shown
    for block in shown:
        assert any(block in app for app in apps), block


def test_a_scheduler_that_is_pinned_runs_in_one_replica_whatever_number_is_asked_for(cluster: Cluster) -> None:
    served = cluster.deploy("scheduler_app:app", APPS, num_replicas=3)
    assert [len(served.ingress(name)["replicas"]) for name in ("app", "jobs")] == [2, 1]
    with served.client() as client:
        deadline = time.monotonic() + PATIENCE_S
        seen = [0]
        while len(seen) < 4:
            assert time.monotonic() < deadline, seen
            if (ticks := client.get("/ticks").json()) > seen[-1]:
                seen.append(ticks)
    served.delete()


def test_counters_in_a_shared_folder_are_those_of_all_replicas(tmp_path: Path, cluster: Cluster) -> None:
    actor = {"ray": {"runtime_env": {"env_vars": {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}}}}
    served = cluster.deploy("prometheus_app:app", APPS, overrides={"app": {"num_replicas": 2, "resources": actor}})
    pids: list[int] = []
    with served.client() as client:
        deadline = time.monotonic() + PATIENCE_S
        while len(set(pids)) < 2:
            assert time.monotonic() < deadline, pids
            pids.append(client.get("/visit", headers={"connection": "close"}).json())
        for _ in range(4):
            (total,) = re.findall(r"^visits_total ([\d.]+)$", client.get("/metrics").text, re.MULTILINE)
            assert float(total) == len(pids)
    served.delete()
