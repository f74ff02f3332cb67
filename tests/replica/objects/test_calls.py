"""Calls of methods at a replica, in one process and over a socket."""

import asyncio
import http.client
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from app_toolkit.errors import BadRequest, RemoteError, ReplicaBusy, StartupError
from app_toolkit.interfaces import Call
from app_toolkit.observability.context import ReplicaContext, deadline, replica_context, request_id
from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.replica.objects.calls import Calls
from app_toolkit.replica.objects.hosted_object import HostedObject
from app_toolkit.transport import hop
from app_toolkit.transport.calls import Frame, FrameReader, decode_error, decode_value, encode_call
from app_toolkit.transport.pool import PooledConnection, ResponseHead, connect
from app_toolkit.types import Message, ReplicaId, Scope
from tests.patience import PATIENCE_S
from tests.replica.client import SECRET, Serve, Served, dial, field, wait_until

NOBODY = ReplicaStatistics(0, 0, 0, draining=False)
HERE = ReplicaContext("shop", "writer", ReplicaId("shop/writer-1-1"))


class Model:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.go = threading.Event()

    async def double(self, number: int) -> int:
        return 2 * number

    def triple(self, number: int) -> int:
        return 3 * number

    async def where(self) -> tuple[str | None, float | None, ReplicaContext]:
        return request_id(), deadline(), replica_context()

    async def tell(self, count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            self.events.append("tell ended")

    def each(self, count: int) -> Iterator[int]:
        try:
            yield from range(count)
        finally:
            self.events.append("gave each")

    async def fail(self) -> None:
        raise KeyError("nothing")

    async def fail_later(self) -> AsyncIterator[int]:
        yield 1
        raise KeyError("nothing")

    async def wait(self) -> None:
        self.events.append("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise

    async def wait_after(self) -> AsyncIterator[int]:
        yield 1
        await self.wait()

    def work(self) -> None:
        self.events.append("began")
        assert self.go.wait(PATIENCE_S)
        self.events.append("ended")

    async def raises_cancelled(self) -> None:
        raise asyncio.CancelledError


class Outcome:
    """Keeps what a reply is given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def value(self, value: Any) -> None:
        self.given.append(("value", value))

    async def item(self, item: Any) -> None:
        self.given.append(("item", item))
        await asyncio.sleep(0)

    def end(self) -> None:
        self.given.append("end")

    def error(self, error: Exception) -> None:
        self.given.append(error)


class Local:
    """A replica in this process, and its callers."""

    def __init__(self, slots: int, make: Callable[[], object] | None) -> None:
        self.model = Model()
        self.hosted = HostedObject(make or (lambda: self.model), name="writer", replica=HERE)
        self.replica = Replica(Calls(self.hosted), name="writer", max_ongoing_requests=slots)
        self.sent: list[Message] = []

    async def call(self, method: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        return await self.ask(Call(method, args, kwargs), timeout)

    async def ask(self, call: Call | None, timeout: float | None = None) -> Any:
        outcome = Outcome()
        ours = {"request_id": "req-7"} if call is None else {"request_id": "req-7", "call": call, "result": outcome}
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": [],
            "extensions": {"app_toolkit": ours},
        }

        async def receive() -> Message:
            return await asyncio.Event().wait()  # type: ignore[return-value]

        async def send(message: Message) -> None:
            self.sent.append(message)

        await self.replica.admit(scope, receive, send, timeout)
        return outcome.given

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - threads are waited for, too
                await asyncio.sleep(0)


@asynccontextmanager
async def local(slots: int = 10, make: Callable[[], object] | None = None) -> AsyncIterator[Local]:
    here = Local(slots, make)
    await here.hosted.start()
    yield here
    assert here.replica.statistics() == NOBODY
    await here.hosted.aclose()


# In one process


@pytest.mark.anyio
async def test_every_kind_of_method_can_be_called() -> None:
    async with local() as here:
        assert await here.call("double", 4) == [("value", 8)]
        assert await here.call("triple", number=4) == [("value", 12)]
        assert await here.call("tell", 2) == [("item", 0), ("item", 1), "end"]
        assert await here.call("each", 2) == [("item", 0), ("item", 1), "end"]
        assert await here.call("tell", 0) == ["end"]
        kinds = [message["type"] for message in here.sent]
        assert kinds == ["http.response.start", "http.response.body"] * 5
        assert {message["status"] for message in here.sent if "status" in message} == {200}


@pytest.mark.anyio
async def test_the_exception_of_a_method_is_its_result() -> None:
    async with local() as here:
        (error,) = await here.call("fail")
        assert type(error) is KeyError
        item, error = await here.call("fail_later")
        assert (item, type(error)) == (("item", 1), KeyError)
        (error,) = await here.call("double")
        assert str(error) == "Model.double() missing 1 required positional argument: 'number'"
        (error,) = await here.call("_hidden")
        assert str(error) == "Model._hidden is private"


@pytest.mark.anyio
async def test_a_method_that_cancels_itself_does_not_cancel_its_caller() -> None:
    async with local() as here:
        (error,) = await here.call("raises_cancelled")
        assert type(error) is RemoteError
        assert str(error) == "raises_cancelled raised CancelledError, but its call was not cancelled"


@pytest.mark.anyio
async def test_a_method_has_its_request_id_deadline_and_replica_during_the_call() -> None:
    async with local() as here:
        before = time.monotonic()
        ((_, (name, due, replica)),) = await here.call("where", timeout=60)
        assert (name, replica) == ("req-7", HERE)
        assert before + 60 <= due <= time.monotonic() + 60
        assert (request_id(), deadline()) == (None, None)
        ((_, (_, due, _)),) = await here.call("where")
        assert due is None
        with pytest.raises(RuntimeError):
            replica_context()


@pytest.mark.anyio
async def test_a_call_holds_a_slot_and_the_next_one_is_refused() -> None:
    async with local(slots=1) as here:
        task = asyncio.create_task(here.call("wait"))
        await here.until(lambda: here.model.events)
        with pytest.raises(ReplicaBusy):
            await here.call("double", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert here.model.events == ["began", "cancelled"]


@pytest.mark.anyio
async def test_the_deadline_of_a_call_is_answered_and_cancels_its_method() -> None:
    async with local() as here:
        assert await here.call("wait", timeout=0.5) == []
        assert here.sent[0]["status"] == 504
        assert here.model.events == ["began", "cancelled"]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(2))
async def test_calls_cancelled_at_random_leave_nothing_running(seed: int) -> None:
    world = random.Random(seed)

    class Crowded:
        def __init__(self) -> None:
            self.began: list[None] = []
            self.ended: list[None] = []

        def __enter__(self) -> None:
            self.began.append(None)

        def __exit__(self, *error: object) -> None:
            self.ended.append(None)

        async def ask(self, turns: int) -> None:
            with self:
                for _ in range(turns):
                    await asyncio.sleep(0)

        async def tell(self, turns: int) -> AsyncIterator[int]:
            with self:
                for turn in range(turns):
                    yield turn

        def work(self, turns: int) -> None:
            with self:
                time.sleep(turns / 50_000)

        def each(self, turns: int) -> Iterator[int]:
            with self:
                yield from range(turns)

    crowd = Crowded()
    async with local(slots=400, make=lambda: crowd) as here:
        calls = [
            asyncio.create_task(here.call(world.choice(("ask", "tell", "work", "each")), world.randrange(40)))
            for _ in range(200)
        ]
        world.shuffle(calls)
        for call in calls:
            if world.random() < 0.7:
                call.cancel()
            for _ in range(world.randrange(3)):
                await asyncio.sleep(0)
        await asyncio.wait(calls)
        assert here.replica.statistics() == NOBODY
        assert 0 < len(crowd.began) == len(crowd.ended)
        assert any(call.cancelled() for call in calls)
        assert all(call.cancelled() or call.result() for call in calls)


@pytest.mark.anyio
async def test_a_request_that_is_no_call_is_answered_with_404() -> None:
    async with local() as here:
        await here.ask(None)
        start, body = here.sent
        assert start["status"] == 404
        assert body["body"] == b"this deployment serves method calls, not HTTP"


# Over the wire

SOURCE = """
    import threading
    import numpy as np
    from app_toolkit.replica.objects.calls import Calls
    from app_toolkit.observability.context import ReplicaContext
    from app_toolkit.replica.objects.hosted_object import HostedObject

    class Writer:
        async def double(self, number):
            return 2 * number

        def triple(self, number):
            return 3 * number

        async def größe(self, text):
            return len(text)

        async def tell(self, count):
            for number in range(count):
                yield number

        def each(self, count):
            yield from range(count)

        async def fail(self):
            raise KeyError("nothing")

        async def fail_later(self):
            yield 1
            raise KeyError("nothing")

        async def locked(self):
            return threading.Lock()

        async def yields_locked(self):
            try:
                yield 1
                yield threading.Lock()
            finally:
                mark("closed")

        async def wait(self):
            mark("began")
            try:
                await hold_until("go")
            except asyncio.CancelledError:
                mark("cancelled")
                raise

        async def wait_after(self):
            yield 1
            await self.wait()

        async def total(self, numbers):
            return numbers.sum(), numbers.flags.writeable

        async def grow(self, size):
            return np.arange(size, dtype=np.float64)

        async def aclose(self):
            mark("closed down")

    class Broken:
        def __init__(self):
            raise ValueError("no such file")

    app = Calls(HostedObject(Writer, name="writer", replica=ReplicaContext("shop", "writer", "shop/writer-1-1")))
    broken = Calls(HostedObject(Broken, name="broken"))
"""


def called(method: str) -> tuple[str, bytes]:
    return hop.CALL.decode(), method.encode()


def body(method: str, *args: Any, **kwargs: Any) -> bytes:
    return b"".join(encode_call(Call(method, args, kwargs)))


class Wire:
    """One replica that serves calls, and a caller's connection to it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.connection = served.connect()

    def frames(self, method: str, *args: Any, timeout_ms: int | None = None, **kwargs: Any) -> list[Frame]:
        answer = self.connection.ask(
            "/", called(method), hop=field(timeout_ms=timeout_ms), method="POST", body=body(method, *args, **kwargs)
        )
        assert answer.status == 200
        return FrameReader().feed(answer.read())

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        (frame,) = self.frames(method, *args, **kwargs)
        if frame.kind == "error":
            raise decode_error(frame)
        assert frame.kind == "value"
        return decode_value(frame)


@pytest.fixture
def wire(serve: Serve) -> Iterator[Wire]:
    wire = Wire(serve(SOURCE))
    yield wire
    replica = wire.served.server.replica
    assert replica is not None
    wait_until(lambda: replica.statistics() == NOBODY, "nobody is inside")


def test_calls_are_answered_over_one_connection(wire: Wire) -> None:
    assert wire.call("double", 4) == 8
    assert wire.call("triple", number=4) == 12
    assert wire.call("größe", "four") == 4
    for method in ("tell", "each"):
        *items, end = wire.frames(method, 100)
        assert [decode_value(frame) for frame in items] == list(range(100))
        assert end.kind == "end"
    (end,) = wire.frames("tell", 0)
    assert end.kind == "end"


def test_the_lifespan_is_the_life_of_the_object(serve: Serve) -> None:
    wire = Wire(serve(SOURCE))
    assert wire.call("double", 1) == 2
    assert wire.served.server.stop(5)
    assert wire.served.marked("closed down")


def test_an_object_that_cannot_be_made_tells_why_its_replica_does_not_come_up(serve: Serve) -> None:
    with pytest.raises(StartupError, match=r"broken did not start: ValueError: no such file\nTraceback") as caught:
        serve(SOURCE, attribute="broken")
    assert 'raise ValueError("no such file")' in str(caught.value)


def test_errors_arrive_as_themselves_with_the_traceback_of_the_replica(wire: Wire) -> None:
    with pytest.raises(KeyError, match="nothing") as caught:
        wire.call("fail")
    (note,) = caught.value.__notes__
    assert 'raise KeyError("nothing")' in note
    assert "app_toolkit/replica" not in note
    item, error = wire.frames("fail_later")
    assert (decode_value(item), type(decode_error(error))) == (1, KeyError)
    with pytest.raises(AttributeError, match=r"Writer\.__class__ is private"):
        wire.call("__class__")


def test_a_result_that_cannot_be_sent_is_a_named_error(wire: Wire) -> None:
    with pytest.raises(TypeError, match=r"^the result of the method cannot be sent: TypeError: .+ '_thread.lock'"):
        wire.call("locked")
    item, error = wire.frames("yields_locked")
    assert decode_value(item) == 1
    assert str(decode_error(error)).startswith("an item of the method cannot be sent")
    assert wire.served.marked("closed")


@pytest.mark.parametrize("method", ["wait", "wait_after"])
def test_a_call_is_cancelled_when_its_caller_disconnects(wire: Wire, method: str) -> None:
    arguments = body(method)
    wire.connection.send_head("POST", "/", [field(), called(method), ("content-length", str(len(arguments)))])
    wire.connection.send(arguments)
    wait_until(lambda: wire.served.marked("began"), "it runs")
    wire.connection.close()
    wait_until(lambda: wire.served.marked("cancelled"), "the method is cancelled")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "the body of a call of double must be one frame of arguments, followed by values"),
        (body("double", 4)[:-1], "the body of a call of double ends in the middle of a frame"),
        (body("double", 4) * 2, "the body of a call of double must be one frame of arguments, followed by values"),
        (b"\xff" * 32, "the arguments of double cannot be decoded: unknown frame kind 255"),
    ],
)
def test_a_body_that_is_no_call_is_refused_and_the_connection_goes_on(wire: Wire, sent: bytes, said: str) -> None:
    answer = wire.connection.ask("/", called("double"), method="POST", body=sent)
    (frame,) = FrameReader().feed(answer.read())
    error = decode_error(frame)
    assert type(error) is BadRequest
    assert str(error).startswith(said)
    assert wire.call("double", 4) == 8


