"""Deployments in one process: their lifespan, their streams, and options that need Ray."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from starlette.testclient import TestClient

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch, options, remote, request_id, split
from app_toolkit.config.models import ClassConfig
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.engines.one_process.calls import IN_PROCESS
from app_toolkit.errors import DeadlineExceeded, FaultInjected, QueueTimeout
from app_toolkit.exchange.filters.mirrored_calls import CallMirroring
from app_toolkit.exchange.mirrored_requests import Mirrors
from app_toolkit.interfaces import Deployable
from app_toolkit.observability.context import thread_work
from app_toolkit.types import Message, Scope
from tests.engines.chain import app as chain
from tests.patience import PATIENCE_S, until

GET: Scope = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "method": "GET",
    "path": "/",
    "raw_path": b"/",
    "root_path": "",
    "query_string": b"",
    "headers": [],
}


@pytest.fixture
def _nothing_stays() -> Iterator[None]:
    yield
    IN_PROCESS.close()


class Counted(Deployment):
    @batch(max_batch_size=4, batch_wait_timeout_s=60)
    async def together(self, numbers: list[int]) -> list[int]:
        return [len(numbers)] * len(numbers)


@pytest.mark.usefixtures("_nothing_stays")
def test_deployments_of_one_class_have_batch_limits_of_their_own() -> None:
    app = FastAPI()
    large, small = Counted.bind(), Counted.options(name="small", batch={"together": {"max_batch_size": 2}}).bind()

    @app.get("/together")
    async def together(
        large: Annotated[Counted, Depends(large)], small: Annotated[Counted, Depends(small)]
    ) -> list[list[int]]:
        return [list(await asyncio.gather(*(model.together(n) for n in range(4)))) for model in (large, small)]

    assert TestClient(app).get("/together").json() == [[4] * 4, [2] * 4]


@pytest.mark.usefixtures("_nothing_stays")
def test_an_object_used_without_a_lifespan_is_constructed_again_for_a_lifespan() -> None:
    client = TestClient(chain.app)
    before = client.get("/which").json()
    assert client.get("/which").json() == before, "without a lifespan one object serves all requests"
    with client:
        assert client.get("/which").json() != before


class Writer(Deployment):
    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def write(self) -> AsyncIterator[str]:
        try:
            while True:
                yield "a word"
        finally:
            self.events.append("closed")


@asynccontextmanager
async def started(*deployments: Deployable) -> AsyncIterator[None]:
    await IN_PROCESS.start(deployments)
    try:
        yield
    finally:
        await IN_PROCESS.stop()


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: Message) -> None:
    raise AssertionError(f"nobody waits for {message}")


Read = Callable[[Writer], AsyncIterator[str] | Iterator[str]]


def in_threads(model: Writer) -> Iterator[str]:
    yield from remote(model.write)


def in_threads_one_within_another(model: Writer) -> Iterator[str]:
    for _ in remote(model.write):
        yield from remote(model.write)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is garbage stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.anyio
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("read", "streams"),
    [
        (lambda model: model.write(), 1),
        (lambda model: remote(model.write), 1),
        (in_threads, 1),
        (in_threads_one_within_another, 2),
    ],
)
@pytest.mark.parametrize("in_a_script", [False, True])
async def test_a_stream_that_a_response_leaves_between_two_items_is_closed_when_its_client_goes(
    read: Read, streams: int, in_a_script: bool
) -> None:
    """Whoever is cancelled while it sends is in nobody's `async for`: the framework leaves it to the collector."""
    events: list[str] = []
    writer = Writer.bind(events)
    app = Toolkit()

    @app.get("/")
    async def words(model: Annotated[Writer, Depends(writer)]) -> StreamingResponse:
        return StreamingResponse(read(model))

    sending = asyncio.Event()
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await sending.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message.get("body"):
            sending.set()
            await asyncio.Event().wait()

    if in_a_script:
        thread_work()  # that of whoever reads a stream in the thread in which it begins to serve afterwards
    async with started(writer):
        await app(dict(GET), receive, send)
        await until(lambda: len(events) >= streams)
    assert events == ["closed"] * streams


