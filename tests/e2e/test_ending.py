"""How processes end, and what people see of it."""

import signal
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.patience import wait_until

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_the_exit_code_or_the_signal_of_a_process_is_shown_and_an_ordered_end_runs_exit_functions(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    served = cluster.deploy("ending:app")
    with served.client() as client:
        for path, why in (
            ("/exit/3", "the process ended with exit code 3: os._exit was called in ending.py:"),
            (f"/signal/{signal.SIGSEGV.value}", "the process ended: SIGSEGV ended it"),
            (f"/signal/{signal.SIGKILL.value}", "the process ended: SIGKILL ended it, or native code"),
        ):
            assert client.post(path).status_code == 502
            wait_until(lambda why=why: why in (served.ingress("app")["last_error"] or ""))
        client.get("/notes", params={"path": str(notes)}).raise_for_status()
    served.delete()
    wait_until(lambda: notes.exists() and "atexit" in notes.read_text())  # the last note of the process
    assert notes.read_text() == "lifespan\natexit\n"
