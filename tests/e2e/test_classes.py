"""The life and the environment of a class on Ray."""

from collections.abc import Iterator
from typing import Any

import pytest

from app_toolkit.config.models import ApplicationSpec, ClassConfig
from tests.cluster import Cluster, Served


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    served = cluster.deploy("classes:app")
    yield served
    served.delete()


def test_an_object_is_constructed_started_and_configured_before_anybody_calls_it(served: Served) -> None:
    with served.client() as client:
        assert client.get("/story").json() == ["constructed in place", "started", "one", "two"]


def test_thread_and_device_variables_are_set_before_the_module_is_imported(served: Served) -> None:
    with served.client() as client:
        found = client.get("/surroundings").json()
    assert found == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLOUR": "blue"}


def test_variables_that_a_deployment_sets_itself_are_kept(served: Served) -> None:
    with served.client() as client:
        found = client.get("/own-surroundings").json()
    assert found == {"CUDA_VISIBLE_DEVICES": "7", "OMP_NUM_THREADS": "3", "COLOUR": None}


def configured(served: Served, **options: Any) -> ApplicationSpec:
    """The application as it is, but for these options of its one class."""
    [place] = [each for each in served.spec.deployments if each.config.name == "place"]
    config = ClassConfig(**{**place.config.model_dump(), **options})
    others = [each for each in served.spec.deployments if each is not place]
    return served.spec.model_copy(update={"deployments": (*others, place.model_copy(update={"config": config}))})


def test_changed_user_config_is_applied_to_running_replicas(cluster: Cluster, served: Served) -> None:
    with served.client() as client:
        before = client.get("/replica").json()
        cluster.update(configured(served, user_config={"words": ["three"]}))
        served.wait(lambda now: now["status"] == "healthy")
        assert client.get("/story").json() == ["constructed in place", "started", "one", "two", "three"]
        # It raises. The object goes on as it is, and the deployment is not healthy until it has taken up something.
        cluster.update(configured(served, user_config={"tones": []}))
        served.wait(lambda now: now["status"] == "updating" and served.ingress("place")["last_error"])
        assert "place could not apply its user_config: KeyError: 'words'" in served.ingress("place")["last_error"]
        assert client.get("/replica").json() == before
        cluster.apply(served.spec)
        assert client.get("/story").json()[-2:] == ["one", "two"]
        assert client.get("/replica").json() == before


def test_user_code_uses_ray_as_anywhere_on_it(served: Served) -> None:
    with served.client() as client:
        found = client.get("/of-ray/21").json()
        assert found == {"await": 42, "get": 42, "put": 42, "actor": 21, "actor again": 42, "in a route": 42}
        assert client.get("/of-ray-in-a-thread/21").json() == 42
