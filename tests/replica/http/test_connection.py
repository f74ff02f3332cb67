"""A connection of a caller shows an app the same as a connection of uvicorn does."""

import asyncio
import gc
import itertools
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import ref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app_toolkit.errors import ReplicaGone
from app_toolkit.observability.context import DEADLINE, TRACE
from app_toolkit.replica.http.hop_request import HIGH_WATER
from app_toolkit.types import Address, Message, Receive, Scope, Send
from app_toolkit.wire import hop
from app_toolkit.wire.pool import PooledConnection, ResponseHead
from tests.patience import until
from tests.replica.talking import HANDSHAKE, Talking, Wire, get, head, post

pytestmark = pytest.mark.anyio

USERS: ContextVar[str] = ContextVar("users", default="")
"""What an app may set."""


@dataclass
class Script:
    """An app that does as it is told, and notes what it met."""

    steps: Sequence[tuple[Any, ...]]
    met: list[Any] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.met.append(dict(scope))
        for kind, *said in self.steps:
            if kind == "receive":
                self.met.append(await receive())
            elif kind == "raise":
                raise said[0]
            else:
                message: Message = {"type": f"http.response.{kind}", **said[0]}
                try:
                    await send(message)
                except Exception as error:
                    self.met.append(type(error))


async def outcome(script: Script, *pieces: bytes, ours: bool = True) -> tuple[list[Any], bytes, str]:
    """What the app met, what its caller was told, and how the connection ended."""
    script = Script(script.steps)
    talking = Talking(script, ours=ours)
    talking.say(*pieces)
    await talking.settle()
    return script.met, talking.wire.said, talking.ended


class Heard:
    """What a caller makes of an answer: whether it has all of it, and may come again."""

    def __init__(self, method: str, said: bytes) -> None:
        self.whole = self.reusable = False
        caller = PooledConnection(Address("unix:/r"), lambda _: None)
        caller.connection_made(Wire())
        caller.begin(self, head_only=method == "HEAD")
        if said:
            caller.data_received(said)
        caller.abort()

    def informed(self, answer: ResponseHead) -> None: ...

    def response_started(self, answer: ResponseHead) -> None: ...

    def received(self, data: bytes) -> None: ...

    def ended(self, reusable: bool) -> None:
        self.whole, self.reusable = True, reusable

    def lost(self, error: ReplicaGone) -> None: ...

    def writing_paused(self, paused: bool) -> None: ...


async def both(script: Script, *pieces: bytes) -> tuple[list[Any], bytes, str]:
    """The same over our connection and over uvicorn's.

    But for one thing: who has all of an answer may be about to come again, so whatever its app does then, ours is not
    closed, as uvicorn's is.
    """
    met, said, ended = await outcome(script, *pieces)
    theirs = await outcome(script, *pieces, ours=False)
    assert (met, said) == theirs[:2]
    heard = Heard(pieces[0].partition(b" ")[0].decode("latin-1"), said)
    assert ended == ("" if heard.reusable else theirs[2])
    return met, said, ended


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> tuple[str, dict[str, Any]]:
    return "start", {"status": status, "headers": headers}


def body(data: bytes, more: bool = False) -> tuple[str, dict[str, Any]]:
    return "body", {"body": data, "more_body": more}


LENGTH_2 = (b"content-length", b"2")
HI = [start(200, LENGTH_2), body(b"hi")]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


# What an app is told

