"""The wait queue of one replica over a socket: positions, reservations and their ends."""

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest

from app_toolkit.core import admission
from app_toolkit.core.admission import RESERVATION_S
from app_toolkit.replica.admission import wait_queue
from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.replica.admission.wait_queue import PENDING_S
from app_toolkit.transport import hop
from app_toolkit.types import Message, Receive, Scope, Send
from tests.patience import PATIENCE_S, until
from tests.replica.client import SECRET, Connection, Serve, Served, field, wait_until

APP = """
    app = FastAPI()

    @app.get("/{name}")
    async def held(name: str, request: Request):
        mark(f"{name} entered")
        await hold_until(name)
        return [key for key in request.headers]

    @app.websocket("/ws")
    async def talk(ws: WebSocket):
        await ws.accept()
        await ws.close()
"""


@pytest.fixture(autouse=True)
def _nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", PATIENCE_S)
    monkeypatch.setattr(wait_queue, "PENDING_S", PATIENCE_S)


@pytest.fixture
def served(serve: Serve) -> Iterator[Served]:
    served = serve(APP, max_ongoing_requests=1)
    yield served
    wait_until(lambda: settled(served), "nobody is inside, is in the queue, or has a reservation")


def settled(served: Served) -> bool:
    statistics = served.server.statistics()
    served.release("quick")
    answer = answer_to(ask(served, "/quick"))  # a request without a reservation is admitted
    return (statistics.ongoing, statistics.waiting_callers, answer.status) == (0, 0, 200)


class WaitingCaller:
    """A caller in the wait queue of the replica."""

    def __init__(self, served: Served, name: str, secret: tuple[str, bytes] | None = None) -> None:
        self.name = name
        self.served = served
        self.connection = served.connect()
        self.connection.send_head("GET", "/", [secret or field(), (hop.QUEUE.decode(), name)])
        self.answer = self.connection.getresponse()

    @property
    def joined(self) -> bool:
        return self.answer.status == 200 and self.answer.getheader(hop.REFUSED.decode()) is None

    def reserved(self) -> bool:
        """Wait for a reservation. False: the position has ended."""
        return self.answer.read(1) == b"."

    def hears_nothing(self) -> bool:
        sock = self.connection.sock
        sock.settimeout(0.05)
        try:
            return not sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            sock.settimeout(PATIENCE_S)

    def leave(self) -> None:
        self.answer.close()
        self.connection.close()


def ask(served: Served, path: str, caller: str | None = None, *, slow: bool = False) -> Connection:
    """Send a request, and do not wait for its answer. `slow`: it is marked as one with a slow body."""
    connection = served.connect()
    redeem = [] if caller is None else [(hop.REDEEM.decode(), caller)]
    mark = [(hop.SLOW_BODY.decode(), "1")] if slow else []
    connection.send_head("GET", path, [field(), *redeem, *mark])
    return connection


def answer_to(connection: Connection) -> http.client.HTTPResponse:
    answer = connection.getresponse()
    answer.read()
    return answer


def entered(served: Served, name: str) -> None:
    wait_until(lambda: served.marked(f"{name} entered"), f"{name} entered")


def wait_for_callers(served: Served, count: int) -> None:
    wait_until(lambda: served.server.statistics().waiting_callers == count, f"{count} wait in the queue")


def reserved_early(served: Served, *names: str) -> tuple[list["WaitingCaller"], Connection]:
    """Callers that wait, of which the first two have a reservation, and the request of the first one, which runs."""
    first = ask(served, "/first")
    entered(served, "first")
    callers = [WaitingCaller(served, name) for name in names]
    served.release("first")
    assert answer_to(first).status == 200
    assert callers[0].reserved()
    assert callers[1].reserved(), "early"
    second = ask(served, "/second", names[0])
    entered(served, "second")
    return callers, second


def test_a_waiting_caller_gets_the_next_free_slot_before_other_requests(served: Served) -> None:
    running = ask(served, "/first")
    entered(served, "first")
    waiting = WaitingCaller(served, "a")
    assert waiting.joined
    assert waiting.hears_nothing()
    served.release("first")
    assert answer_to(running).status == 200
    assert waiting.reserved()
    stranger = answer_to(ask(served, "/stranger"))
    assert (stranger.status, stranger.getheader(hop.REFUSED.decode())) == (503, "busy")
    claiming = ask(served, "/second", "a")
    entered(served, "second")
    served.release("second")
    got = claiming.getresponse()
    assert got.status == 200
    assert b"x-app-toolkit" not in got.read()
    assert not served.marked("stranger entered")
    waiting.leave()


