"""What the tests on Ray share beside the session's cluster."""

from collections.abc import Iterator

import pytest

from benchmarks.chaos.system import VICTIM
from tests.cluster import Cluster, Served


@pytest.fixture(scope="package")
def victim(cluster: Cluster) -> Iterator[Served]:
    served = cluster.deploy("victim:app", VICTIM.parent)
    yield served
    served.delete()