targets = st.text("ab/%?&=~.;:@+*!'$-_", max_size=12).map(lambda rest: b"/" + rest.encode())
escapes = st.lists(st.sampled_from([b"a", b"/", b"%41", b"%c3%a9", b"%ff", b"%2f", b"%", b"?", b"%3f"])).map(b"".join)
names = st.text("abcdefxyz-_0", min_size=1, max_size=8).map(lambda name: b"x-q-" + name.encode())
values = st.binary(max_size=12).map(lambda value: bytes(b for b in value if b > 31 and b != 127).strip(b" "))


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "DELETE", "OPTIONS", "QUERY"]),
    target=targets | escapes.map(lambda rest: b"/" + rest),
    fields=st.lists(st.tuples(names, values), max_size=4),
    sent=st.binary(max_size=60),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    version=st.sampled_from([b"1.0", b"1.1"]),
)
@example(method="OPTIONS", target=b"*", fields=[], sent=b"", cuts=[], version=b"1.1")
@example(method="GET", target=b"//a:b@c/d?", fields=[(b"x-q", b"")], sent=b"", cuts=[], version=b"1.0")
@settings(max_examples=60)
def test_an_app_sees_the_same_request_as_under_uvicorn_in_any_pieces(
    method: str, target: bytes, fields: list[Any], sent: bytes, cuts: list[int], version: bytes
) -> None:
    length = [(b"content-length", b"%d" % len(sent))] if sent else []
    whole = head(method, target, [(b"host", b"shop"), *fields, *length], version=version) + sent
    at = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(at) if a < b]
    script = Script([("receive",), start(200, LENGTH_2), body(b"hi"), ("receive",)])
    met, _, _ = asyncio.run(both(script, *pieces))
    scope, message, after = met
    assert scope["raw_path"] == target.partition(b"?")[0]
    assert message == {"type": "http.request", "body": sent, "more_body": False}
    assert after == {"type": "http.disconnect"}


async def test_a_body_that_comes_while_the_app_reads_is_read_as_it_comes() -> None:
    script = Script([("receive",), ("receive",), start(200, LENGTH_2), body(b"hi")])
    talking = Talking(script)
    request = post(b"abcd")
    talking.say(request[:-2])
    await until(lambda: len(script.met) == 2)
    talking.say(request[-2:])
    await talking.settle()
    assert [message["body"] for message in script.met[1:]] == [b"ab", b"cd"]
    assert [message["more_body"] for message in script.met[1:]] == [True, False]
    assert talking.wire.said == ANSWER


async def test_reading_pauses_if_the_app_does_not_read_the_body() -> None:
    script = Script([("receive",), ("receive",), start(200, LENGTH_2), body(b"hi")])
    talking = Talking(script)
    request = post(bytes(2 * HIGH_WATER))
    talking.say(request[: HIGH_WATER + 2_000])
    assert not talking.wire.reading
    await until(lambda: len(script.met) == 2)
    assert talking.wire.reading
    talking.say(request[HIGH_WATER + 2_000 :])
    await talking.settle()
    assert talking.wire.said == ANSWER


@pytest.mark.parametrize("steps", [[("receive",), *HI], HI], ids=["reads", "does not read"])
async def test_a_100_is_sent_when_the_app_reads_the_body(steps: Any) -> None:
    request = post(b"abcd", (b"expect", b"100-continue"))
    _, said, _ = await both(Script(steps), request)
    assert said == (b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER if steps is not HI else ANSWER)


async def test_a_cancelled_receive_loses_no_body() -> None:
    met: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reading = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        talking.say(request[-3:])
        reading.cancel()
        met.append(await receive())
        met.append(await receive())

    talking = Talking(app)
    request = post(b"abc")
    talking.say(request[:-3])
    await talking.settle()
    assert met == [{"type": "http.request", "body": b"abc", "more_body": False}, {"type": "http.disconnect"}]


# What an app sends