@pytest.mark.parametrize(("known", "status"), [(None, 404), (field(b"wrong"), 503)])
def test_nothing_is_unpickled_without_the_secret(wire: Wire, known: tuple[str, bytes] | None, status: int) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return exec, (f"open({str(wire.served.folder / 'sprung')!r}, 'w').close()",)

    trap = body("double", Trap())
    assert wire.connection.ask("/", called("double"), hop=known, method="POST", body=trap).status == status
    assert not wire.served.marked("sprung")
    with pytest.raises(TypeError):
        Wire(wire.served).call("double", Trap())
    assert wire.served.marked("sprung"), "the trap works"


class ReadStream:
    """A caller's side of one exchange over a pooled connection."""

    def __init__(self) -> None:
        self.frames = FrameReader()
        self.found: list[Frame] = []
        self.reusable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def informed(self, answer: ResponseHead) -> None: ...

    def response_started(self, answer: ResponseHead) -> None:
        assert answer.status == 200

    def received(self, data: bytes) -> None:
        self.found += self.frames.feed(data)

    def ended(self, reusable: bool) -> None:
        self.reusable.set_result(reusable)

    def lost(self, error: Exception) -> None:
        self.reusable.set_exception(error)

    def writing_paused(self, paused: bool) -> None: ...


@pytest.mark.anyio
async def test_large_arrays_and_streams_pass_a_pooled_connection_again_and_again(serve: Serve) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    numbers = np.arange(500_000, dtype=np.float64)
    _, connection = await connect(served.address, lambda: PooledConnection(served.address, lambda connection: None))

    async def ask(method: str, *args: Any) -> list[Frame]:
        pieces = encode_call(Call(method, args, {}))
        reading = ReadStream()
        connection.begin(reading, decode=True)
        head = b"POST / HTTP/1.1\r\n%b: %b\r\n%b: %b\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
        name, value = field(SECRET)
        connection.write(head % (name.encode(), value, hop.CALL, method.encode(), sum(map(len, pieces))))
        connection.write_all(pieces)  # type: ignore[arg-type]
        assert await reading.reusable
        return reading.found

    for _ in range(3):
        (total,) = await ask("total", numbers)
        assert decode_value(total)[0] == numbers.sum()
        (grown,) = await ask("grow", numbers.size)
        found = decode_value(grown)
        assert np.array_equal(found, numbers)
        assert found.flags.aligned
        assert np.shares_memory(found, np.frombuffer(grown.buffers[0]))
        *items, end = await ask("tell", 500)
        assert [decode_value(frame) for frame in items] == list(range(500))
        assert end.kind == "end"
    connection.close()
    await asyncio.to_thread(served.close)


