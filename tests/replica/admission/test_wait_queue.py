"""The line at one replica, over the wire: who stands there, who is offered a slot, and how it ends."""

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
        await gate(name)
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
    served.open_gate("quick")
    answer = answer_to(ask(served, "/quick"))  # a stranger is admitted: nothing is promised to anybody
    return (statistics.ongoing, statistics.waiting_callers, answer.status) == (0, 0, 200)


class Standing:
    """A caller in the wait queue."""

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


def standing(served: Served, count: int) -> None:
    wait_until(lambda: served.server.statistics().waiting_callers == count, f"{count} wait in the queue")


def test_a_caller_is_offered_a_slot_when_one_comes_free_and_nobody_overtakes_it(served: Served) -> None:
    running = ask(served, "/first")
    entered(served, "first")
    line = Standing(served, "a")
    assert line.joined
    assert line.hears_nothing()
    served.open_gate("first")
    assert answer_to(running).status == 200
    assert line.reserved()
    stranger = answer_to(ask(served, "/stranger"))
    assert (stranger.status, stranger.getheader(hop.REFUSED.decode())) == (503, "busy")
    claiming = ask(served, "/second", "a")
    entered(served, "second")
    served.open_gate("second")
    got = claiming.getresponse()
    assert got.status == 200
    assert b"x-app-toolkit" not in got.read()
    assert not served.marked("stranger entered")
    line.leave()


def test_a_request_with_an_early_offer_waits_on_deck_and_comes_in_as_the_slot_comes_free(served: Served) -> None:
    first = ask(served, "/first")
    entered(served, "first")
    one, two = Standing(served, "a"), Standing(served, "b")
    served.open_gate("first")
    assert answer_to(first).status == 200
    assert one.reserved()
    assert two.reserved(), "early"
    second = ask(served, "/second", "a")
    entered(served, "second")
    third = ask(served, "/third", "b")
    served.open_gate("second")
    entered(served, "third")
    served.open_gate("third")
    assert [answer_to(each).status for each in (second, third)] == [200, 200]
    one.leave()
    two.leave()


def test_who_waited_on_deck_in_vain_is_refused_and_gets_the_next_offer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_queue, "PENDING_S", PENDING_S)
    first = ask(served, "/first")
    entered(served, "first")
    one, two, three = (Standing(served, name) for name in "abc")
    served.open_gate("first")
    assert answer_to(first).status == 200
    assert one.reserved()
    assert two.reserved()
    second = ask(served, "/second", "a")
    entered(served, "second")
    began = time.monotonic()
    refused = answer_to(ask(served, "/early", "b"))
    assert time.monotonic() - began >= PENDING_S * 0.9
    assert (refused.status, refused.getheader(hop.REFUSED.decode())) == (503, "busy")
    assert not served.marked("early entered")
    assert two.hears_nothing()
    assert three.hears_nothing()
    one.leave()
    standing(served, 2)
    served.open_gate("second")
    assert answer_to(second).status == 200
    assert two.reserved()
    third = ask(served, "/third", "b")
    entered(served, "third")
    served.open_gate("third")
    assert answer_to(third).status == 200
    two.leave()
    three.leave()


def test_an_offer_that_lapsed_gives_no_right(served: Served) -> None:
    first = ask(served, "/first")
    entered(served, "first")
    refused = answer_to(ask(served, "/second", "nobody"))
    assert refused.getheader(hop.REFUSED.decode()) == "busy"
    served.open_gate("first")
    assert answer_to(first).status == 200


def test_a_caller_that_does_not_come_is_put_out_of_the_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", RESERVATION_S)
    began = time.monotonic()
    stopped = Standing(served, "stopped")
    assert stopped.reserved()
    behind = Standing(served, "behind")
    assert behind.hears_nothing()
    assert not stopped.reserved(), "its line has ended"
    assert time.monotonic() - began >= RESERVATION_S * 0.9
    assert behind.reserved()
    behind.leave()


def test_a_caller_that_dies_with_an_offer_gives_it_back_at_once(served: Served) -> None:
    dying = Standing(served, "dying")
    assert dying.reserved()
    behind = Standing(served, "behind")
    assert behind.hears_nothing()
    dying.leave()
    assert behind.reserved()
    behind.leave()


def test_a_caller_that_stands_twice_has_left_its_first_place(served: Served) -> None:
    before = Standing(served, "a")
    assert before.reserved()
    again = Standing(served, "a")
    assert not before.reserved()
    assert again.reserved()
    assert served.server.statistics().waiting_callers == 1
    before.leave()
    standing(served, 1)
    again.leave()


def test_a_drain_ends_the_lines_and_refuses_who_is_on_deck(serve: Serve) -> None:
    served = serve(APP, max_ongoing_requests=1)
    first = ask(served, "/first")
    entered(served, "first")
    one, two = Standing(served, "a"), Standing(served, "b")
    served.open_gate("first")
    assert answer_to(first).status == 200
    assert one.reserved()
    assert two.reserved()
    second = ask(served, "/second", "a")
    entered(served, "second")
    on_deck = ask(served, "/third", "b")
    assert not served.server.drain(0.01)
    assert answer_to(on_deck).getheader(hop.REFUSED.decode()) in ("draining", "busy")
    assert not one.reserved()
    assert not two.reserved()
    assert Standing(served, "c").answer.getheader(hop.REFUSED.decode()) == "draining"
    served.open_gate("second")
    assert answer_to(second).status == 200
    assert served.server.drain(PATIENCE_S)
    assert served.server.statistics().waiting_callers == 0
    assert not served.marked("third entered")


