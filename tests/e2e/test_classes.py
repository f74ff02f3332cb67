"""The life of a class on Ray, and what it finds around itself."""

from collections.abc import Iterator

import pytest

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


def test_a_lifespan_knows_in_which_replica_it_runs(served: Served) -> None:
    with served.client() as client:
        assert client.get("/lifespan").json() == "app"


def test_user_code_uses_ray_as_anywhere_on_it(served: Served) -> None:
    with served.client() as client:
        found = client.get("/of-ray/21").json()
        assert found == {"await": 42, "get": 42, "put": 42, "actor": 21, "actor again": 42, "in a route": 42}
        assert client.get("/of-ray-in-a-thread/21").json() == 42


def test_one_that_says_it_is_not_well_is_replaced(served: Served) -> None:
    with served.client() as client:
        before = client.get("/replica").json()
        assert client.post("/cold").status_code == 200
        served.wait(lambda _: all(each["id"] != before for each in served.ingress("place")["replicas"]))
        after = client.get("/replica").json()
        assert after != before
        assert client.get("/story").json()[1] == "started"
