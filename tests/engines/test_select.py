"""The engine of an instance, also where Ray is not installed."""

import sys
from pathlib import Path

import pytest

from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.ray.engine import RayEngine
from app_toolkit.engines.select import EngineName, engine, engine_of_run
from app_toolkit.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_instance_runs_on_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("APP_TOOLKIT_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def _ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


def test_an_instance_is_on_ray_unless_one_runs_on_processes() -> None:
    assert isinstance(engine(), RayEngine)
    assert isinstance(engine(address="10.0.0.1:6379"), RayEngine)
    assert isinstance(engine(address="processes-1"), ProcessEngine)


@pytest.mark.usefixtures("_ray_is_not_installed")
@pytest.mark.parametrize("address", [None, "auto", "processes-1"])
def test_without_ray_an_instance_is_on_processes(address: str | None) -> None:
    assert isinstance(engine(address=address), ProcessEngine)
    assert isinstance(engine_of_run("processes", None), ProcessEngine)


@pytest.mark.usefixtures("_ray_is_not_installed")
@pytest.mark.parametrize(("name", "address"), [("ray", None), (None, "10.0.0.1:6379")])
def test_without_ray_an_instance_on_ray_is_refused(name: EngineName | None, address: str | None) -> None:
    with pytest.raises(
        ConfigError, match=r"^an instance on Ray needs the package ray: pip install 'app-toolkit\[ray\]'$"
    ):
        engine_of_run(name, address)


@pytest.mark.usefixtures("_ray_is_not_installed")
def test_without_ray_the_address_of_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the package ray"):
        engine(address="10.0.0.1:6379")