ODD = {
    "nothing": [],
    "a body first": [body(b"hi")],
    "a head alone": [start(200, LENGTH_2)],
    "two heads": [start(200, LENGTH_2), start(200, LENGTH_2), body(b"hi")],
    "two answers": [*HI, *HI],
    "too much": [start(200, LENGTH_2), body(b"hi!")],
    "too much behind a part": [start(200, LENGTH_2), body(b"h", True), body(b"i!")],
    "nothing behind the head, and then an error": [start(200, LENGTH_2), body(b"", True), ("raise", ValueError())],
    "too much, and then what was promised": [start(200, LENGTH_2), body(b"hi!"), body(b"hi")],
    "bytes of another kind": [start(200, (bytearray(b"X-Y"), b"1"), LENGTH_2), body(b"hi")],
    "a text for a name": [start(200, ("x", b"1"), LENGTH_2), body(b"hi")],
    "no body": [start(200, LENGTH_2), body(b"")],
    "too little": [start(200, LENGTH_2), body(b"h")],
    "no more": [start(200, LENGTH_2), body(b"hi", True)],
    "a strange status": [start(299, LENGTH_2), body(b"hi")],
    "no status at all": [start(99, LENGTH_2), body(b"hi")],
    "a status too high": [start(600, LENGTH_2), body(b"hi")],
    "a strange message": [("trailers", {}), *HI],
    "a line end in a value": [start(200, (b"x", b"a\r\nset-cookie: b")), body(b"")],
    "a bare line feed in a value": [start(200, (b"x", b"a\nset-cookie: b")), body(b"")],
    "a null in a value": [start(200, (b"x", b"\0")), body(b"")],
    "a tab and high bytes in a value": [start(200, (b"x", b"\t\xff"), LENGTH_2), body(b"hi")],
    "a line end in a name": [start(200, (b"x: 1\r\ny", b"1")), body(b"")],
    "a colon in a name": [start(200, (b"x:", b"1")), body(b"")],
    "a length that is none": [start(200, (b"content-length", b"many")), body(b"")],
    "a length that only looks like one": [start(200, (b"content-length", b"1_0")), body(b"0123456789")],
    "fields that are there once": [start(200, cast(Any, iter([LENGTH_2]))), body(b"hi")],
    "large letters": [start(200, (b"Content-Length", b"2"), (b"X-Y", b"Z")), body(b"hi")],
    "two lengths": [start(200, LENGTH_2, (b"content-length", b"3")), body(b"hi")],
    "a length and a coding": [start(200, LENGTH_2, (b"transfer-encoding", b"chunked")), body(b"hi")],
    "two codings": [
        start(200, (b"transfer-encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")),
        body(b"h", True),
        body(b"i"),
    ],
    "another coding": [start(200, (b"transfer-encoding", b"gzip")), body(b"hi")],
    "no length": [start(200), body(b"h", True), body(b"", True), body(b"i")],
    "a close": [start(200, LENGTH_2, (b"connection", b"Close")), body(b"hi")],
    "several words of connection": [start(200, LENGTH_2, (b"connection", b"x, close")), body(b"hi")],
    "an error at once": [("raise", ValueError("at once"))],
    "an error behind the head": [start(200, LENGTH_2), ("raise", ValueError("behind the head"))],
    "an error behind the answer": [*HI, ("raise", ValueError("behind the answer"))],
    "an exit at once": [("raise", SystemExit(1))],
    "an exit behind the head": [start(200, LENGTH_2), ("raise", KeyboardInterrupt())],
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("odd", ODD)
async def test_a_caller_sees_the_same_response_as_under_uvicorn(odd: str, method: str) -> None:
    said = await both(Script(ODD[odd]), head(method, fields=[(b"host", b"shop")]))
    assert b"set-cookie" not in said[1]


NO_HEADS = [
    "a text for a name",
    "no status at all",
    "a status too high",
    "a line end in a value",
    "a null in a value",
    "a line end in a name",
    "a colon in a name",
    "a length that is none",
    "a length that only looks like one",
    "another coding",
]
NO_BODIES = [
    "a head alone",
    "too much",
    "no body",
    "an error behind the head",
    "nothing behind the head, and then an error",
    "an exit behind the head",
]


@pytest.mark.parametrize("odd", [*NO_HEADS, *NO_BODIES])
async def test_an_invalid_response_is_answered_with_500(odd: str) -> None:
    steps = [step for step in ODD[odd] if odd in NO_BODIES or step[0] == "start"]
    _, said, _ = await both(Script(steps), get())
    assert said.startswith(b"HTTP/1.1 500 ")
    assert said.endswith(b"\r\n\r\nInternal Server Error")


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "uvicorn"])
@pytest.mark.parametrize("after", ["another message", "no fields", "another field", "other bytes"])
async def test_an_app_may_change_a_message_after_it_was_sent(after: str, ours: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        value, piece = bytearray(b"2"), bytearray(b"h")
        fields = [(b"content-length", value)]
        message: Message = {"type": "http.response.start", "status": 200, "headers": fields}
        await send(message)
        if after == "another message":
            message["type"] = "http.response.body"
        elif after == "no fields":
            fields.clear()
        elif after == "another field":
            fields.append((b"x", bytearray(b"a\r\nset-cookie: b")))
        else:
            value[:] = b"9"
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        piece[:] = b"i"
        await send({"type": "http.response.body", "body": piece})

    talking = Talking(app, ours=ours)
    talking.say(get())
    await talking.settle()
    assert talking.wire.said == ANSWER


async def test_a_body_can_be_sent_again_if_its_send_was_cancelled_while_it_waited() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH_2]})
        talking.talker.pause_writing()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await send({"type": "http.response.body", "body": b"hi"})
        talking.talker.resume_writing()
        await send({"type": "http.response.body", "body": b"hi"})

    for ours in (True, False):
        talking = Talking(app, ours=ours)
        talking.say(get())
        await talking.settle()
        assert talking.wire.said == ANSWER


