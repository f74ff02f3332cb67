"""What a machine has for replicas."""

from pathlib import Path

import pytest

from app_toolkit.config.settings import DEVICES
from app_toolkit.engines.processes import machine
from app_toolkit.engines.processes.capacity import Capacity


def test_the_limits_of_all_control_groups_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "pod" / "container"
    inner.mkdir(parents=True)
    for folder, cpu, memory in ((inner, "150000 100000", "max"), (inner.parent, "max 100000", "1048576")):
        (folder / "cpu.max").write_text(f"{cpu}\n")
        (folder / "memory.max").write_text(f"{memory}\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "group", lambda: inner)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert (machine.cpus(), machine.memory()) == (1.5, 1048576)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [("", ()), ("-1", ()), ("NoDevFiles", ()), ("2, 0", ("2", "0")), ("GPU-8f2e", ("GPU-8f2e",))],
)
def test_the_gpus_are_those_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, devices: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv(DEVICES, devices)
    assert machine.gpus() == expected


def test_the_driver_lists_the_gpus_if_the_environment_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.delenv(DEVICES, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for script, expected in (
        ("echo 'GPU 0: NVIDIA L4 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA L4 (UUID: GPU-2)'", ("0", "1")),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ()),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        assert machine.gpus() == expected


def test_stated_resources_replace_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICES, "0")
    monkeypatch.setenv("APP_TOOLKIT_RESOURCES", '{"CPU": 8, "GPU": 2, "NPU": 0.5, "memory": 1000}')
    assert machine.capacity() == Capacity({"CPU": 8, "NPU": 0.5, "memory": 1000}, ("0", "1"))
