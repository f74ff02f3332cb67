import logging
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING, "app_toolkit.router"):
        yield lambda: [record.getMessage() for record in caplog.records]
