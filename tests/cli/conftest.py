"""The command line sets variables for what it starts: in a test they must not outlive the command."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _the_environment_is_as_it_was() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
