"""The life of a class on Ray, and what it finds around itself."""

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


def test_what_threads_and_devices_it_has_is_known_before_its_module_is_imported(served: Served) -> None:
    with served.client() as client:
        found = client.get("/surroundings").json()
    assert found == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLOUR": "blue"}


def configured(served: Served, **user_config: Any) -> ApplicationSpec:
    """The application as it is, but for the `user_config` of its one class."""
    [place] = [each for each in served.spec.deployments if each.config.name == "place"]
    config = ClassConfig(**{**place.config.model_dump(), "user_config": user_config})
    others = [each for each in served.spec.deployments if each is not place]
    return served.spec.model_copy(update={"deployments": (*others, place.model_copy(update={"config": config}))})


def test_a_changed_user_config_is_taken_up_by_what_runs(cluster: Cluster, served: Served) -> None:
    with served.client() as client:
        before = client.get("/replica").json()
        cluster.instance.deploy(configured(served, words=["three"]), None)
        served.wait(lambda now: now["status"] == "healthy")
        assert client.get("/story").json() == ["constructed in place", "started", "one", "two", "three"]
        # It raises. The object goes on as it is, and the deployment is not healthy until it has taken up something.
        cluster.instance.deploy(configured(served, tones=[]), None)
        served.wait(lambda now: now["status"] == "updating" and served.ingress("place")["last_error"])
        assert "place did not take up its user_config: KeyError: 'words'" in served.ingress("place")["last_error"]
        assert client.get("/replica").json() == before
        cluster.apply(served.spec)
        assert client.get("/story").json()[-2:] == ["one", "two"]
        assert client.get("/replica").json() == before


def test_one_that_says_it_is_not_well_is_replaced(served: Served) -> None:
    with served.client() as client:
        before = client.get("/replica").json()
        assert client.post("/cold").status_code == 200
        served.wait(lambda _: all(each["id"] != before for each in served.ingress("place")["replicas"]))
        after = client.get("/replica").json()
        assert after != before
        assert client.get("/story").json()[1] == "started"
