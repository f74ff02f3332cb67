"""Which instances of this user are found."""

from pathlib import Path

import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.engines.processes.sessions import running
from tests.engines.supervised import supervised


def addresses(address: str) -> list[str]:
    """Return the addresses of the instances that run at this one."""
    instances = running(address)
    for services in instances:
        services.folder.close()
    return [services.session for services in instances]


def test_only_instances_that_run_are_found_also_beside_folders_that_others_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    with supervised("processes-12-running"):
        (base,) = tmp_path.iterdir()
        (base / "processes-2-ended" / "logs").mkdir(mode=0o755, parents=True)
        assert addresses("auto") == addresses("processes-12") == ["processes-12-running"]
        assert addresses("processes-1") == []  # the beginning of another number
        assert addresses("processes-2") == []
    assert addresses("auto") == []
