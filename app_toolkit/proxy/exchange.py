"""One request's life at the proxy: it waits for a turn, is sent to a replica, and its answer is passed on."""

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from enum import Enum, auto
from typing import Protocol

from app_toolkit.core.deadlines import timeout_s
from app_toolkit.core.recent import retry_after_s
from app_toolkit.core.retries import spent
from app_toolkit.errors import (
    NOT_TAKEN,
    AnswerUnreadable,
    BadAnswer,
    ContentTooLarge,
    DeadlineExceeded,
    NoReplica,
    NotRead,
    ReplicaGone,
    ReplicaLost,
    RequestError,
    TooManyWebSockets,
)
from app_toolkit.observability.access import LONGEST_PATH
from app_toolkit.proxy import builtin
from app_toolkit.proxy.deadlines import Deadlines
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.proxy.request import KEPT_BODY, RETRYABLE, Request
from app_toolkit.proxy.routes import Router, Turn
from app_toolkit.transport import hop
from app_toolkit.transport.frames import Frames, close_frame
from app_toolkit.transport.pool import Answer, Connection
from app_toolkit.types import Header, ReplicaId

log = logging.getLogger("app_toolkit.proxy")

CHUNKS_S = 0.2
"""How long a body of unknown length may take to arrive before its request asks for a slot all the same: its client may
wait for an answer before it sends the rest."""

DISCARDED_BODY = 1024 * 1024
"""Bytes of a body that nobody wants which are read nevertheless, so that the connection can be used again."""

OK = "ok"
CUT = "cut"
CLIENT_GONE = "client_gone"
"""How an exchange ends where it does not end with an error, whose `reason` is the word then."""

CLIENT_CLOSED_REQUEST = 499
"""Logged where the client has gone; nobody sees it on the wire."""

SERVICE_RESTART = 1012
"""The code for a WebSocket that ends for no fault of its client, who may come again."""


class Stage(Enum):
    NEW = auto()
    ARRIVING = auto()
    WAITING = auto()
    DIALLING = auto()
    SENT = auto()
    ANSWERED = auto()
    TUNNEL = auto()
    DONE = auto()