@pytest.mark.anyio
@pytest.mark.usefixtures("uncollected")
async def test_a_task_that_outlives_its_request_reads_on() -> None:
    events: list[str] = []
    writer = Writer.bind(events)
    app = Toolkit()
    reading: list[asyncio.Task[None]] = []
    cancelled = asyncio.Event()

    async def read(model: Writer) -> None:
        async for word in model.write():
            events.append(word)
            await cancelled.wait()
            if len(events) == 3:
                return

    @app.get("/")
    async def begin(model: Annotated[Writer, Depends(writer)]) -> None:
        reading.append(asyncio.create_task(read(model)))
        await asyncio.Event().wait()

    async with started(writer):
        asked = asyncio.ensure_future(app(dict(GET), receive, send))
        await until(lambda: bool(events))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        cancelled.set()
        await asyncio.gather(*reading)
    assert events == ["a word", "a word", "a word", "closed"]


@pytest.mark.anyio
@pytest.mark.usefixtures("uncollected")
async def test_a_thread_that_outlives_its_request_reads_on_and_its_stream_is_closed() -> None:
    events: list[str] = []
    writer = Writer.bind(events)
    app = Toolkit()
    reading: list[asyncio.Task[None]] = []
    kept: list[Iterator[str]] = []
    cancelled = threading.Event()

    def read(model: Writer) -> None:
        kept.append(words := iter(remote(model.write)))
        events.append(next(words))
        assert cancelled.wait(PATIENCE_S)
        events.append(next(words))

    @app.get("/")
    async def begin(model: Annotated[Writer, Depends(writer)]) -> None:
        reading.append(asyncio.create_task(asyncio.to_thread(read, model)))
        await asyncio.Event().wait()

    async with started(writer):
        asked = asyncio.ensure_future(app(dict(GET), receive, send))
        await until(lambda: bool(events))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        cancelled.set()
        await asyncio.gather(*reading)
        await until(lambda: len(events) == 3)
    assert events == ["a word", "a word", "closed"]
    assert len(kept) == 1


SURPRISE = """
import asyncio
{first}
from app_toolkit import Deployment, Toolkit
from starlette.testclient import TestClient

class Model(Deployment):
    async def puts(self):
        import ray
        return ray.put(1)

    def runs(self):
        import ray
        return ray.remote(lambda: 1).remote()

model = Model.bind()
app = Toolkit(deployments=[model])

@app.get("/")
def route():
    import ray
    return ray.get([])

def show_errors(client):
    for use in (lambda: client.get("/"), lambda: asyncio.run(model.handle.puts()), model.handle.runs):
        try:
            use()
        except Exception as error:
            print(type(error).__name__, error)

show_errors(TestClient(app))
with TestClient(app) as client:
    show_errors(client)
import ray
print(ray.is_initialized())
"""


