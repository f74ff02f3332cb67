"""What the tests of the replica share: replicas that are started for a test and stopped after it."""

from collections.abc import Iterator

import pytest

from .client import Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    serving = Serve()
    yield serving
    serving.close()
