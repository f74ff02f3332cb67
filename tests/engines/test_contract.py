"""The contract of all engines: the data plane for clients and handlers, then the launcher and the store."""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app_toolkit.control.reconcile import Action, Drain, Kill, Probe, Reconfigure, Stop
from app_toolkit.control.replica_state import Drained, Event, Exited, Found, ProbePassed, Reconfigured, Started
from app_toolkit.engines.processes.store import SQLiteStore
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import Conflict
from app_toolkit.interfaces import ReloadableOptions, Store
from app_toolkit.types import ReplicaId
from tests.engines.contract import app as contract
from tests.engines.contract import launched
from tests.engines.contract.app import DESK, FEED, HASTY
from tests.engines.contract.ground import AGAIN_S, Ground, eventually
from tests.engines.contract.launched import FAILING, LIVE, WORKING, Bench, start
from tests.engines.contract.served import Load, Served, serving
from tests.engines.contract.visit import Visit, visiting
from tests.engines.supervised import supervised
from tests.memory import MemoryStore
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

REFUSED = {("content-type", "application/json"), ("x-request-id", "my-own-id")}


# The data plane


@pytest.fixture(scope="module", params=["embedded", "processes", "ray"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    yield from serving(request, contract)


@pytest.fixture
async def visit(served: Served, tmp_path: Path) -> AsyncIterator[Visit]:
    async with visiting(served, tmp_path, "hold", "background", "stay", "idle") as visit:
        yield visit


async def test_both_ingresses_answer(visit: Visit) -> None:
    assert (await visit.get("/who")).json() == "hasty"
    assert (await visit.get("/desk/who")).json() == "desk"


async def test_requests_beyond_the_limit_wait_and_requests_beyond_the_queue_are_refused(visit: Visit) -> None:
    inside = [visit.get("/desk/hold/first"), visit.get("/desk/hold/second")]
    await visit.noted("first began", "second began")
    waits = visit.get("/desk/hold/third")
    await visit.loaded(lambda load: load.waiting == 1)

    refused = await visit.get("/desk/hold/fourth", id="my-own-id")
    assert refused.status_code == 503
    assert set(refused.headers.items()) >= REFUSED
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    desk = visit.served.spoken("desk")
    assert refused.json() == {
        "error": "queue_full",
        "detail": f"1 requests wait for {desk}, its max_queued_requests is {DESK.max_queued_requests}",
        "request_id": "my-own-id",
    }
    assert (await visit.get("/who")).json() == "hasty", "another ingress has limits of its own"

    visit.ground.open("hold")
    assert [(await task).json() for task in [*inside, waits]] == ["first", "second", "third"]
    assert set(visit.ground.notes) == {"first began", "second began", "third began"}, "the fourth ran no user code"


async def test_requests_above_the_rate_limit_of_their_client_are_refused(visit: Visit) -> None:
    async def ask(key: str) -> httpx.Response:
        return await visit.client.get("/calm/who", headers={"x-key": key, "x-request-id": "my-own-id"})

    got = [await ask("one") for _ in range(3)]
    assert [each.status_code for each in got] == [200, 200, 429]
    assert [each.headers["ratelimit"].rpartition("=")[0] for each in got] == [
        f'"ingress";r={left};t' for left in (1, 0, 0)
    ]
    assert {each.headers["ratelimit-policy"] for each in got} == {'"ingress";q=2;w=3600'}
    refused, calm = got[-1], visit.served.spoken("calm")
    assert set(refused.headers.items()) >= REFUSED
    assert 3_500 < int(refused.headers["retry-after"]) <= 3_600
    assert refused.json() == {
        "error": "too_many_requests",
        "detail": f"the client has sent more than 2 requests in 3600 s, the rate_limit of {calm}",
        "request_id": "my-own-id",
    }
    assert (await ask("two")).status_code == 200
    for _ in range(2):  # without a key, the address counts
        async with visit.talk("/calm/talk"):
            pass
    with pytest.raises(InvalidStatus) as caught:
        async with visit.talk("/calm/talk"):
            pass
    assert caught.value.response.status_code == 429


async def test_a_request_that_waits_too_long_is_refused(visit: Visit) -> None:
    inside = visit.get("/hold/first")
    await visit.noted("first began")
    began = time.monotonic()
    late = await visit.get("/hold/second", id="my-own-id")
    assert time.monotonic() - began >= HASTY.max_queue_wait_s
    assert late.status_code == 503
    assert set(late.headers.items()) >= REFUSED
    assert 1 <= int(late.headers["retry-after"]) <= 60
    assert late.json() == {
        "error": "queue_timeout",
        "detail": f"no replica of {visit.served.spoken('hasty')} had room within {HASTY.max_queue_wait_s:g} s: "
        "max_ongoing_requests is 1",
        "request_id": "my-own-id",
    }
    visit.ground.open("hold")
    assert (await inside).json() == "first"
    assert visit.ground.notes == ["first began"]


async def test_a_request_whose_deadline_passes_counts_as_such_and_an_error_of_the_app_as_a_response(
    visit: Visit,
) -> None:
    before = Counter(await visit.served.outcomes("desk"))
    assert (await visit.get("/desk/who")).status_code == 200
    assert (await visit.client.get("/desk/stay", headers={"x-request-timeout-seconds": "0.1"})).status_code == 504
    assert (await visit.get("/desk/boom")).status_code == 500
    after, deadline = before, time.monotonic() + PATIENCE_S
    while after.total() < before.total() + 3 and time.monotonic() < deadline:  # it is counted after the response
        await asyncio.sleep(AGAIN_S)
        after = Counter(await visit.served.outcomes("desk"))
    assert after - before == {"deadline_exceeded": 1, "ok": 2}


async def test_a_request_names_its_own_faults_where_it_may(visit: Visit) -> None:
    asks = {"x-fault-delay-ms": "100", "x-fault-abort-status": "418"}
    assert (await visit.client.get("/who", headers=asks)).json() == "hasty"
    began = time.monotonic()
    aborted = await visit.client.get("/feed/who", headers=asks)
    assert time.monotonic() - began >= 0.1
    assert (aborted.status_code, aborted.json()["error"]) == (418, "fault_injected")
    assert aborted.json()["detail"] == f"the option faults of {visit.served.spoken('feed')} has aborted this request"
    assert (await visit.client.get("/feed/who", headers={"x-fault-delay-ms": "100"})).json() == "feed"
    assert time.monotonic() - began >= 0.2


async def test_a_client_that_disconnects_leaves_the_queue(visit: Visit) -> None:
    inside = [visit.get("/desk/hold/first"), visit.get("/desk/hold/second")]
    await visit.noted("first began", "second began")
    third = visit.get("/desk/hold/third")
    await visit.loaded(lambda load: load.waiting == 1)
    third.cancel()
    await visit.loaded(lambda load: load.waiting == 0)
    fourth = visit.get("/desk/hold/fourth")
    await visit.loaded(lambda load: load.waiting == 1)
    visit.ground.open("hold")
    assert [(await task).json() for task in [*inside, fourth]] == ["first", "second", "fourth"]
    assert "third began" not in visit.ground.notes


async def test_a_body_that_is_sent_while_its_request_waits_arrives_whole(visit: Visit) -> None:
    inside = [visit.get("/desk/hold/first"), visit.get("/desk/hold/second")]
    await visit.noted("first began", "second began")
    body = bytes(range(256)) * 2_000
    echo = asyncio.create_task(visit.client.post("/desk/echo", content=body))
    await visit.loaded(lambda load: load.waiting == 1)
    visit.ground.open("hold")
    assert (await echo).content == body
    assert [(await task).json() for task in inside] == ["first", "second"]


async def test_a_stream_arrives_in_parts(visit: Visit) -> None:
    async with visit.client.stream("GET", "/desk/parts/4") as response:
        lines = response.aiter_lines()
        for number in range(4):
            # The next one is not written before this one has been read.
            assert await anext(lines) == f"part {number}"
            assert visit.ground.notes == []
            visit.ground.open(f"part {number}")
    await visit.noted("the stream ended")


async def test_a_stream_ends_when_its_client_disconnects(visit: Visit) -> None:
    async with visit.client.stream("GET", "/desk/parts/2") as response:
        assert await anext(response.aiter_lines()) == "part 0"
        assert visit.ground.notes == []
    await visit.noted("the stream ended")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/desk/stay"), ("POST", "/desk/stay/cancels")], ids=["of-a-get", "of-one-marked"]
)
async def test_a_disconnect_cancels_the_handler(visit: Visit, method: str, path: str) -> None:
    request = asyncio.create_task(visit.client.request(method, path))
    await visit.noted("began")
    request.cancel()
    await visit.noted("cancelled")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/desk/stay"), ("GET", "/desk/stay/continues"), ("GET", "/desk/stay/def")],
    ids=["of-a-post", "of-one-marked", "of-a-thread"],
)
async def test_a_handler_that_continues_after_a_disconnect_keeps_its_slot(visit: Visit, method: str, path: str) -> None:
    request = asyncio.create_task(visit.client.request(method, path))
    await visit.noted("began")
    request.cancel()
    # Two watches of another one, which began later, are over.
    other = visit.get("/desk/stay")
    await eventually(lambda: visit.ground.notes.count("began") == 2)
    other.cancel()
    await visit.noted("cancelled")
    await visit.loaded(lambda load: load.running == 1)
    visit.ground.open("stay")
    await visit.noted("ended")
    assert visit.ground.notes.count("cancelled") == 1