async def test_a_100_is_sent_if_the_app_reads_the_body_after_its_head() -> None:
    steps = [start(200, LENGTH_2), ("receive",), body(b"hi")]
    met, said, _ = await both(Script(steps), post(b"abcd", (b"expect", b"100-continue")))
    assert met[1]["body"] == b"abcd"
    assert said == b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER


messages = st.one_of(
    st.builds(
        lambda status, headers: start(status, *headers),
        st.sampled_from([200, 204, 304, 404, 500, 503]),
        st.lists(
            st.sampled_from([LENGTH_2, (b"content-length", b"0"), (b"x", b"y"), (b"connection", b"close")]),
            unique_by=lambda field: field[0],
        ),
    ),
    st.builds(body, st.sampled_from([b"", b"hi", b"hi!"]), st.booleans()),
    st.just(("receive",)),
)


@given(steps=st.lists(messages, max_size=5), method=st.sampled_from(["GET", "HEAD"]))
@example(steps=[("receive",), ("receive",), body(b""), start(200, LENGTH_2), start(200)], method="GET")
@example(steps=[("receive",), start(200, LENGTH_2), ("receive",), start(200)], method="GET")
@settings(max_examples=80)
def test_messages_in_any_order_have_the_same_result_as_under_uvicorn(steps: list[Any], method: str) -> None:
    logging.disable()
    try:
        asyncio.run(both(Script(steps), head(method, fields=[(b"host", b"shop")])))
    finally:
        logging.disable(logging.NOTSET)


async def test_a_request_whose_task_is_cancelled_is_answered_with_500() -> None:
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    answers = []
    for ours in (True, False):
        begun.clear()
        talking = Talking(app, ours=ours)
        talking.say(get())
        await begun.wait()
        for task in talking.state.tasks:
            task.cancel()
        await talking.settle()
        answers.append((talking.wire.said, talking.ended))
    assert answers[0][0].startswith(b"HTTP/1.1 500 ")
    assert [ended for _, ended in answers] == ["closed", "closed"]


# One request after another


