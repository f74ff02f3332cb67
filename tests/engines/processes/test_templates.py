"""Which replicas are forked from a template, and which import their app themselves."""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app_toolkit.config.models import ApplicationConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.engines.processes.launcher import LocalProcesses
from app_toolkit.engines.processes.services import SUPERVISOR, Child, ProcessServices
from app_toolkit.host import orders
from app_toolkit.host.launcher import Process, Unreachable
from app_toolkit.host.store import new_secret
from app_toolkit.interfaces import Resources
from app_toolkit.types import ReplicaId
from tests.engines.contract.launched import start as contract_start
from tests.engines.supervised import supervised
from tests.patience import AGAIN_S, PATIENCE_S, until

pytestmark = pytest.mark.anyio

APP = """
import asyncio, os, random, resource, threading, time
from fastapi import FastAPI

app = FastAPI()
imported, at_import = os.getpid(), os.environ.get("OMP_NUM_THREADS")
{code}

@app.get("/about")
async def about() -> dict[str, object]:
    threads, gpus = (os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
    reserved = [at_import, threads, gpus, resource.getrlimit(resource.RLIMIT_DATA)[0], os.nice(0)]
    about = {{"imported": imported, "here": os.getpid(), "random": random.random(), "cwd": os.getcwd()}}
    return {{**about, "reserved": reserved}}
"""


@pytest.fixture(scope="module")
def session() -> Iterator[str]:
    session = f"templates-{os.getpid()}"
    with supervised(session):
        yield session


@pytest.fixture
async def services(session: str) -> AsyncIterator[ProcessServices]:
    services = ProcessServices(session)
    yield services
    await services.aclose()
    services.folder.close()


NO_RESOURCES = Resources()


class Replica:
    """One replica of an app whose import runs some code."""

    def __init__(
        self,
        processes: LocalProcesses,
        folder: Path,
        number: int,
        code: str = "",
        resources: Resources = NO_RESOURCES,
        *,
        fork: bool = True,
    ) -> None:
        (folder / "served.py").write_text(APP.format(code=code))
        action = contract_start(ReplicaId(f"{folder.name}.app-1-{number}"), folder)
        assert isinstance(action.spec, ReplicaSpec)
        config = ApplicationConfig(fork=fork)
        self._spec = replace(action.spec, target="served:app", app_dir=str(folder), application_config=config)
        self._action = replace(action, spec=self._spec, resources=resources)
        self._processes = processes
        self.process: Process

    async def about(self) -> dict[str, Any]:
        """Start, and return what the app responds."""
        self.process = await self._processes.start(self._action)
        order = orders.Start(self._spec, self._action.replica_set, self._action.template_hash, new_secret())
        location = await self.process.order(order)
        transport = httpx.AsyncHTTPTransport(uds=location.address.removeprefix("unix:"), verify=False)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE_S) as client:
            found: dict[str, Any] = (await client.get("http://replica/about")).raise_for_status().json()
        return found

    async def end(self) -> None:
        await self.process.kill()
        await self.process.ended()


async def templates(services: ProcessServices) -> set[str]:
    running: Mapping[str, Child] = await services.peer(SUPERVISOR).call("running")
    return {name for name, child in running.items() if child.role == "template"}


async def test_replicas_share_an_import_and_have_random_numbers_of_their_own(
    services: ProcessServices, tmp_path: Path
) -> None:
    processes = LocalProcesses(services)
    replicas = [Replica(processes, tmp_path, number) for number in (1, 2)]
    one, other = [await replica.about() for replica in replicas]
    assert one["imported"] == other["imported"]
    assert len({one["imported"], one["here"], other["here"]}) == 3
    assert one["random"] != other["random"]
    assert one["cwd"] == str(tmp_path)
    for replica in replicas:
        await replica.end()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("threading.Thread(target=time.sleep, args=(600,), name='poller', daemon=True).start()", "the threads poller"),
        ("asyncio.get_running_loop()", None),
        ("if threading.current_thread() is threading.main_thread(): os._exit(3)", None),
    ],
)
async def test_a_replica_imports_its_app_itself_if_a_template_cannot(
    services: ProcessServices, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, said: str | None
) -> None:
    processes = LocalProcesses(services)
    before = await templates(services)
    for number in (1, 2):
        replica = Replica(processes, tmp_path, number, code)
        found = await replica.about()
        assert found["imported"] == found["here"]
        await replica.end()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == (0 if said is None else 1)
    assert all(said is not None and said in warning for warning in warnings)
    assert await templates(services) == before


