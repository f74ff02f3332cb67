"""An instance whose state store is damaged."""

from pathlib import Path

import psutil
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.queries import GetStatus
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.processes.sessions import named
from app_toolkit.errors import CorruptValue, InstanceEnded
from app_toolkit.operate.remote import RemoteClient
from tests.patience import wait_until


def test_an_instance_with_a_damaged_store_says_so_and_can_be_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    client = ProcessEngine().start(address=None, with_lease=False)
    assert isinstance(client, RemoteClient)
    client.execute(GetStatus())
    (session,) = named("auto")
    services = ProcessEngine().connect(session).services
    supervisor = psutil.Process(int(session.split("-")[1]))
    (controller,) = [process for process in supervisor.children() if process.name() == "at-controller"]
    for name in ("store.db", "store.db-wal"):
        (services.folder.path / name).write_bytes(b"damaged" * 1_000)
    controller.kill()

    def is_damaged() -> bool:
        try:
            client.execute(GetStatus())
        except CorruptValue:
            return True
        return False

    wait_until(is_damaged)
    client.shutdown()
    assert not supervisor.is_running()
    with pytest.raises(InstanceEnded):
        client.execute(GetStatus())
