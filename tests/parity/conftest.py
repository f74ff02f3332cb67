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

ON_RAY = {
    *("unknown_path", "root", "raw_body_5_mb", "big_response_streamed", "exception_without_a_handler", "openapi"),
    *("addresses_of_the_connection", "host_with_a_port", "forwarded_headers", "links_between_ingresses"),
    *("lifespan_of_each_ingress", "lifespan_state_and_app_state", "def_endpoint_runs_in_a_thread", "static_file"),
    *("resources_in_order", "background_tasks_run_after_the_answer", "background_task_of_a_response"),
    *("handler_of_signal_signal", "handler_of_add_signal_handler", "sse_step_by_step", "raw_stream_step_by_step"),
    *("client_leaves_and_the_handler_sees_it", "client_leaves_and_the_stream_ends"),
    *("ws_echo", "ws_stream_step_by_step", "ws_close_4999", "ws_lost_by_the_client"),
}
"""What depends on the process of a replica. The other probes are slow tests on Ray: `pieces-2` runs the same proxy and
replicas without it."""
assert PROBES.keys() >= ON_RAY


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and item.path.parent == Path(__file__).parent and "name" in parameters.params:
            on_ray = FORMS[parameters.params["form"]].on_ray
            if on_ray and parameters.params["name"] not in ON_RAY:
                item.add_marker("slow")


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
        pytest.param(name, marks=pytest.mark.ray if FORMS[name].on_ray else ()) for name in FORMS if name != "bare"
    ],
)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def port(
    form: str, bare_port: int, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[int]:
    if FORMS[form].on_ray:
        cluster: Cluster = request.getfixturevalue("cluster")
        served = cluster.deploy(
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