async def test_a_disconnect_of_a_websocket_cancels_a_handler_that_does_not_receive(visit: Visit) -> None:
    talk = await visit.talk("/desk/stay/talk")
    await visit.noted("began")
    talk.transport.abort()
    await visit.noted("cancelled")


async def test_one_websocket_more_than_a_replica_may_have_is_refused(visit: Visit) -> None:
    talks = [await visit.talk() for _ in range(DESK.max_open_websockets)]
    with pytest.raises(InvalidStatus) as refused:
        await visit.talk()
    response = refused.value.response
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert json.loads(response.body)["error"] == "too_many_websockets"
    assert (await visit.get("/desk/who")).json() == "desk", "for requests there is room"
    for talk in talks:
        await talk.close()
    await visit.loaded(lambda load: load.running == 0)
    async with visit.talk() as again:
        await again.send("hello")
        assert await again.recv() == "hello"


async def test_background_tasks_hold_no_slot(visit: Visit) -> None:
    names = [f"task {number}" for number in range(DESK.max_ongoing_requests + 1)]
    for name in names:
        assert (await visit.get(f"/desk/background/{name}")).json() == name
    await visit.loaded(lambda load: (load.ongoing, load.running) == (0, len(names)))
    assert visit.ground.notes == []
    visit.ground.open("background")
    await visit.noted(*(f"{name} ended" for name in names))