def test_a_slow_body_is_refused_beyond_half_of_the_slots_and_leaves_its_reserved_slot_to_others(serve: Serve) -> None:
    served = serve(APP, max_ongoing_requests=2)
    slow, second = ask(served, "/slow", slow=True), ask(served, "/second")
    entered(served, "slow")
    entered(served, "second")
    line = Standing(served, "a")
    served.open_gate("second")
    assert answer_to(second).status == 200
    assert line.reserved()
    refused = answer_to(ask(served, "/refused", "a", slow=True))
    assert (refused.status, refused.getheader(hop.REFUSED.decode())) == (503, "slow_bodies")
    assert line.reserved()
    served.open_gate("third")
    assert answer_to(ask(served, "/third", "a")).status == 200
    line.leave()
    standing(served, 0)  # otherwise the caller is offered the slots that the next lines free
    served.open_gate("slow")
    assert answer_to(slow).status == 200
    served.open_gate("fourth")
    wait_until(lambda: served.server.statistics().ongoing == 0, "the slots are free")
    assert answer_to(ask(served, "/fourth", slow=True)).status == 200
    assert not served.marked("refused entered")


def test_a_stop_does_not_wait_for_a_line(serve: Serve) -> None:
    served = serve(APP, max_ongoing_requests=1)
    line = Standing(served, "a")
    began = time.monotonic()
    assert served.server.stop(20)
    assert time.monotonic() - began < 10
    assert line.reserved()
    assert not line.reserved()


def test_a_websocket_that_claims_an_offer_takes_no_slot(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", RESERVATION_S)
    one = Standing(served, "a")
    assert one.reserved()
    two = Standing(served, "b")
    redeem = served.connect()
    upgrade = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
    key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    redeem.send_head("GET", "/ws", [field(), (hop.REDEEM.decode(), "a"), *upgrade, key])
    assert redeem.getresponse().status == 101
    assert two.reserved()
    one.leave()
    two.leave()


def test_nobody_stands_in_line_without_the_secret(served: Served) -> None:
    line = Standing(served, "a", field(b"a-wrong-one"))
    assert line.answer.getheader(hop.REFUSED.decode()) == "secret"
    served.open_gate("unmarked")
    connection = served.connect()
    connection.send_head("GET", "/unmarked", [(hop.QUEUE.decode(), "a")])  # on a Unix socket: a request like any other
    assert answer_to(connection).status == 200
    assert served.server.statistics().waiting_callers == 0


@pytest.mark.anyio
@pytest.mark.parametrize("in_time", [True, False], ids=["before-its-slot", "with-its-slot"])
async def test_a_request_that_is_cancelled_on_deck_leaves_its_slot_to_the_next(in_time: bool) -> None:
    entered: list[str] = []
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])
        await go.wait()

    async def nothing(_: Message | None = None) -> Message:
        return {}

    gate = Replica(app, name="r", max_ongoing_requests=1)

    def request(path: str, caller: str | None) -> asyncio.Task[None]:
        return asyncio.create_task(gate.admit({"type": "http", "path": path}, nothing, nothing, caller=caller))

    first = request("first", None)
    await asyncio.sleep(0)
    heard: list[str] = []
    to_cancel: list[asyncio.Task[None]] = []

    def reserved(name: str) -> None:
        heard.append(name)
        if to_cancel:  # its slot has been given to it this moment, and it has not run since
            to_cancel.pop().cancel()

    positions = [gate.wait_queue.join(name, partial(reserved, name), partial(heard.append, "end")) for name in "ab"]
    go.set()
    await first
    go.clear()
    assert heard == ["a", "b"]
    second = request("second", "a")
    await asyncio.sleep(0)
    on_deck = request("third", "b")
    await asyncio.sleep(0)
    assert entered == ["first", "second"]
    if in_time:
        on_deck.cancel()
    else:
        to_cancel.append(on_deck)
    go.set()
    await second
    with pytest.raises(asyncio.CancelledError):
        await on_deck
    assert entered == ["first", "second"]
    assert gate.statistics().ongoing == 0
    assert heard[2:] == ["a", "b"]
    for position in positions:
        position.leave()
    assert gate.wait_queue.admits_unreserved
    assert gate.statistics() == ReplicaStatistics(0, 0, 0, draining=False)


class Asking:
    """The server's end of one request, which knows whether its caller has disconnected."""

    def __init__(self, gate: Replica, path: str, caller: str) -> None:
        self.disconnected = False
        self.sent: list[Message] = []
        headers = [field(), (hop.REDEEM, caller.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(_bytes(n), _bytes(v)) for n, v in headers]}
        self.task = asyncio.create_task(gate(scope, self.receive, self.send))

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.anyio
async def test_a_request_whose_caller_disconnects_on_deck_is_not_run_and_leaves_its_slot_to_the_next() -> None:
    entered: list[str] = []
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])
        await go.wait()

    gate = Replica(app, name="r", max_ongoing_requests=1, secret=SECRET)
    heard: list[str] = []
    positions = [gate.wait_queue.join(name, partial(heard.append, name), partial(heard.append, "end")) for name in "ab"]
    assert heard == ["a"]
    first = Asking(gate, "/first", "a")
    await until(lambda: entered == ["/first"])
    go.set()
    await first.task
    go.clear()
    assert heard == ["a", "a", "b"], "the last one early"
    second, third = Asking(gate, "/second", "a"), Asking(gate, "/third", "b")
    await until(lambda: entered == ["/first", "/second"])
    third.disconnected = True
    go.set()
    await second.task
    await third.task
    assert entered == ["/first", "/second"]
    assert third.sent == []
    assert gate.statistics().ongoing == 0
    assert sorted(heard[3:]) == ["a", "b"], "its slot is offered again"
    for position in positions:
        position.leave()
