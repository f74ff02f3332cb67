"""What the engine on Ray does to this process before it imports Ray."""

import os

import pytest

from app_toolkit.engines.ray.engine import RayEngine

VARIABLES = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_worker_niceness": "0",
    "RAY_process_group_cleanup_enabled": "1",
}


def test_preload_sets_how_ray_shows_logs_and_runs_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    RayEngine().preload()
    assert {variable: os.environ[variable] for variable in VARIABLES} == VARIABLES


def test_preload_keeps_what_the_environment_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "1")
    RayEngine().preload()
    assert {os.environ[variable] for variable in VARIABLES} == {"1"}