@pytest.mark.parametrize(("path", "count"), [("/feed/events", 105), ("/feed/lines", 105)])
async def test_open_streams_hold_no_slot_and_a_request_is_served_at_once(visit: Visit, path: str, count: int) -> None:
    assert FEED.max_ongoing_requests == 100
    assert FEED.max_queued_requests == 0, "a request that found no slot would be refused"
    async with AsyncExitStack() as streams:
        begun = [await begin(visit, path, streams) for _ in range(count)]
        await visit.loaded(lambda load: load == Load(waiting=0, ongoing=0, running=len(begun), streams=count))
        for _ in range(10):
            assert (await visit.get("/feed/who")).json() == "feed"
    await visit.loaded(lambda load: load.running == 0)
    assert visit.ground.notes == ["a silent stream ended"] * count, "each handler heard of its client's disconnect"


async def begin(visit: Visit, path: str, streams: AsyncExitStack) -> AsyncIterator[str]:
    """The lines of a stream whose first one has arrived."""
    response = await streams.enter_async_context(visit.client.stream("GET", path))
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("x-app-toolkit")]
    lines = response.aiter_lines()
    assert await anext(lines) == "data: hello"
    return lines


async def test_a_stream_beyond_the_limit_keeps_its_slot_and_a_refusal_names_it(visit: Visit) -> None:
    async with AsyncExitStack() as streams:
        begun = [await begin(visit, "/events", streams) for _ in range(HASTY.max_open_streams)]
        assert (await visit.get("/who")).json() == "hasty"
        async with AsyncExitStack() as beyond:
            begun.append(await begin(visit, "/events", beyond))
            refused = await visit.get("/who", id="my-own-id")
            assert refused.status_code == 503
            assert refused.json() == {
                "error": "queue_timeout",
                "detail": f"no replica of {visit.served.spoken('hasty')} had room within {HASTY.max_queue_wait_s:g} s: "
                "max_ongoing_requests is 1; 2 of 2 max_open_streams are open, and more streams hold slots",
                "request_id": "my-own-id",
            }
        await visit.loaded(lambda load: load.ongoing == 0)
        assert (await visit.get("/who")).json() == "hasty"


async def test_a_response_that_is_no_stream_keeps_its_slot_until_it_is_complete(visit: Visit) -> None:
    async with AsyncExitStack() as streams:
        begun = [await begin(visit, "/desk/unmarked", streams) for _ in range(DESK.max_ongoing_requests)]
        waits = visit.get("/desk/who")
        await visit.loaded(lambda load: load.waiting == 1)
        visit.ground.open("idle")
        assert (await waits).json() == "desk"
        assert [[line async for line in each] for each in begun] == [[""]] * len(begun)