class Raw:
    """A caller's connection, byte by byte."""

    def __init__(self, served: Served) -> None:
        self.socket = dial(served.address)

    def head(self, method: str, length: int, secret: bytes = SECRET) -> None:
        name, value = field(secret)
        lines = (
            b"POST / HTTP/1.1",
            b"%b: %b" % (name.encode(), value),
            b"%b: %b" % (hop.CALL, method.encode()),
            b"host: a",
            b"content-length: %d" % length,
        )
        self.socket.sendall(b"\r\n".join(lines) + b"\r\n\r\n")

    def ask(self, method: str, *args: Any) -> http.client.HTTPResponse:
        whole = body(method, *args)
        self.head(method, len(whole))
        self.socket.sendall(whole)
        return self.answer()

    def answer(self) -> http.client.HTTPResponse:
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        return answer


LONG = np.arange(200_000, dtype=np.float64)


def test_a_long_body_is_followed_by_the_next_request(wire: Wire) -> None:
    raw = Raw(wire.served)
    with raw.socket:
        for _ in range(2):
            (frame,) = FrameReader().feed(raw.ask("total", LONG).read())
            total, *_ = decode_value(frame)
            assert total == LONG.sum()
            (frame,) = FrameReader().feed(raw.ask("double", 4).read())
            assert decode_value(frame) == 8