ENDLESS = {
    "HEAD": ("HEAD", [start(200)]),
    "no content": ("GET", [start(204)]),
    "not modified": ("GET", [start(304)]),
    "length": ("GET", [start(200, LENGTH_2), body(b"h", True), body(b"i", True)]),
    "no length to speak of": ("GET", [start(200, (b"content-length", b"0"))]),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_connection_serves_the_next_request_when_its_response_is_complete(kind: str) -> None:
    method, steps = ENDLESS[kind]
    heard: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/next":
            await Script(HI)(scope, receive, send)
            return
        await Script(steps)(scope, receive, send)
        await receive()
        heard.append(await receive())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    talking = Talking(app)
    talking.say(head(method, fields=[(b"host", b"shop")]))
    await until(lambda: bool(talking.wire.written))
    talking.say(get(b"/next")[:20])
    talking.say(get(b"/next")[20:])
    await until(lambda: talking.wire.said.endswith(ANSWER))
    assert heard == []
    await talking.settle()
    assert heard == [{"type": "http.disconnect"}]
    assert talking.wire.said.endswith(ANSWER)
    assert talking.ended == ""


async def test_a_request_that_comes_early_has_nothing_of_the_one_before_it() -> None:
    seen: list[tuple[Any, ...]] = []
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((DEADLINE.get() is not None, TRACE.get(), USERS.get()))
        USERS.set(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH_2]})
        await send({"type": "http.response.body", "body": b"hi", "more_body": True})
        if scope["path"] == "/1":
            await go_on.wait()
        await send({"type": "http.response.body", "body": b""})

    talking = Talking(app)
    trace = (hop.TRACE, b"00-1-1-01")
    talking.say(head(target=b"/1", fields=[trace, (b"host", b"shop")], timeout_ms=60_000))
    await until(lambda: talking.wire.said.endswith(b"hi"))
    talking.say(get(b"/2"))
    go_on.set()
    await until(lambda: len(seen) == 2)
    await talking.settle()
    assert seen == [(True, "00-1-1-01", ""), (False, None, "")]


async def test_a_pipelined_request_waits_for_the_response_before_it() -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await Script(HI)(scope, receive, send)

    talking = Talking(app)
    talking.say(get(b"/1"), get(b"/2"))
    assert len(talking.state.tasks) == 1
    go_on.set()
    await until(lambda: talking.wire.said == 2 * ANSWER)
    await talking.settle()


async def test_the_next_request_begins_when_the_body_of_the_first_has_arrived() -> None:
    script = Script(HI)
    talking = Talking(script)
    first = post(b"abcdef")
    talking.say(first[:-4])
    await until(lambda: bool(talking.wire.written))
    talking.say(first[-4:-2])
    talking.say(first[-2:] + get(b"/2"))  # as they may lie in one frame
    await until(lambda: len(script.met) == 2)
    await talking.settle()
    assert talking.wire.said == 2 * ANSWER
    assert [scope["path"] for scope in script.met] == ["/", "/2"]