async def test_a_stream_that_ends_frees_its_place_and_its_background_task_holds_none(visit: Visit) -> None:
    async with AsyncExitStack() as streams:
        begun = [await begin(visit, "/events/with-task", streams) for _ in range(HASTY.max_open_streams)]
        visit.ground.open("idle")
        assert [[line async for line in each] for each in begun] == [[""]] * len(begun)
    await visit.loaded(lambda load: (load.ongoing, load.streams, load.running) == (0, 0, HASTY.max_open_streams))
    visit.ground.open("background")
    await visit.noted("the task of a stream ended")


async def test_a_websocket_holds_no_slot_and_its_close_code_arrives(visit: Visit) -> None:
    talks = [await visit.talk() for _ in range(DESK.max_ongoing_requests + 1)]
    for number, talk in enumerate(talks):
        assert talk.response is not None
        assert talk.response.headers["x-request-id"]
        await talk.send(str(number))
        assert await talk.recv() == str(number)
    assert (await visit.get("/desk/who")).json() == "desk"
    for talk in talks:
        await talk.send("bye")
        with pytest.raises(ConnectionClosed):
            await talk.recv()
        assert (talk.close_code, talk.close_reason) == (4321, "as you wish")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/desk/who", 200), ("/nowhere", 404), ("/desk/boom", 500)],
    ids=["of-a-handler", "of-no-route", "of-a-failure"],
)
async def test_every_answer_has_a_request_id_and_a_clients_own_is_kept(visit: Visit, path: str, status: int) -> None:
    one, other, own = await visit.get(path), await visit.get(path), await visit.get(path, id="my-own-id")
    assert [response.status_code for response in (one, other, own)] == [status] * 3
    ids = [response.headers.get_list("x-request-id") for response in (one, other, own)]
    assert [len(each) for each in ids] == [1, 1, 1]
    assert ids[0] != ids[1]
    assert ids[2] == ["my-own-id"]


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_handler_knows_the_id_that_its_client_reads(visit: Visit, kind: str) -> None:
    minted, own = await visit.get(f"/desk/id/{kind}"), await visit.get(f"/desk/id/{kind}", id="my-own-id")
    assert minted.json() == minted.headers["x-request-id"]
    assert own.json() == "my-own-id"


@pytest.mark.parametrize("path", ["/desk/boom", "/desk/boom/unfinished", "/desk/boom/unspeakable"])
async def test_a_handler_that_fails_before_its_body_is_a_500_and_the_app_goes_on(visit: Visit, path: str) -> None:
    for _ in range(DESK.max_ongoing_requests + 1):
        failed = await visit.get(path)
        assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    assert (await visit.get("/desk/who")).json() == "desk"


# The launcher

BEFORE = 900
"""Above the epochs of the controller whose cluster this is: a process that begins asks the store for the last one."""

A, B, NOBODY = (ReplicaId(f"contract.working-{BEFORE}-{number}") for number in (1, 2, 3))
E = TypeVar("E", bound=Event)


class Controlling:
    """What a controller of one epoch tells its launcher, and hears from it."""

    def __init__(self, bench: Bench, epoch: int) -> None:
        self._bench = bench
        self.events: list[Event] = []
        self.launcher = bench.launcher()
        self.launcher.listen(self.events.append, epoch)

    def heard(self, kind: type[E], id: ReplicaId = A) -> list[E]:
        return [event for event in self.events if isinstance(event, kind) and event.replica == id]

    async def hears(self, kind: type[E], id: ReplicaId = A) -> E:
        try:
            await self._bench.until(lambda: bool(self.heard(kind, id)))
        except TimeoutError:
            raise AssertionError(f"no {kind.__name__} of {id} was heard, but {self.events}") from None
        return self.heard(kind, id)[0]

    def perform(self, *actions: Action) -> None:
        for action in actions:
            self.launcher.perform(action)

    async def performs(self, *actions: Action) -> None:
        """Perform these, and wait until nothing of them is under way any more."""
        before = asyncio.all_tasks()
        self.perform(*actions)
        under_way = asyncio.all_tasks() - before
        await self._bench.until(lambda: all(task.done() for task in under_way))

    async def finds(self) -> list[ReplicaId]:
        """Who is there, once each that was found has said what it is, or that it has gone meanwhile."""
        self.events.clear()
        found = await self.launcher.found()
        await self._bench.until(lambda: all(self.heard(Found, id) or self.heard(Exited, id) for id in found))
        return sorted(id for id in found if self.heard(Found, id))