def test_a_request_with_an_early_reservation_waits_until_the_slot_is_free(served: Served) -> None:
    (one, two), second = reserved_early(served, "a", "b")
    third = ask(served, "/third", "b")
    served.release("second")
    entered(served, "third")
    served.release("third")
    assert [answer_to(each).status for each in (second, third)] == [200, 200]
    one.leave()
    two.leave()


def test_an_early_request_is_refused_after_a_wait_and_its_caller_gets_the_next_reservation(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_queue, "PENDING_S", PENDING_S)
    (one, two, three), second = reserved_early(served, "a", "b", "c")
    began = time.monotonic()
    refused = answer_to(ask(served, "/early", "b"))
    assert time.monotonic() - began >= PENDING_S * 0.9
    assert (refused.status, refused.getheader(hop.REFUSED.decode())) == (503, "busy")
    assert not served.marked("early entered")
    assert two.hears_nothing()
    assert three.hears_nothing()
    one.leave()
    wait_for_callers(served, 2)
    served.release("second")
    assert answer_to(second).status == 200
    assert two.reserved()
    third = ask(served, "/third", "b")
    entered(served, "third")
    served.release("third")
    assert answer_to(third).status == 200
    two.leave()
    three.leave()


def test_a_request_without_a_reservation_is_refused_by_a_full_replica(served: Served) -> None:
    first = ask(served, "/first")
    entered(served, "first")
    refused = answer_to(ask(served, "/second", "nobody"))
    assert refused.getheader(hop.REFUSED.decode()) == "busy"
    served.release("first")
    assert answer_to(first).status == 200