def test_a_connection_is_reused_after_a_refused_call_with_a_long_body(serve: Serve) -> None:
    served = serve(SOURCE, max_ongoing_requests=1)
    holding, raw = Raw(served), Raw(served)
    with holding.socket, raw.socket:
        holding.head("total", 10_000_000)
        wait_until(lambda: served.server.statistics().ongoing == 1, "the slot is taken")
        answer = raw.ask("total", LONG)
        assert answer.status == 503
        assert answer.getheader(hop.REFUSED.decode()) == "busy"
        answer.read()
        holding.socket.close()
        wait_until(lambda: served.server.statistics().ongoing == 0, "the slot is free")
        (frame,) = FrameReader().feed(raw.ask("total", LONG).read())
        assert decode_value(frame)[0] == LONG.sum()


def test_a_call_without_the_secret_is_refused_before_its_body(wire: Wire) -> None:
    raw = Raw(wire.served)
    with raw.socket:
        raw.head("total", 1_000_000_000, secret=b"x" * len(SECRET))
        answer = raw.answer()
        assert answer.status == 503
        assert answer.getheader(hop.REFUSED.decode()) == "secret"


def test_a_disconnect_during_a_long_body_leaves_nothing_behind(wire: Wire) -> None:
    raw = Raw(wire.served)
    with raw.socket:
        raw.head("total", 10_000_000)
        raw.socket.sendall(bytes(5_000_000))
        wait_until(lambda: wire.served.server.statistics().ongoing == 1, "it has begun")