@pytest.fixture(scope="module", params=["simulated", "processes", "ray"])
def running(request: pytest.FixtureRequest) -> Iterator[Callable[[Ground], AbstractAsyncContextManager[Bench]]]:
    if request.param == "simulated":
        yield launched.Simulated.running
    elif request.param == "processes":
        session = f"contract-{os.getpid()}"
        with supervised(session):
            yield partial(launched.OnProcesses.running, session)
    else:
        request.getfixturevalue("cluster")
        yield launched.OnRay.running


@pytest.fixture
async def bench(
    running: Callable[[Ground], AbstractAsyncContextManager[Bench]], tmp_path: Path
) -> AsyncIterator[Bench]:
    async with running(Ground(tmp_path)) as bench:
        yield bench


@pytest.fixture
async def controller(bench: Bench) -> AsyncIterator[Callable[[int], Controlling]]:
    """Makes the controller of an epoch, counted from `BEFORE` on."""
    async with AsyncExitStack() as ends:

        def controller(epoch: int) -> Controlling:
            controlling = Controlling(bench, BEFORE + epoch)
            ends.push_async_callback(controlling.launcher.aclose)
            return controlling

        yield controller


Epoch = Callable[[int], Controlling]


async def test_a_process_starts_once_passes_its_probe_and_stops(
    bench: Bench, controller: Epoch, tmp_path: Path
) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path), start(A, tmp_path))
    started = await first.hears(Started)
    assert started.location.address.partition(":")[0] in ("unix", "tcp")
    first.perform(start(A, tmp_path), Probe(A, PATIENCE_S))
    await first.hears(ProbePassed)
    assert bench.starts() == 1
    assert first.heard(Exited) == [], "to start what exists is success"
    first.perform(Stop(A, 5.0))
    assert await first.hears(Exited) == Exited(A, why=None)
    assert {event.location for event in first.heard(Started)} == {started.location}


async def test_an_app_that_does_not_start_exits_with_its_error(controller: Epoch, tmp_path: Path) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path, FAILING))
    exited = await first.hears(Exited)
    assert exited.why is not None
    assert "RuntimeError: the model file is missing" in exited.why
    assert first.heard(Started) == []


async def test_a_drain_ends_when_ongoing_requests_have_ended_and_refuses_others(
    bench: Bench, controller: Epoch, tmp_path: Path
) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path))
    started = await first.hears(Started)
    await bench.occupy(started)
    first.perform(Drain(A, PATIENCE_S))
    await bench.refuses(started)
    assert first.heard(Drained) == []
    await bench.let_go()
    await first.hears(Drained)
    assert first.heard(Exited) == [], "it waits for its stop"


async def test_a_killed_process_exits_and_is_not_found_again(controller: Epoch, tmp_path: Path) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path))
    await first.hears(Started)
    first.perform(Kill(A, "enough"))
    await first.hears(Exited)
    assert await controller(2).finds() == []


@pytest.mark.parametrize(
    "order",
    [Probe(NOBODY, 1.0), Reconfigure(NOBODY, LIVE, 1.0), Drain(NOBODY, 1.0), Stop(NOBODY, 1.0), Kill(NOBODY, "enough")],
    ids=lambda o: type(o).__name__.lower(),
)
async def test_an_action_on_a_missing_process_reports_its_exit(controller: Epoch, order: Action) -> None:
    first = controller(1)
    first.perform(order)
    await first.hears(Exited, NOBODY)
    assert {type(event) for event in first.events} == {Exited}


async def test_the_next_controller_finds_running_processes(controller: Epoch, tmp_path: Path) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path), start(B, tmp_path))
    places = [(await first.hears(Started, id)).location for id in (A, B)]
    first.perform(Drain(B, PATIENCE_S))
    await first.hears(Drained, B)
    second = controller(2)
    assert await second.finds() == [A, B]
    assert second.heard(Found, A) == [Found(A, WORKING, "v1", "running", places[0], LIVE)]
    assert second.heard(Found, B) == [Found(B, WORKING, "v1", "draining", places[1], LIVE)]
    assert all(found.running_s > 0 for found in second.heard(Found)), "the age is that of the process"
    second.perform(Stop(B, 5.0))
    assert await second.hears(Exited, B) == Exited(B, why=None)