def test_a_caller_that_does_not_redeem_its_reservation_leaves_the_queue(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", RESERVATION_S)
    began = time.monotonic()
    stopped = WaitingCaller(served, "stopped")
    assert stopped.reserved()
    behind = WaitingCaller(served, "behind")
    assert behind.hears_nothing()
    assert not stopped.reserved(), "its position has ended"
    assert time.monotonic() - began >= RESERVATION_S * 0.9
    assert behind.reserved()
    behind.leave()


def test_a_reservation_is_free_at_once_if_its_caller_dies(served: Served) -> None:
    dying = WaitingCaller(served, "dying")
    assert dying.reserved()
    behind = WaitingCaller(served, "behind")
    assert behind.hears_nothing()
    dying.leave()
    assert behind.reserved()
    behind.leave()


def test_a_caller_that_joins_twice_loses_its_first_position(served: Served) -> None:
    before = WaitingCaller(served, "a")
    assert before.reserved()
    again = WaitingCaller(served, "a")
    assert not before.reserved()
    assert again.reserved()
    assert served.server.statistics().waiting_callers == 1
    before.leave()
    wait_for_callers(served, 1)
    again.leave()


def test_a_drain_closes_the_queue_and_refuses_early_requests(serve: Serve) -> None:
    served = serve(APP, max_ongoing_requests=1)
    (one, two), second = reserved_early(served, "a", "b")
    early = ask(served, "/third", "b")
    assert not served.server.drain(0.01)
    assert answer_to(early).getheader(hop.REFUSED.decode()) in ("draining", "busy")
    assert not one.reserved()
    assert not two.reserved()
    assert WaitingCaller(served, "c").answer.getheader(hop.REFUSED.decode()) == "draining"
    served.release("second")
    assert answer_to(second).status == 200
    assert served.server.drain(PATIENCE_S)
    assert served.server.statistics().waiting_callers == 0
    assert not served.marked("third entered")


def test_a_slow_body_is_refused_beyond_half_of_the_slots_and_leaves_its_reserved_slot_to_others(serve: Serve) -> None:
    served = serve(APP, max_ongoing_requests=2)
    slow, second = ask(served, "/slow", slow=True), ask(served, "/second")
    entered(served, "slow")
    entered(served, "second")
    waiting = WaitingCaller(served, "a")
    served.release("second")
    assert answer_to(second).status == 200
    assert waiting.reserved()
    refused = answer_to(ask(served, "/refused", "a", slow=True))
    assert (refused.status, refused.getheader(hop.REFUSED.decode())) == (503, "slow_bodies")
    assert waiting.reserved()
    served.release("third")
    assert answer_to(ask(served, "/third", "a")).status == 200
    waiting.leave()
    wait_for_callers(served, 0)  # otherwise the caller is offered the slots that become free
    served.release("slow")
    assert answer_to(slow).status == 200
    served.release("fourth")
    wait_until(lambda: served.server.statistics().ongoing == 0, "the slots are free")
    assert answer_to(ask(served, "/fourth", slow=True)).status == 200
    assert not served.marked("refused entered")


def test_a_stop_does_not_wait_for_the_queue(serve: Serve) -> None:
    served = serve(APP, max_ongoing_requests=1)
    waiting = WaitingCaller(served, "a")
    began = time.monotonic()
    assert served.server.stop(20)
    assert time.monotonic() - began < 10
    assert waiting.reserved()
    assert not waiting.reserved()


def test_a_websocket_that_redeems_a_reservation_takes_no_slot(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", RESERVATION_S)
    one = WaitingCaller(served, "a")
    assert one.reserved()
    two = WaitingCaller(served, "b")
    redeem = served.connect()
    upgrade = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
    key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    redeem.send_head("GET", "/ws", [field(), (hop.REDEEM.decode(), "a"), *upgrade, key])
    assert redeem.getresponse().status == 101
    assert two.reserved()
    one.leave()
    two.leave()


def test_a_caller_cannot_join_the_queue_without_the_secret(served: Served) -> None:
    waiting = WaitingCaller(served, "a", field(b"a-wrong-one"))
    assert waiting.answer.getheader(hop.REFUSED.decode()) == "secret"
    served.release("unmarked")
    connection = served.connect()
    connection.send_head("GET", "/unmarked", [(hop.QUEUE.decode(), "a")])  # on a Unix socket: a request like any other
    assert answer_to(connection).status == 200
    assert served.server.statistics().waiting_callers == 0


@pytest.mark.anyio
@pytest.mark.parametrize("in_time", [True, False], ids=["before-its-slot", "with-its-slot"])
async def test_an_early_request_that_is_cancelled_leaves_its_slot_to_the_next(in_time: bool) -> None:
    entered: list[str] = []
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])
        await go.wait()

    async def nothing(_: Message | None = None) -> Message:
        return {}

    replica = Replica(app, name="r", max_ongoing_requests=1)

    def request(path: str, caller: str | None) -> asyncio.Task[None]:
        return asyncio.create_task(replica.admit({"type": "http", "path": path}, nothing, nothing, caller=caller))

    first = request("first", None)
    await asyncio.sleep(0)
    heard: list[str] = []
    to_cancel: list[asyncio.Task[None]] = []

    def reserved(name: str) -> None:
        heard.append(name)
        if to_cancel:  # its slot has been given to it this moment, and it has not run since
            to_cancel.pop().cancel()

    positions = [replica.wait_queue.join(name, partial(reserved, name), partial(heard.append, "end")) for name in "ab"]
    go.set()
    await first
    go.clear()
    assert heard == ["a", "b"]
    second = request("second", "a")
    await asyncio.sleep(0)
    early = request("third", "b")
    await asyncio.sleep(0)
    assert entered == ["first", "second"]
    if in_time:
        early.cancel()
    else:
        to_cancel.append(early)
    go.set()
    await second
    with pytest.raises(asyncio.CancelledError):
        await early
    assert entered == ["first", "second"]
    assert replica.statistics().ongoing == 0
    assert heard[2:] == ["a", "b"]
    for position in positions:
        position.leave()
    assert replica.wait_queue.admits_unreserved
    assert replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False)


class Asking:
    """The server's end of one request, which knows whether its caller has disconnected."""

    def __init__(self, replica: Replica, path: str, caller: str) -> None:
        self.disconnected = False
        self.sent: list[Message] = []
        headers = [field(), (hop.REDEEM, caller.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(_bytes(n), _bytes(v)) for n, v in headers]}
        self.task = asyncio.create_task(replica(scope, self.receive, self.send))

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.anyio
async def test_an_early_request_whose_caller_disconnects_leaves_its_slot_to_the_next() -> None:
    entered: list[str] = []
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])
        await go.wait()

    replica = Replica(app, name="r", max_ongoing_requests=1, secret=SECRET)
    heard: list[str] = []
    positions = [
        replica.wait_queue.join(name, partial(heard.append, name), partial(heard.append, "end")) for name in "ab"
    ]
    assert heard == ["a"]
    first = Asking(replica, "/first", "a")
    await until(lambda: entered == ["/first"])
    go.set()
    await first.task
    go.clear()
    assert heard == ["a", "a", "b"], "the last one early"
    second, third = Asking(replica, "/second", "a"), Asking(replica, "/third", "b")
    await until(lambda: entered == ["/first", "/second"])
    third.disconnected = True
    go.set()
    await second.task
    await third.task
    assert entered == ["/first", "/second"]
    assert third.sent == []
    assert replica.statistics().ongoing == 0
    assert sorted(heard[3:]) == ["a", "b"], "its slot is offered again"
    for position in positions:
        position.leave()
