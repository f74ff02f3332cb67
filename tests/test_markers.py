"""`pytest -m "not ray"` starts no Ray, and runs on machines that cannot start one."""

import subprocess
import sys

import pytest

from app_toolkit.engines.ray.environment import folder
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.errors import ConfigError


def test_a_test_without_the_marker_cannot_start_ray() -> None:
    with pytest.raises(ConfigError, match="only-tests-marked-ray-start-Ray: Not a directory"):
        LocalRay(1, folder())


def test_neither_can_a_process_that_it_starts() -> None:
    program = "import ray; ray.init(address='local', num_cpus=1, include_dashboard=False)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "NotADirectoryError" in done.stderr
    assert "only-tests-marked-ray-start-Ray" in done.stderr


@pytest.mark.parametrize("engine", ["embedded", "ray"])
def test_a_parameter_that_names_ray_is_enough(engine: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("ray") is not None) == (engine == "ray")