@pytest.mark.parametrize("code", ["", "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"])
async def test_a_replica_has_what_it_reserves_and_no_more(
    services: ProcessServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    processes = LocalProcesses(services)
    asks = [Resources(3.0, num_gpus=0.5), Resources(0.1, num_gpus=1, memory=2**30), Resources(nice=1)]
    replicas = [Replica(processes, tmp_path, number, code, asked) for number, asked in enumerate(asks)]
    reserved = [(await replica.about())["reserved"] for replica in replicas]
    ordinary, most = os.nice(0), resource.getrlimit(resource.RLIMIT_DATA)[0]
    assert reserved == [
        ["3", "3", "4", most, ordinary],
        ["1", "1", "7", 2**30, ordinary],
        ["1", "1", "", most, min(ordinary + 1, 19)],
    ]
    later = await LocalProcesses(services).existing()
    assert len([name for name in later if tmp_path.name in name]) == 3
    for replica in replicas:
        await replica.end()


async def test_replicas_of_an_app_that_forbids_forks_import_it_themselves(
    services: ProcessServices, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    processes = LocalProcesses(services)
    for number in (1, 2):
        replica = Replica(processes, tmp_path, number, fork=False)
        found = await replica.about()
        assert found["imported"] == found["here"]
        await replica.end()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == "each replica of served:app imports its app itself, because it sets fork=False"


async def test_a_replica_that_is_killed_while_its_template_imports_the_app_ends_both(
    services: ProcessServices, tmp_path: Path
) -> None:
    processes = LocalProcesses(services)
    before = await templates(services)
    importing = tmp_path / "importing"
    replica = Replica(processes, tmp_path, 1, f"open({str(importing)!r}, 'w').close(); time.sleep(600)")
    starts = asyncio.create_task(replica.about())
    await until(importing.exists)
    await replica.process.kill()
    assert (await replica.process.ended()).why == "it was killed while it started"
    with pytest.raises(Unreachable):
        await starts
    async with asyncio.timeout(PATIENCE_S):
        while await templates(services) != before:  # noqa: ASYNC110 - the supervisor reaps it
            await asyncio.sleep(AGAIN_S)


async def test_a_killed_start_keeps_the_template_that_other_replicas_use(
    services: ProcessServices, tmp_path: Path
) -> None:
    processes = LocalProcesses(services)
    one, killed, other = [Replica(processes, tmp_path, number) for number in (1, 2, 3)]
    template = (await one.about())["imported"]
    os.kill(template, signal.SIGSTOP)
    starts = asyncio.create_task(killed.about())
    try:
        await until(lambda: hasattr(killed, "process"))
        await killed.process.kill()
        with pytest.raises(Unreachable, match="it was killed while it started"):
            await starts
    finally:
        os.kill(template, signal.SIGCONT)
    assert (await other.about())["imported"] == template
    for replica in (one, other):
        await replica.end()


async def test_a_replica_imports_its_app_itself_if_its_template_is_stopped(
    services: ProcessServices, tmp_path: Path
) -> None:
    processes = LocalProcesses(services)
    one, other = [Replica(processes, tmp_path, number) for number in (1, 2)]
    template = (await one.about())["imported"]
    os.kill(template, signal.SIGSTOP)
    found = await other.about()
    assert found["imported"] == found["here"]
    for replica in (one, other):
        await replica.end()


async def test_a_replica_that_ends_before_it_can_receive_orders_has_a_reason(
    services: ProcessServices, tmp_path: Path
) -> None:
    ends_forks = "os.register_at_fork(after_in_child=lambda: os._exit(3))"
    replica = Replica(LocalProcesses(services), tmp_path, 1, ends_forks)
    with pytest.raises(Unreachable, match=r"app-1-1' ended before it could receive orders"):
        await replica.about()
    ending = await replica.process.ended()
    assert ending.why == f"the process of '{tmp_path.name}.app-1-1' ended before it could receive orders"


async def test_a_second_order_to_start_finds_the_replica(services: ProcessServices, tmp_path: Path) -> None:
    replica = Replica(LocalProcesses(services), tmp_path, 1)
    found = await replica.about()
    again = Replica(LocalProcesses(services), tmp_path, 1)
    assert (await again.about())["here"] == found["here"]
    await replica.end()
