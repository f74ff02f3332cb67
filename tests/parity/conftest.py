"""One server per form, started when its first probe runs and stopped before the next form's."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S

from .client import Client, Observation
from .probes import PROBES
from .servers import FORMS, TESTS, running

if TYPE_CHECKING:
    from tests.cluster import Cluster


@pytest.fixture(scope="session")
def bare_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running("bare", tmp_path_factory.mktemp("bare") / "log") as port:
        yield port


@pytest.fixture(scope="session")
def expected(bare_port: int, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Observation]:
    """What bare uvicorn answers to a probe, asked once for all forms."""
    known: dict[str, Observation] = {}

    def ask(name: str) -> Observation:
        if name not in known:
            known[name] = observe(name, bare_port, tmp_path_factory.mktemp("expected"))
        return known[name]

    return ask


@pytest.fixture(
    scope="module",
    params=[
        # `processes-2` runs the same proxy and replicas without Ray.
        pytest.param(name, marks=(pytest.mark.ray, pytest.mark.slow) if form.instance == "cluster" else ())
        for name, form in FORMS.items()
        if name != "bare"
    ],
)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def port(
    form: str, bare_port: int, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[int]:
    if FORMS[form].instance:
        instance: Cluster = request.getfixturevalue(FORMS[form].instance)
        served = instance.deploy(
            "tests.parity.served:app", TESTS.parent, name="parity", route_prefix="/", num_replicas=2
        )
        yield int(served.url.rpartition(":")[2].removesuffix("/"))
        served.delete()
    else:
        with running(form, tmp_path_factory.mktemp(form) / "log") as port:
            yield port


def observe(name: str, port: int, folder: Path) -> Observation:
    async def within_time() -> Observation:
        async with asyncio.timeout(PATIENCE_S):
            return await PROBES[name](Client(port, folder))

    return asyncio.run(within_time())