@pytest.mark.parametrize("first", ["import ray", ""], ids=["imported before", "imported by it"])
def test_user_code_that_uses_ray_gets_an_error_and_starts_no_ray(first: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_AUTO_CONNECT"}
    command = [sys.executable, "-c", SURPRISE.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    said = "RaySystemError System error: Ray has not been started yet. You can start Ray with 'ray.init()'."
    assert done.stdout.splitlines() == [said] * 6 + ["False"], done.stderr


# Options without an effect in one process


class Distributed(
    Deployment,
    name="distributed",
    retry="all",
    health_check_period_s=1,
    startup_timeout_s=5,
    resources={"ray": {"runtime_env": {"env_vars": {"TOKEN": "s3cret"}}}},
):
    def check_health(self) -> None: ...

    async def ask(self) -> str:
        return "answered"


UNAPPLIED = (
    "in one process these options have no effect; they apply with `run`: "
    "spread: num_replicas, max_replicas_per_node; distributed: retry, startup_timeout_s, health_check_period_s, "
    "resources.ray.runtime_env, check_health()"
)


def distributed() -> Toolkit:
    app = Toolkit(deployment=DeploymentConfig(name="spread", num_replicas=2, max_replicas_per_node=1))

    @app.get("/")
    async def ask(model: Annotated[Distributed, Depends(Distributed.bind())]) -> str:
        return await model.ask()

    return app


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    monkeypatch.setattr(IN_PROCESS, "listed", set())
    return lambda: [each.getMessage() for each in caplog.records if "no effect" in each.getMessage()]


def test_options_that_need_ray_are_logged_once_at_startup(listed: Callable[[], list[str]]) -> None:
    for _ in range(2):
        with TestClient(distributed()) as client:
            assert listed() == [UNAPPLIED], "before the first request"
            assert client.get("/").json() == "answered"
    assert listed() == [UNAPPLIED]
    assert "s3cret" not in UNAPPLIED


@pytest.mark.usefixtures("_nothing_stays")
def test_options_that_need_ray_are_logged_at_first_use_without_a_lifespan(listed: Callable[[], list[str]]) -> None:
    assert TestClient(distributed()).get("/").json() == "answered"
    assert TestClient(distributed()).get("/").json() == "answered"
    first, second = listed()
    assert first.endswith("spread: num_replicas, max_replicas_per_node")
    assert second.endswith(UNAPPLIED.partition("; distributed")[2])


class Faulty(Deployment, faults={"abort_status": 503, "abort_percent": 100}):
    async def ask(self) -> str:
        return "answered"


@pytest.mark.anyio
async def test_calls_in_one_process_get_the_faults_of_their_deployment() -> None:
    faulty = Faulty.bind()
    async with started(faulty):
        with pytest.raises(FaultInjected, match="the option faults of faulty"):
            await faulty.handle.ask()


class Stubborn(Deployment):
    async def ask(self) -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE_S)
        return "too late"


@pytest.mark.anyio
async def test_a_method_that_ignores_its_deadline_leaves_no_cancellation_to_its_caller() -> None:
    stubborn, task = Stubborn.bind(), asyncio.current_task()
    assert task is not None
    async with started(stubborn):
        with pytest.raises(DeadlineExceeded):
            await options(stubborn.handle, timeout_s=0.05).ask()
        assert task.cancelling() == 0


APPLIED = {
    *("name", "max_ongoing_requests", "max_queued_requests", "max_queue_wait_s", "request_timeout_s", "max_body_size"),
    *("max_open_websockets", "max_open_streams", "on_disconnect", "affinity", "batch", "sync_threads", "user_config"),
    *("rate_limit", "rate_limit_by", "faults"),
}
"""The options that work in one process. Whoever adds one decides: it works here as well, or it says what it `needs`."""


def test_every_option_works_in_one_process_or_is_logged() -> None:
    extras = {name: field.json_schema_extra for name, field in ClassConfig.model_fields.items()}
    listed = {name for name, extra in extras.items() if isinstance(extra, dict) and "needs" in extra}
    assert not listed & APPLIED
    assert listed | APPLIED == extras.keys()


def test_options_that_work_in_one_process_are_not_logged(listed: Callable[[], list[str]]) -> None:
    limits = {"max_ongoing_requests": 3, "max_queued_requests": 1, "max_body_size": 9, "request_timeout_s": 5}
    with TestClient(Toolkit(deployment=DeploymentConfig(name="limited", on_disconnect="cancel", **limits))):  # type: ignore[arg-type]
        assert listed() == []


class Scribe(Deployment):
    """One member of a split. `events` says what happens to its calls."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    async def write(self) -> str:
        self.events.append(f"{self.name} wrote for {request_id()}")
        return self.name

    async def hold(self) -> None:
        if self.name == "copy":
            self.events.append("began")
            try:
                await asyncio.Event().wait()
            finally:
                self.events.append("cancelled")

    async def refuse(self) -> None:
        if self.name == "copy":
            raise ValueError(self.name)

    async def words(self) -> AsyncIterator[str]:
        for word in range(3 if self.name == "copy" else 1):
            yield f"{word}"
        self.events.append(f"{self.name} yielded all")


class Mirrored:
    """A split in this process, whose second deployment gets copies of all calls."""

    def __init__(self, **options: int) -> None:
        self.events: list[str] = []
        self.main = Scribe.options(name="main").bind("main", self.events)
        self.copy = Scribe.options(name="copy", **options).bind("copy", self.events)
        self.split = split({self.main: 1}, mirror={self.copy: 1}, name="scribe")

    @property
    def mirrors(self) -> Mirrors:
        mirroring = IN_PROCESS.deployed_of(self.main).plane.filters.of(CallMirroring)
        assert mirroring is not None
        return mirroring.mirrors

    @property
    def counts(self) -> MirrorCounts:
        return self.mirrors.counts().get("copy", MirrorCounts())

    async def ended(self) -> MirrorCounts:
        """Return the counts once no copy runs."""
        await until(lambda: bool(self.mirrors.counts()) and not self.mirrors.live)
        router = IN_PROCESS.deployed_of(self.copy).router
        assert (router.ongoing, router.opened, router.waiting) == (0, 0, 0)
        return self.counts


@pytest.mark.anyio
async def test_mirror_of_a_split_gets_copies_of_calls_in_one_process() -> None:
    it, records = Mirrored(), []
    IN_PROCESS.records.subscribe(records.append)
    try:
        async with started(it.main, it.copy):
            assert await it.split.handle.write() == "main"
            assert [word async for word in it.split.handle.words()] == ["0"]
            await it.split.handle.refuse()
            await until(lambda: it.counts.completed == 3)
            found = await it.ended()
    finally:
        IN_PROCESS.records.unsubscribe(records.append)
    assert (found.same, found.different_status, found.different_body) == (2, 1, 0)
    (difference,) = found.differences
    assert (difference.request, difference.primary_status, difference.mirror_status) == ("refuse", "ok", "ValueError")
    assert Counter(each.split()[0] for each in it.events) == {"main": 2, "copy": 2}
    assert it.events[0].startswith("main")
    assert {each.deployment for each in records} == {"main"}, "copies are no calls of clients"


@pytest.mark.anyio
async def test_nobody_waits_for_a_mirror_in_one_process_and_it_ends_with_the_app() -> None:
    it = Mirrored(max_ongoing_requests=1)
    async with started(it.main, it.copy):
        await it.split.handle.hold()
        await until(lambda: it.events == ["began"])
        assert await it.split.handle.write() == "main"
        await until(lambda: it.counts == MirrorCounts(dropped=1))
        assert not any(each.startswith("copy") for each in it.events), "it has no room"
        mirrors = it.mirrors
    assert it.events[-1] == "cancelled"
    assert (mirrors.counts()["copy"].failed, mirrors.live) == (1, set())


@pytest.mark.anyio
async def test_copy_whose_task_has_not_run_ends_with_the_app() -> None:
    it = Mirrored()
    async with started(it.main, it.copy):
        await it.split.handle.hold()
        mirrors = it.mirrors
        await until(lambda: bool(mirrors.live))
    assert (mirrors.counts()["copy"].failed, mirrors.live, it.events) == (1, set(), [])


@pytest.mark.anyio
async def test_mirror_that_is_not_constructed_gets_no_copy() -> None:
    it = Mirrored()
    async with started(it.main):
        assert await it.split.handle.write() == "main"
        assert (await it.ended()).dropped == 1


@pytest.mark.anyio
async def test_caller_that_leaves_does_not_end_the_copy() -> None:
    it = Mirrored()
    it.split.set_weights({it.copy: 1}, mirror={it.copy: 0, it.main: 1})
    async with started(it.main, it.copy):
        call = asyncio.ensure_future(it.split.handle.hold())
        await until(lambda: it.mirrors.counts().get("main", MirrorCounts()).completed == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert it.mirrors.counts()["main"].compared == 0


class Silent(Deployment, max_ongoing_requests=1, max_queue_wait_s=0.05):
    async def subscribe(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    async def publish(self) -> None: ...


@pytest.mark.anyio
async def test_a_call_without_room_says_that_a_stream_without_an_item_holds_the_slot() -> None:
    silent = Silent.bind()
    async with started(silent):
        items = silent.handle.subscribe()
        subscription = asyncio.ensure_future(anext(items))
        await until(lambda: IN_PROCESS.deployed_of(silent).router.ongoing == 1)
        with pytest.raises(QueueTimeout, match="1 of the calls that hold slots have not yielded their first item"):
            await silent.handle.publish()
        subscription.cancel()
        await asyncio.wait([subscription])
        await items.aclose()
