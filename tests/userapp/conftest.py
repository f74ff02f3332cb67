"""The replicas that tests of the app of a user start."""

from collections.abc import Iterator

import pytest

from tests.replica.client import Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    serving = Serve()
    yield serving
    serving.close()