async def test_a_reconfigured_process_is_found_with_its_new_options(
    bench: Bench, controller: Epoch, tmp_path: Path
) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path))
    await first.hears(Started)
    changed = ReloadableOptions(20)
    first.perform(Reconfigure(A, changed, PATIENCE_S))
    assert await first.hears(Reconfigured) == Reconfigured(A, changed)
    second = controller(2)
    assert await second.finds() == [A]
    assert [found.reloadable for found in second.heard(Found)] == [changed]
    await first.performs(Reconfigure(A, LIVE, 5.0))
    assert await second.finds() == [A]
    assert [found.reloadable for found in second.heard(Found)][-1] == changed, (
        "the order came from one that was replaced"
    )
    assert bench.starts() == 1


async def test_an_action_of_a_replaced_controller_does_nothing(bench: Bench, controller: Epoch, tmp_path: Path) -> None:
    first = controller(1)
    first.perform(start(A, tmp_path))
    await first.hears(Started)
    second = controller(2)
    assert await second.finds() == [A]
    await first.performs(start(A, tmp_path), Probe(A, 5.0), Drain(A, 5.0), Stop(A, 5.0), Kill(A, "late"))
    assert first.heard(Exited) == []
    assert await second.finds() == [A]
    assert [found.phase_name for found in second.heard(Found)] == ["running"]
    second.perform(Probe(A, PATIENCE_S))
    await second.hears(ProbePassed)
    assert bench.starts() == 1


# The store

KEY = "contract/key"


@pytest.fixture(scope="module", params=["memory", "sqlite", "ray"])
def kind_of_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Store]:
    if request.param == "memory":
        return MemoryStore
    if request.param == "sqlite":
        return partial(SQLiteStore, tmp_path_factory.mktemp("store") / "store.db")
    request.getfixturevalue("cluster")
    return RayStore


@pytest.fixture
async def store(kind_of_store: Callable[[], Store]) -> AsyncIterator[Store]:
    store = kind_of_store()
    yield store
    for key in await store.keys("contract/"):
        await store.delete(key)


async def test_a_value_exists_until_it_is_deleted(store: Store) -> None:
    assert await store.get(KEY) is None
    await store.compare_and_set(KEY, None, b"one")
    await store.compare_and_set(KEY, b"one", b"two")
    assert await store.get(KEY) == b"two"
    await store.delete(KEY)
    assert await store.get(KEY) is None
    await store.delete(KEY)  # what is not there is deleted already
    await store.compare_and_set(KEY, None, b"")
    assert await store.get(KEY) == b"", "empty is not absent"


@pytest.mark.parametrize("expected", [None, b"other"], ids=["absent", "another"])
async def test_an_unexpected_value_is_not_replaced(store: Store, expected: bytes | None) -> None:
    await store.compare_and_set(KEY, None, b"one")
    with pytest.raises(Conflict, match=KEY):
        await store.compare_and_set(KEY, expected, b"two")
    assert await store.get(KEY) == b"one"


async def test_a_missing_value_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict, match=KEY):
        await store.compare_and_set(KEY, b"one", b"two")
    assert await store.get(KEY) is None


async def test_keys_are_listed_by_their_beginning(store: Store) -> None:
    for key in ("contract/b/1", "contract/a", "contract/b/2", "contract/bb"):
        await store.compare_and_set(key, None, b"value")
    assert await store.keys("contract/b/") == ["contract/b/1", "contract/b/2"]
    assert await store.keys("contract/") == ["contract/a", "contract/b/1", "contract/b/2", "contract/bb"]
    assert await store.keys("contract/c") == []


async def test_a_key_that_continues_another_one_has_a_value_of_its_own(store: Store) -> None:
    live_revision = f"{KEY}@2"
    await store.compare_and_set(KEY, None, b"main")
    await store.compare_and_set(live_revision, None, b"one")
    await store.compare_and_set(live_revision, b"one", b"two")
    async with asyncio.timeout(10):
        assert await store.get(KEY) == b"main"
    await store.delete(KEY)
    assert await store.get(KEY) is None
    assert await store.get(live_revision) == b"two"


async def test_many_writers_lose_nothing(store: Store) -> None:
    async def count(times: int) -> None:
        while times:
            before = await store.get(KEY)
            try:
                await store.compare_and_set(KEY, before, b"%d" % (int(before or 0) + 1))
            except Conflict:
                continue
            times -= 1

    await asyncio.gather(*(count(5) for _ in range(4)))
    assert await store.get(KEY) == b"20"