MALFORMED = {
    "length": b"GET / HTTP/1.1\r\ncontent-length: two\r\n\r\n",
    "negative": b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "too many digits": b"GET / HTTP/1.1\r\ncontent-length: %b\r\n\r\n" % (b"9" * 5_000),
    "two framings": b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
    "method": b"P\xff / HTTP/1.1\r\n\r\n",
    "no method": b" / HTTP/1.1\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\n\r\n",
    "not ASCII": b"GET /\xe9 HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_invalid_http_is_answered_with_400_and_runs_no_app(kind: str) -> None:
    met, said, ended = await both(Script(HI), MALFORMED[kind])
    assert met == []
    assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert ended == "closed"


# A caller that does not read, or leaves, and a server that stops


async def test_an_app_waits_for_a_caller_that_does_not_read() -> None:
    pieces = [b"%d" % number for number in range(10)]
    script = Script([start(200, (b"content-length", b"10")), *(body(piece, piece != b"9") for piece in pieces)])
    talking = Talking(script)
    talking.talker.pause_writing()
    talking.say(get())
    for _ in range(10):
        await asyncio.sleep(0)
    assert talking.wire.said == b""
    talking.talker.resume_writing()
    await until(lambda: talking.wire.said.endswith(b"9"))
    await talking.settle()
    assert talking.wire.said == b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789"


async def test_a_connection_closes_if_a_failure_cannot_be_sent() -> None:
    talking = Talking(Script([("raise", asyncio.CancelledError())]))
    talking.talker.pause_writing()
    talking.say(get())
    await talking.settle()
    assert (talking.wire.said, talking.ended) == (b"", "closed")


async def test_an_app_may_send_after_its_caller_has_disconnected() -> None:
    script = Script([("receive",), ("receive",), *HI])
    talking = Talking(script)
    talking.talker.pause_writing()
    talking.say(get())
    await talking.settle()
    assert script.met[-1] == {"type": "http.disconnect"}
    assert talking.wire.said == b""


async def test_a_stopping_server_closes_idle_connections_and_completes_responses() -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await Script(HI)(scope, receive, send)

    answers = []
    for ours in (True, False):
        go_on.clear()
        idle, busy = Talking(app, ours=ours), Talking(app, ours=ours)
        busy.say(get())
        for talking in (idle, busy):
            talking.talker.shutdown()
        assert (idle.wire.ended, busy.wire.ended) == ("closed", "")
        go_on.set()
        await busy.settle()
        await idle.settle()
        answers.append((busy.wire.said, busy.ended))
    assert answers[0] == answers[1]
    assert b"connection: close" in answers[0][0]


async def test_user_code_cannot_send_a_refusal() -> None:
    script = Script([start(503, (hop.REFUSED, b"busy"), LENGTH_2), body(b"hi")])
    _, said, _ = await both(script, get())
    assert said == b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nhi"


# An app that goes on when all of its answer has left


class Lingering:
    """Ends when it may; `/raise` ends with an error."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.heard: list[str] = []
        self.ended = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [LENGTH_2]})
            if scope["path"] == "/fast":
                await send({"type": "http.response.body", "body": b"hi"})
                return
            await send({"type": "http.response.body", "body": b"hi", "more_body": True})
            if scope["path"] == "/listen":
                while (message := await receive())["type"] == "http.request":
                    pass
                self.heard.append(message["type"])
            await self.may_end.wait()
            if scope["path"] == "/raise":
                raise ValueError("out of stock")
            await send({"type": "http.response.body"})
        finally:
            self.ended += 1


def sending(path: bytes, sent: bytes = b"", method: str = "POST") -> bytes:
    return head(method, path, [(b"host", b"shop"), (b"content-length", b"%d" % len(sent))]) + sent


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(sending(b"/slow"), id="that ends late"),
        pytest.param(sending(b"/raise"), id="that fails in the end"),
        pytest.param(sending(b"/slow", bytes(200_000)), id="that reads no body"),
        pytest.param(sending(b"/slow", method="HEAD"), id="that would have a body"),
    ],
)
async def test_a_connection_is_reused_while_the_app_of_its_last_response_still_runs(first: bytes) -> None:
    app = Lingering()
    talking = Talking(app)
    answers = ANSWER.removesuffix(b"hi" if first.startswith(b"HEAD") else b"")
    for at in range(0, len(first), 65_536):
        talking.say(first[at : at + 65_536])
        await asyncio.sleep(0)
    await until(lambda: talking.wire.said == answers)
    for _ in range(2):
        talking.say(sending(b"/fast"))
        answers += ANSWER
        await until(lambda answers=answers: talking.wire.said == answers)  # type: ignore[misc]
    assert app.ended == 2
    assert talking.wire.reading
    app.may_end.set()
    await until(lambda: app.ended == 3)
    await talking.settle()
    assert (talking.wire.said, talking.ended) == (answers, "")


@pytest.mark.parametrize("path", [b"/fast", b"/slow"])
async def test_nothing_of_a_request_is_left_for_the_garbage_collector(path: bytes) -> None:
    class Thing: ...

    lingering = Lingering()
    lingering.may_end.set()
    things: list[ref[Thing]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["thing"] = thing = Thing()
        things.append(ref(thing))
        del thing
        await lingering(scope, receive, send)

    talking = Talking(app)
    gc.disable()
    try:
        for served in (1, 2):
            talking.say(sending(path, b"1234"))
            await until(lambda served=served: lingering.ended == served)  # type: ignore[misc]
        await asyncio.sleep(0)
        assert things[0]() is None
    finally:
        gc.enable()
    await talking.settle()


async def test_a_running_app_receives_a_disconnect_when_its_connection_closes() -> None:
    app = Lingering()
    talking = Talking(app)
    for number, path in enumerate((b"/listen", b"/fast"), 1):
        talking.say(sending(path))
        await until(lambda number=number: talking.wire.said == number * ANSWER)  # type: ignore[misc]
    talking.talker.connection_lost(None)
    await until(lambda: app.heard == ["http.disconnect"])
    app.may_end.set()
    await until(lambda: app.ended == 2)


async def test_a_stopping_server_closes_connections_whose_response_is_complete() -> None:
    app = Lingering()
    talking = Talking(app)
    talking.say(sending(b"/slow"))
    await until(lambda: talking.wire.said == ANSWER)
    talking.talker.shutdown()
    assert talking.wire.ended == "closed"
    app.may_end.set()
    await until(lambda: app.ended == 1)
    await talking.settle()


# Other forms of a request


CHUNKS = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx-trailer: z\r\n\r\n"


@given(cuts=st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=50)
def test_a_body_of_chunks_is_read_in_any_pieces(cuts: list[int]) -> None:
    request = head("POST", fields=[(b"host", b"shop"), (b"transfer-encoding", b"chunked")]) + CHUNKS
    at = [0, *sorted(min(cut, len(request)) for cut in cuts), len(request)]
    pieces = [request[a:b] for a, b in itertools.pairwise(at) if a < b]
    met, said, _ = asyncio.run(both(Script([("receive",), *HI]), *pieces))
    assert (met[1]["body"], met[1]["more_body"]) == (b"abcde", False)
    assert said == ANSWER


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (b"1.0", []),
        (b"1.0", [(b"connection", b"keep-alive")]),
        (b"1.1", [(b"connection", b"close")]),
        (b"1.1", [(b"connection", b"upgrade"), (b"upgrade", b"h2c")]),
    ],
)
async def test_a_connection_closes_if_the_version_or_the_request_says_so(version: bytes, fields: Any) -> None:
    request = head(fields=[(b"host", b"shop"), *fields]).replace(b"HTTP/1.1", b"HTTP/" + version, 1)
    _, said, ended = await both(Script(HI), request)
    closes = b"upgrade" not in request
    assert (ended == "closed") is closes
    assert said.endswith(b"\r\nhi")
    assert (b"connection: close\r\n" in said) is closes


@pytest.mark.parametrize("cut", [1, 40, len(HANDSHAKE) - 1, len(HANDSHAKE)])
async def test_a_websocket_handshake_ends_an_app_that_still_runs(cut: int) -> None:
    lingering = Lingering()
    met: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await lingering(scope, receive, send)
        else:
            met.append(scope)
            assert await receive() == {"type": "websocket.connect"}
            await send({"type": "websocket.accept"})
            await receive()

    talking = Talking(app)
    talking.say(sending(b"/listen"))
    await until(lambda: talking.wire.said == ANSWER)
    talking.say(HANDSHAKE[:cut], HANDSHAKE[cut:])
    await until(lambda: lingering.heard == ["http.disconnect"])
    await until(lambda: b"HTTP/1.1 101 Switching Protocols\r\n" in talking.wire.said)
    assert met[0]["raw_path"] == b"/"
    lingering.may_end.set()
    talking.wire.protocol.connection_lost(None)
    await until(lambda: not talking.state.tasks and not talking.state.connections)