class Client(Protocol):
    """The connection that an exchange answers to."""

    host: str
    peers: bytes

    served: dict[str, tuple[ReplicaId, bool]]
    """By ingress: the replica that served this connection's previous request, and whether the response was a stream."""

    @property
    def default_headers(self) -> list[Header]: ...

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this answer, whatever the request said."""

    @property
    def writable(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def pass_on(self, data: bytes) -> None:
        """Write what is said in a tunnel."""

    def regulate(self) -> None:
        """Read from the client, or stop reading, as the exchange now wants it."""

    def finished(self, request: Request, keep: bool) -> None:
        """The answer has been written."""

    def cut(self, reset: bool) -> None:
        """The answer cannot be completed: close, so that the client sees the truncation."""

    def part(self, last: bytes = b"") -> None:
        """Close after these last words; they, and what was written before, still have to arrive."""


class Exchange:
    """One request and its answer.

    * A small body arrives before it asks for a turn, so that a slow client occupies no slot.
    * Its turn, its place in the queue, its connection and its timer are given up by whatever ends it.
    * It ends once, with one word, which is counted and told to the access log.
    * One deadline holds over waiting and all tries: it ends with 504, or cut where the answer has begun.
    * What no replica accepted is handed to another one, whatever its method, until it has waited too long.
    * What a replica accepted and then died with is tried once more where the method allows it, the whole body
      is still held, and the client has not seen a byte of the answer.
    * Where the head announces a length, it leaves together with the first bytes of the body, so that a death
      between the two can still be hidden.
    """

    __slots__ = (
        "_account",
        "_answer",
        "_arrived",
        "_arriving",
        "_avoid",
        "_blocked",
        "_bytes_out",
        "_client",
        "_connection",
        "_continued",
        "_crowded",
        "_deadline",
        "_deadlines",
        "_died_with_it",
        "_frames",
        "_head",
        "_holding",
        "_keep",
        "_losses",
        "_most_body",
        "_proxy",
        "_refusal",
        "_replica",
        "_router",
        "_since",
        "_stage",
        "_timer",
        "_tries",
        "_turn",
        "_waiter",
        "request",
    )

    def __init__(self, proxy: Proxy, client: Client, request: Request) -> None:
        self._proxy = proxy
        self._client = client
        self.request = request
        self._arrived = time.monotonic()
        self._router: Router | None = None
        self._account = proxy.unowned
        self._stage = Stage.NEW
        # What it may take: seconds, on the clock of `_arrived`, and bytes.
        self._deadline: float | None = None
        self._most_body: int | None = None
        # What is held, and let go in `_release`.
        self._turn: Turn | None = None
        self._waiter: object | None = None
        self._connection: Connection | None = None
        self._deadlines: Deadlines | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._arriving: asyncio.TimerHandle | None = None
        # What was learned of replicas.
        self._since = self._arrived  # since when it waits; a loss begins that anew
        self._avoid: tuple[ReplicaId, ...] = ()
        self._crowded: tuple[ReplicaId, ...] = ()  # those of them that have no room for a WebSocket
        self._died_with_it: set[ReplicaId] = set()
        self._losses = 0
        self._tries = 0
        self._replica: str = "-"
        # One try.
        self._holding = False
        self._blocked = False
        self._refusal: bytes | None = None
        # The answer.
        self._answer: Answer | None = None
        self._head: bytes | None = None
        self._keep = False
        self._continued = False
        self._bytes_out = 0
        self._frames: Frames | None = None

    # What the client's connection says

    def begin(self) -> None:
        request = self.request
        if request.id is None:
            request.id = self._proxy.mint_id()
        try:
            if request.refusal is not None:
                raise request.refusal
            own = builtin.endpoint(request.method, request.path, self._proxy.routes, self._proxy.draining)
            if own is None:
                if self._proxy.clients is not None:
                    self._proxy.clients.enter(self._client.host, self)
                self._find_owner()
        except RequestError as error:
            self.fail(error)
            return
        if own is not None:
            self._answer_with(own)
        elif request.complete or request.websocket or request.expects:
            self._ask()
        else:
            self._await_body()

    def _find_owner(self) -> None:
        """Find who owns it, and what may become of it there. Raises `RequestError`."""
        request = self.request
        policy = self._find_ingress().policy
        if policy.request_timeout_s is not None or request.timeout is not None:
            timeout = timeout_s(request.timeout, policy.request_timeout_s)
            assert timeout is not None
            self._deadline = self._arrived + timeout
            if timeout == policy.request_timeout_s:
                self._deadlines = self._account.deadlines(timeout)
                self._deadlines.add(self, self._deadline)
            else:
                self._timer = asyncio.get_running_loop().call_later(timeout, self.expire, timeout)

    def _find_ingress(self) -> Router:
        """Find the ingress that owns it now, and check the body against its limit. Raises `RequestError`."""
        request, proxy = self.request, self._proxy
        kind = "websocket" if request.websocket else "http"
        name = proxy.routes.find(kind, request.method.decode(), request.path)
        router = self._router = proxy.routes.routers[name]
        self._account = proxy.account(name)
        self._account.budget.asked(self._since)
        self._most_body = None if request.websocket else router.policy.max_body_size
        self._check_body()
        return router

    def _await_body(self) -> None:
        """Ask for a turn once a small body has arrived; one that is announced as larger is passed on as it comes."""
        request = self.request
        if request.body.chunked:
            self._stage = Stage.ARRIVING
            self._arriving = asyncio.get_running_loop().call_later(CHUNKS_S, self._body_is_here)
        elif request.held:
            self._ask()
        else:
            self._stage = Stage.ARRIVING

    def _body_is_here(self) -> None:
        """All of the body, or as much of it as is waited for."""
        self._forget_arrival()
        self._since = time.monotonic()
        if self._router is not self._proxy.routes.routers.get(self._account.name):  # removed while the body arrived
            try:
                self._find_ingress()
            except RequestError as error:
                self.fail(error)
                return
        self._ask()

    def _forget_arrival(self) -> None:
        timer, self._arriving = self._arriving, None
        if timer is not None:
            timer.cancel()

    @property
    def tunnels(self) -> bool:
        """Whether it has become a WebSocket, which answers nothing any more."""
        return self._stage is Stage.TUNNEL

    @property
    def waits(self) -> bool:
        """Whether it is in the queue of its ingress."""
        return self._stage is Stage.WAITING

    @property
    def wants_body(self) -> bool:
        """Whether more may be read. Once the request is complete, reading is how a hang-up is noticed."""
        request = self.request
        return request.complete or (not self._blocked and request.body.waiting <= KEPT_BODY)

    @property
    def body_is_due(self) -> bool:
        """Whether the client is to send, now; not while it waits for a 100."""
        request = self.request
        return not (request.complete or request.websocket or (request.expects and not self._continued))

    def body_arrived(self) -> None:
        """The body has grown, or is complete."""
        if self._most_body is not None:
            try:
                self._check_body()
            except ContentTooLarge as error:
                self.fail(error)
                return
        if self._stage is Stage.ARRIVING:
            if self.request.complete or self.request.body.waiting >= KEPT_BODY:
                self._body_is_here()
            return
        connection = self._connection
        if connection is not None and not self._holding:
            pieces = self.request.body.take()
            if pieces:
                connection.write_all(pieces)

    def tunnel(self, data: bytes) -> None:
        """Pass on what the client says on its WebSocket."""
        if self._connection is not None:
            self._connection.pass_on(data)

    def client_paused(self, paused: bool) -> None:
        """The client does not take what is written, or does again; so the replica has to wait, or goes on."""
        if self._connection is not None:
            if paused:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    def client_gone(self) -> None:
        """Closing the connection is how the replica learns that nobody waits for the answer."""
        if self._stage is Stage.DONE:
            return
        tunnel = self.tunnels
        connection, self._connection = self._connection, None
        if connection is not None:
            # A tunnel's last words, such as a close frame, still have to arrive.
            if tunnel:
                connection.close()
            else:
                connection.abort()
        self._release()
        if tunnel:
            self._record(101, OK)
        else:
            self._record(CLIENT_CLOSED_REQUEST, CLIENT_GONE)

    def dismiss(self) -> None:
        """End it, because the proxy ends: nobody has closed this tunnel, or answered this request in time."""
        if not self.tunnels:
            self.fail(self._stopped())
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._end_tunnel("the proxy stops")

    def _stopped(self) -> RequestError:
        """May it come again? A replica may have run what it was sent."""
        if self._stage is not Stage.SENT or self._may_run_twice():
            return NoReplica("the proxy stops")
        return ReplicaLost(f"the proxy stops; the outcome of this {self.request.method.decode()} is unknown")

    def fail(self, error: Exception) -> None:
        """End the exchange with an error: as its answer, or by cutting the one that has begun."""
        self._drop_connection()
        if self._stage in (Stage.ANSWERED, Stage.TUNNEL):
            self._cut_off(error)
            return
        self._release()
        if self._losses and isinstance(error, NOT_TAKEN):
            method = self.request.method.decode()
            error = ReplicaLost(f"a replica was lost with this {method}, and then {error}; the outcome is unknown")
        if not isinstance(error, RequestError):
            failed = RequestError("the proxy failed")
            failed.__cause__ = error
            error = failed
        if error.retry_after_s is not None and self._router is not None:
            rate = self._account.answers.rate(time.monotonic())
            error.retry_after_s = retry_after_s(self._router.waiting, rate)
        self._tell(error)
        assert self.request.id is not None
        self._answer_with(builtin.failure(error, self.request.id.decode()), error.reason)

    def _tell(self, error: RequestError) -> None:
        """Say in the log what failed on our side; of refusals under load, which the access log has, only some."""
        if error.status < 500 or self.request.refusal is not None:
            return
        if not error.frequent or self._account.may_tell(time.monotonic()):
            cause = error.__cause__
            if isinstance(cause, ReplicaGone):
                log.warning("request %s: %d, %s: %s", self._id, error.status, error, cause)
            else:
                log.warning("request %s: %d, %s", self._id, error.status, error, exc_info=cause)

    def _check_body(self) -> None:
        """Raises `ContentTooLarge` where the body is announced, or has come, longer than it may be."""
        most, request = self._most_body, self.request
        if most is not None and max(request.length or 0, request.body.received) > most:
            has = f"{request.length} bytes" if request.length is not None else f"{request.body.received} bytes or more"
            raise ContentTooLarge(f"the body has {has}, the max_body_size of {self._account.name} is {most}")

    def expire(self, timeout: float) -> None:
        """The deadline has passed; it was so many seconds after the request came."""
        if self._stage is Stage.ARRIVING:
            what = "the body of the request did not arrive"
        elif self._stage is Stage.WAITING:
            what = "no replica took the request"
        elif self._stage is Stage.ANSWERED:
            what = "the request was not answered in full"
        else:
            what = "the request was not answered"
        self.fail(DeadlineExceeded(f"{what} within its {timeout:g} s"))

    # Waiting and sending

    def _ask(self, again: bool = False) -> None:
        assert self._router is not None
        turn = self._router.try_turn(self._avoid, *self._preferred())
        if turn is not None:
            self._granted(turn)
            return
        try:
            waiter = self._router.wait(self._granted, self._since, avoid=self._avoid, again=again)
        except RequestError as error:
            self.fail(error)
            return
        self._stage = Stage.WAITING
        self._waiter = waiter
        self._proxy.waiting[waiter] = self

    def _preferred(self) -> tuple[ReplicaId | None, bool, bool]:
        """The replica that serves this client, whether its previous response was a stream, and whether it will stay.

        A client is known by its connection. A new connection, and one that a trusted proxy shares among its clients,
        goes by the client's address: with an open stream at some replica, its other requests belong there.
        """
        if not self.request.forwarded:
            served = self._client.served.get(self._account.name)
            if served is not None:
                return *served, True
        opened = self._account.open_at.get(self._address)
        return (None if opened is None else opened.endpoint.id), False, not self.request.forwarded

    @property
    def _address(self) -> bytes:
        return self._client.peers.partition(b" ")[0]

    def _granted(self, turn: Turn) -> None:
        self._leave_queue()
        self._turn = turn
        self._replica = turn.endpoint.id
        self._tries += 1
        address = turn.endpoint.address
        request = self.request
        # A handshake is never tried again once it was read: a new connection says whether it was.
        connection = None if request.websocket else self._proxy.pool.take(address)
        if connection is not None:
            self._send(connection)
            return
        self._stage = Stage.DIALLING
        self._proxy.pool.dial(address, self._reached, self._unreached)

    def _reached(self, connection: Connection) -> None:
        if self._stage is Stage.DIALLING:
            self._send(connection)
        else:  # the client has gone meanwhile
            self._proxy.pool.give_back(connection)

    def _unreached(self, gone: ReplicaGone) -> None:
        if self._stage is Stage.DIALLING:
            self._hand_over()

    def _send(self, connection: Connection) -> None:
        request = self.request
        assert request.id is not None
        self._stage = Stage.SENT
        self._connection = connection
        self._holding = request.held or request.websocket
        connection.begin(self, head_only=request.method == b"HEAD", decode=request.version == "1.0")
        if not self._client.writable:
            connection.pause_reading()
        identity = hop.encode(
            self._proxy.token, request.id, request.version.encode(), self._client.peers, self._left_ms()
        )
        assert self._turn is not None
        if self._turn.claim():
            identity += self._proxy.lines.claim
        head = request.head(identity)
        if self._holding:
            connection.write(head)
        else:
            connection.write_all((head, *request.body.take()))

    def _left_ms(self) -> int | None:
        """For the replica; a WebSocket's deadline ends with its handshake, which is ours to watch."""
        if self._deadline is None or self.request.websocket:
            return None
        return max(math.ceil((self._deadline - time.monotonic()) * 1_000), 1)

    def _release_body(self) -> None:
        if self._holding:
            self._holding = False
            self.body_arrived()
            self._client.regulate()

    # What the replica's connection says

    def informed(self, answer: Answer) -> None:
        to_client = self.request.version == "1.1"
        if answer.status == 100 and not self.request.websocket:
            self._release_body()
            to_client = to_client and self.request.expects and not self._continued
            self._continued = True
        if to_client:
            self._client.write(_head(answer.status_line, (), answer.fields, b"\r\n"))

    def answered(self, answer: Answer) -> None:
        if answer.refusal is not None:
            self._refusal = answer.refusal
        elif answer.status == 101:
            self._open_tunnel(answer)
        else:
            self._answer = answer
            self._keep = self._may_keep(answer)
            head = self._final_head(answer, self._keep)
            if answer.extent == "sized" or answer.extent == "none":
                self._head = head
            else:
                if answer.stream is not None:
                    self._open_stream(answer.stream)
                self._start(head)

    def received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._bytes_out += len(data)
        if self._frames is not None:
            self._frames.follow(data)
            self._client.pass_on(data)
            return
        head, self._head = self._head, None
        if head is not None:
            self._start(head)
        self._client.write(data)

    def ended(self, reusable: bool) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        if reusable and self.request.complete and not self._holding:
            # Reading goes on before the next exchange: an idle connection that is lost must be noticed.
            if not self._client.writable:
                connection.resume_reading()
            self._proxy.pool.give_back(connection)
        else:
            connection.abort()
        if self._refusal is not None:
            self._refused(self._refusal)
            return
        if self._head is not None:
            self._start(self._head)
        self._finish()

    def lost(self, error: ReplicaGone) -> None:
        self._connection = None
        if self._refusal is not None:
            self._refused(self._refusal)
        elif self._stage is not Stage.SENT:
            self._broke_off(error)
        elif isinstance(error, AnswerUnreadable):
            self._unreadable(error)
        else:
            self._died(error)

    def writing_paused(self, paused: bool) -> None:
        self._blocked = paused
        self._client.regulate()

    # The answer

    def _start(self, data: bytes) -> None:
        """From the first byte on nothing can be taken back."""
        self._stage = Stage.ANSWERED
        # An app that answers before it reads is never asked for a 100: its server says that no more.
        self._release_body()
        self.request.body.let_go()
        self._client.write(data)

    def _finish(self) -> None:
        assert self._answer is not None
        request = self.request
        self._release()
        self._client.served[self._account.name] = ReplicaId(self._replica), self._answer.stream is not None
        self._record(self._answer.status, OK)
        self._client.finished(request, self._keep)

    def _open_stream(self, said: bytes) -> None:
        """Leave the ongoing requests if the replica has done so."""
        assert self._router is not None
        assert self._turn is not None
        if said == hop.OPEN:
            self._account.streams.add(self)
            self._open()
        else:
            self._turn.kept = True

    def _open(self) -> None:
        """It holds no slot from now on: an open stream or WebSocket is no ongoing request."""
        assert self._router is not None
        assert self._turn is not None
        self._account.open_at[self._address] = self._turn
        self._router.open(self._turn)

    def _open_tunnel(self, answer: Answer) -> None:
        if not self.request.websocket:
            self._drop_connection()
            self.fail(BadAnswer("the app switched protocols although nobody had asked for it"))
            return
        assert self._router is not None
        assert self._turn is not None
        self._answer = answer
        self._stage = Stage.TUNNEL
        self._frames = Frames()
        self._account.websockets.add(self)
        self._open()
        self._forget_deadline()
        self.request.body.let_go()
        self._client.write(
            _head(answer.status_line, self._client.default_headers, answer.fields, self._id_line(answer))
        )
        self._release_body()

    def _final_head(self, answer: Answer, keep: bool) -> bytes:
        fields = answer.fields
        if self.request.version == "1.0":
            fields = [field for field in fields if field[0] != b"transfer-encoding"]
        end = self._id_line(answer) if keep else b"connection: close\r\n" + self._id_line(answer)
        # Whoever answers a WebSocket's handshake in the replica writes a date of its own.
        defaults = [] if self.request.websocket else self._client.default_headers
        return _head(answer.status_line, defaults, fields, end)

    def _id_line(self, answer: Answer) -> bytes:
        """The end of a head; an app that answers with an id of its own knows better."""
        for name, _ in answer.fields:
            if name == b"x-request-id":
                return b"\r\n"
        assert self.request.id is not None
        return b"x-request-id: %b\r\n\r\n" % self.request.id

    def _may_keep(self, answer: Answer | None) -> bool:
        """Whether the client's connection serves another request after this one."""
        request = self.request
        if not request.keep_alive or self._client.closing:
            return False
        if answer is not None and (answer.extent == "until_close" or (answer.closes and not request.websocket)):
            return False
        if request.complete:
            return True
        if request.expects and not self._continued:
            return False  # whether the body still comes is the client's secret
        missing = request.missing
        return missing is None or missing <= DISCARDED_BODY

    def _answer_with(self, own: builtin.OwnAnswer, outcome: str = OK) -> None:
        request = self.request
        self._stage = Stage.DONE
        keep = request.refusal is None and self._may_keep(None)
        assert request.id is not None
        end = b"%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n" % (
            own.fields,
            len(own.body),
            request.id,
            b"" if keep else b"connection: close\r\n",
        )
        body = b"" if request.method == b"HEAD" else own.body
        self._bytes_out = len(body)
        self._client.write(_head(own.status_line, self._client.default_headers, (), end) + body)
        self._record(own.status, outcome)
        self._client.finished(request, keep)

    # When a replica does not answer

    def _hand_over(self, avoid: bool = True) -> None:
        """Another replica may run it: nothing of the request ran, or what did can be run again."""
        assert self._router is not None
        if not self.request.body.whole:
            self._end_with_loss(f"replica {self._replica} refused the request after it had taken its body")
            return
        turn = self._end_try()
        if avoid:
            self._avoid = (*self._avoid, turn.endpoint.id)
            self._router.rest(turn)
        else:
            self._router.refused(turn)
        if time.monotonic() - self._since >= self._router.policy.max_queue_wait_s:
            self.fail(self._router.waited_too_long())
        else:
            self._ask(again=True)

    def _refused(self, refusal: bytes) -> None:
        if refusal == b"busy":
            self._hand_over(avoid=False)
        elif refusal == b"draining":
            self._hand_over()
        elif refusal == b"websockets":
            assert self._router is not None
            turn = self._end_try()
            self._router.give_back(turn)  # for requests it has room
            id = turn.endpoint.id
            if id in self._crowded:  # asked again only because there is no other
                self.fail(self._no_room())
            else:
                self._crowded = (*self._crowded, id)
                self._avoid = (*self._avoid, id)
                self._ask(again=True)
        else:
            word = refusal.decode("latin-1")
            self._end_with_loss(f"replica {self._replica} refused the proxy itself ({word}); the request did not run")

    def _no_room(self) -> RequestError:
        """What to tell a WebSocket that every replica was asked for."""
        if set(self._avoid) <= set(self._crowded):
            return TooManyWebSockets("no replica has room for another WebSocket: each has its max_open_websockets open")
        return NoReplica(
            "no replica took this WebSocket: some have their max_open_websockets open, others drain or were not reached"
        )

    def _died(self, error: ReplicaGone) -> None:
        """The replica had accepted the request, and the client has seen nothing of an answer."""
        request = self.request
        self._head = self._answer = None
        assert self._turn is not None
        if self._holding and isinstance(error, NotRead):
            # Only the head was sent, and the replica has not read all of it: nothing ran, whatever its method.
            self._proxy.pool.distrust(self._turn.endpoint.address)
            self._hand_over()
            return
        self._losses += 1
        self._died_with_it.add(self._turn.endpoint.id)
        self._proxy.pool.distrust(self._turn.endpoint.address)
        replica, method = self._replica, request.method.decode()
        if not self._may_run_twice():
            why = f"replica {replica} was lost; the outcome of this {method} is unknown"
        elif self._turn.endpoint.may_have_failed_with(self._id):
            why = f"replica {replica} stopped answering while this {method} ran in it; it is not tried again"
        elif spent(len(self._died_with_it), self._losses):
            why = f"replica {replica} was lost, as one was before it; this is not tried again"
        elif not request.body.whole:
            why = f"replica {replica} was lost; the body of this {method} is no longer held"
        elif not self._account.budget.take(replica, time.monotonic()):
            why = f"replica {replica} was lost; the retry budget of {self._account.name} is spent"
        else:
            log.warning("request %s is tried again: %s", self._id, error)
            self._since = time.monotonic()
            self._hand_over()
            return
        self._end_with_loss(why, error)

    def _unreadable(self, error: AnswerUnreadable) -> None:
        """The app has failed, and not the replica: run again it would fail again. The client has seen nothing yet."""
        self._head = self._answer = None
        bad = BadAnswer(f"what the app has answered in replica {self._replica} cannot be read")
        bad.__cause__ = error
        self.fail(bad)

    def _may_run_twice(self) -> bool:
        assert self._router is not None
        if self.request.websocket:
            return False
        retry = self._router.policy.retry
        return retry == "all" or (retry == "idempotent" and self.request.method in RETRYABLE)

    def _end_try(self) -> Turn:
        """As it was before the turn, which is the caller's to give back."""
        turn, self._turn = self._turn, None
        assert turn is not None
        self._stage = Stage.NEW
        self._refusal = None
        self._holding = False
        self.request.body.rewind()
        if self._blocked:
            self._blocked = False
            self._client.regulate()
        return turn

    def _broke_off(self, error: ReplicaGone) -> None:
        """The replica died while the client was already reading."""
        if self._stage is Stage.TUNNEL:
            self._end_tunnel("the replica was lost")
        else:
            self._cut_off(error)

    def _end_tunnel(self, why: str) -> None:
        """Tell the client so, unless the replica has closed, or was lost in the middle of a frame."""
        assert self._frames is not None
        self._release()
        self._record(101, OK)
        if self._frames.may_close:
            self._client.part(close_frame(SERVICE_RESTART, why))
        elif self._frames.closed:
            self._client.part()
        else:
            self._client.cut(reset=False)

    def _cut_off(self, error: Exception) -> None:
        """The answer that has begun cannot be completed; the connection is no longer there."""
        tunnel = self.tunnels
        answer = self._answer
        assert answer is not None
        self._release()
        self._record(answer.status, OK if tunnel else CUT)
        if not tunnel and self.request.refusal is None:
            log.warning("request %s is cut: %s", self._id, error)
        # Without a framing of its own a body ends with the connection: an orderly close would be a fake end.
        unframed = self.request.version == "1.0" or answer.extent == "until_close"
        self._client.cut(reset=not tunnel and unframed)

    def _end_with_loss(self, why: str, cause: ReplicaGone | None = None) -> None:
        lost = ReplicaLost(why)
        lost.__cause__ = cause
        self.fail(lost)

    @property
    def _id(self) -> str:
        return (self.request.id or b"-").decode()

    # Letting go

    def _leave_queue(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._proxy.waiting.pop(waiter, None)
            assert self._router is not None
            self._router.leave(waiter)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _release(self) -> None:
        """Give back all that is held."""
        if self._stage is Stage.TUNNEL:
            self._account.websockets.discard(self)
            self._forget_open()
        elif self._answer is not None and self._answer.stream is not None:
            self._account.streams.discard(self)
            self._forget_open()
        self._stage = Stage.DONE
        self._forget_arrival()
        self._forget_deadline()
        self._leave_queue()
        self._give_turn_back()

    def _forget_open(self) -> None:
        newest = self._account.open_at.get(self._address)
        if newest is not None and newest is self._turn:
            del self._account.open_at[self._address]

    def _forget_deadline(self) -> None:
        if self._deadlines is not None:
            self._deadlines.discard(self)
            self._deadlines = None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _give_turn_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            assert self._router is not None
            self._router.give_back(turn)

    def _record(self, status: int, outcome: str) -> None:
        """How it ended, once."""
        now = time.monotonic()
        seconds = now - self._arrived
        if self._proxy.clients is not None:
            self._proxy.clients.leave(self._client.host, self)
        account, answer = self._account, self._answer
        account.counts.note(outcome)
        if answer is not None and outcome == OK:
            account.answers.note(now)
        if answer is None or answer.status != 101:
            account.counts.took(seconds)
        if self._proxy.access is not None:
            request = self.request
            self._proxy.access.note(
                (
                    self._arrived,
                    self._client.peers,
                    request.method,
                    request.raw_path[:LONGEST_PATH],
                    status,
                    outcome,
                    self._bytes_out,
                    seconds,
                    request.id or b"-",
                    account.name,
                    self._replica,
                    self._tries,
                )
            )


def _head(status_line: bytes, first: Iterable[Header], fields: Iterable[Header], end: bytes) -> bytes:
    lines = [status_line, b"\r\n"]
    for name, value in first:
        lines += (name, b": ", value, b"\r\n")
    for name, value in fields:
        lines += (name, b": ", value, b"\r\n")
    lines.append(end)
    return b"".join(lines)
