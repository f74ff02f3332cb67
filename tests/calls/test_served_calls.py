"""Calls of methods at a replica, over a socket."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from app_toolkit.errors import BadRequest, RemoteError
from app_toolkit.interfaces import Call
from app_toolkit.replica.admission.replica import ReplicaStatistics
from app_toolkit.wire import hop
from app_toolkit.wire.calls import Frame, FrameReader, decode_error, decode_value, encode_call
from tests.replica.client import SECRET, Connection, Serve, Served, field, wait_until

IDLE = ReplicaStatistics(0, 0, 0, draining=False)

SOURCE = """
    import threading
    from app_toolkit.calls.served_calls import Calls
    from app_toolkit.observability.context import ReplicaContext
    from app_toolkit.calls.hosted_object import HostedObject

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

        async def raises_cancelled(self):
            raise asyncio.CancelledError

        async def aclose(self):
            mark("closed down")

    app = Calls(HostedObject(Writer, name="writer", replica=ReplicaContext("shop", "writer", "shop/writer-1-1")))
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
    wait_until(lambda: replica.statistics() == IDLE, "no request runs")


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


def test_a_request_that_is_no_call_is_answered_with_404(wire: Wire) -> None:
    response = wire.connection.ask("/")
    assert (response.status, response.read()) == (404, b"this deployment serves method calls, not HTTP")


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
    with pytest.raises(RemoteError, match="raises_cancelled raised CancelledError, but its call was not cancelled"):
        wire.call("raises_cancelled")


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


LONG = np.arange(200_000, dtype=np.float64)


def test_a_long_body_is_followed_by_the_next_request(wire: Wire) -> None:
    for _ in range(2):
        total, _ = wire.call("total", LONG)
        assert total == LONG.sum()
        assert wire.call("double", 4) == 8


def begin(connection: Connection, length: int, secret: bytes = SECRET) -> None:
    """Send the head of a call whose body has this length."""
    connection.send_head("POST", "/", [field(secret), called("total"), ("content-length", str(length))])


def test_a_connection_is_reused_after_a_refused_call_with_a_long_body(serve: Serve) -> None:
    served = serve(SOURCE, max_ongoing_requests=1)
    wire, holding = Wire(served), served.connect()
    begin(holding, 10_000_000)
    wait_until(lambda: served.server.statistics().ongoing == 1, "the slot is taken")
    refused = wire.connection.ask("/", called("total"), method="POST", body=body("total", LONG))
    assert (refused.status, refused.getheader(hop.REFUSED.decode())) == (503, "busy")
    refused.read()
    holding.close()
    wait_until(lambda: served.server.statistics().ongoing == 0, "the slot is free")
    assert wire.call("total", LONG)[0] == LONG.sum()


def test_a_call_without_the_secret_is_refused_before_its_body(wire: Wire) -> None:
    begin(wire.connection, 1_000_000_000, secret=b"x" * len(SECRET))
    refused = wire.connection.getresponse()
    assert (refused.status, refused.getheader(hop.REFUSED.decode())) == (503, "secret")


def test_a_disconnect_during_a_long_body_leaves_nothing_behind(wire: Wire) -> None:
    begin(wire.connection, 1_000_000)
    wire.connection.send(bytes(500_000))
    wait_until(lambda: wire.served.server.statistics().ongoing == 1, "it has begun")
    wire.connection.close()
