"""One request at the proxy: acquire a permit, send the request to a replica, and pass the response on to the client."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from app_toolkit.core.affinity import Key, hashed
from app_toolkit.core.attempts import Action
from app_toolkit.core.cors import response_fields
from app_toolkit.core.deadlines import timeout_s
from app_toolkit.core.identity import ReplicaSetKey
from app_toolkit.core.recent import retry_after_s
from app_toolkit.core.routes import LiveIngress, RequestKind
from app_toolkit.core.server_timing import SERVER_TIMING
from app_toolkit.core.traffic import choose
from app_toolkit.core.uploads import is_slow
from app_toolkit.dispatch.dispatcher import Dispatcher, Stage
from app_toolkit.dispatch.mirror import MOST_BODY, Primary
from app_toolkit.errors import (
    BadResponse,
    NoReplica,
    ReplicaGone,
    ReplicaLost,
    RequestError,
    ResponseUnreadable,
)
from app_toolkit.observability.counts import Histogram
from app_toolkit.observability.records import CLIENT_CLOSED_REQUEST, CLIENT_GONE, CUT, LONGEST_PATH, OK, Record
from app_toolkit.proxy import builtin
from app_toolkit.proxy.deadlines import Deadline
from app_toolkit.proxy.downstream import Downstream
from app_toolkit.proxy.ingress_router import RoutePermit
from app_toolkit.proxy.request import KEPT_BODY, Request
from app_toolkit.proxy.response import ClientResponse
from app_toolkit.proxy.sessions import Sessions, value_at
from app_toolkit.proxy.state import ProxyState
from app_toolkit.transport import hop
from app_toolkit.transport.pool import PooledConnection, ResponseHead

log = logging.getLogger("app_toolkit.proxy")

MEASURE_S = 0.2
"""Seconds after which a request asks for a permit, if not enough of its body has arrived before. The client may wait
for a response before it sends the rest of the body. The rate of the body is measured over this time."""

DELAY_S = 1.0
"""Seconds until a request whose body arrives slowly asks again, after the replicas had no slot for such a body."""

SLOW_BODY = b"\r\n%b: 1" % hop.SLOW_BODY
"""Appended to the value of the hop field of a request whose body arrives slowly."""


class Exchange:
    """One request and its response: the side of the client, and the bytes between client and replica.

    * A small body is received completely before the request asks for a permit, so that a slow client occupies no slot.
      Of a larger one, the first bytes are received, and `core.uploads` decides whether it arrives slowly. Requests with
      slow bodies may hold only a share of the slots of a replica, which the replica enforces.
    * Every end of the exchange releases its permit, its place in the queue, its connection and its timers.
    * The exchange ends once, with one outcome, which is counted and written to the access log.
    * One deadline applies to waiting and all attempts. If it passes, the client gets 504. If the response has begun, it
      is cut off.
    * A dispatcher has the stage and the attempts of the request. An attempt without a response ends in
      `_attempt_ended`, which does what the dispatcher has decided.
    * If a response announces its length, its head is sent together with the first bytes of the body, so that a request
      can be retried if the connection breaks between the two.
    """

    __slots__ = (
        "_affinity",
        "_arriving",
        "_blocked",
        "_chunk_at",
        "_client",
        "_connection",
        "_deadline",
        "_dispatcher",
        "_gaps",
        "_holding",
        "_ingress_state",
        "_max_body",
        "_primary",
        "_proxy",
        "_refusal",
        "_response",
        "_route",
        "_sampled",
        "_sessions",
        "_slow",
        "_tunnel",
        "_waiter",
        "request",
    )

    def __init__(self, proxy: ProxyState, client: Downstream, request: Request) -> None:
        self._proxy = proxy
        self._client = client
        self.request = request
        self._dispatcher: Dispatcher[RoutePermit] = Dispatcher(request, proxy.clock())
        self._ingress_state = proxy.unowned
        self._route = ""  # the path template of its route
        self._max_body: int | None = None
        #: The sessions of the ingress, and the affinity key of the request. None: there are no sessions, or no key.
        self._sessions: Sessions | None = None
        self._affinity: Key | None = None
        self._response = ClientResponse(request, client)
        # Other resources, released in `_release`.
        self._waiter: object | None = None
        self._connection: PooledConnection | None = None
        self._deadline: Deadline | None = None
        self._arriving: asyncio.TimerHandle | None = None
        self._slow = False  # the body arrives slowly
        self._tunnel = False  # the response is an open WebSocket
        # State of the current attempt.
        self._holding = False  # the body is held back until the replica sends a 100
        self._blocked = False  # the write buffer to the replica is full
        self._refusal: bytes | None = None
        # Of a streamed response: the gaps between its chunks, and when the last one arrived. None: it is none.
        self._gaps: Histogram | None = None
        self._chunk_at = 0.0
        # Mirrors
        self._sampled = False  # it is decided which mirrors get copies
        #: The request as its copies are compared with it. None: there are no copies.
        self._primary: Primary | None = None

    @property
    def tunnels(self) -> bool:
        """Whether the exchange has become an open WebSocket."""
        return self._tunnel and self._dispatcher.stage is Stage.RESPONDING

    @property
    def waits(self) -> bool:
        """Whether the request waits for its body, or for a permit."""
        return self._dispatcher.stage is Stage.IDLE or self._dispatcher.stage is Stage.WAITING

    @property
    def wants_body(self) -> bool:
        """Whether more may be read from the client. A complete request reads on, to detect a disconnect."""
        request = self.request
        return request.complete or (not self._blocked and request.body.waiting <= KEPT_BODY)

    @property
    def body_is_due(self) -> bool:
        """Whether the client is expected to send body data now. This is false while the client waits for a 100."""
        request = self.request
        return not (request.complete or request.websocket or (request.expects and not self._response.continued))

    # For the client's connection

    def begin(self) -> None:
        request, proxy = self.request, self._proxy
        if request.id is None:
            request.id = proxy.mint_id()
        try:
            if request.error is not None:
                raise request.error
            own = builtin.endpoint(request, proxy.registry, proxy.draining)
            if own is None:
                if proxy.clients is not None:
                    proxy.clients.enter(self._client.host, self)
                self._find_ingress()
                self._set_deadline()
        except RequestError as error:
            self.fail(error)
            return
        if own is not None:
            self._dispatcher.end()
            self._respond(own, OK)
        elif request.complete or request.websocket or request.expects:
            self._ask(self._dispatcher.began)
        elif request.held:
            self._ask_after(MEASURE_S)

    def body_arrived(self) -> None:
        """Handle new bytes of the body, or its end."""
        try:
            self._check_body()
        except RequestError as error:
            self.fail(error)
            return
        if self._dispatcher.stage is Stage.IDLE:
            if self.request.complete or self.request.body.waiting >= KEPT_BODY:
                self._measure()
                self._body_is_here()
        elif self._connection is not None and not self._holding:
            pieces = self.request.body.take()
            if pieces:
                self._connection.write_all(pieces)
            if self._proxy.registry.routes.has_mirrors:
                self._mirror()

    def tunnel(self, data: bytes) -> None:
        """Pass on data of the client's WebSocket to the replica."""
        if self._connection is not None:
            self._connection.pass_on(data)

    def client_paused(self, paused: bool) -> None:
        """Pause or resume reading from the replica, because the write buffer to the client is full or has drained."""
        if self._connection is not None:
            if paused:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    def client_gone(self) -> None:
        """End the exchange because the client has disconnected. The connection to the replica is closed."""
        if self._dispatcher.stage is Stage.DONE:
            return
        tunnel = self.tunnels
        self._drop_connection(in_order=tunnel)
        self._release()
        if tunnel:
            self._record(101, OK)
        else:
            self._record(CLIENT_CLOSED_REQUEST, CLIENT_GONE)

    def dismiss(self) -> None:
        """End the exchange because the proxy stops and its drain timeout has passed."""
        if self.tunnels:
            self._drop_connection(in_order=True)
            self._close_tunnel("the proxy is shutting down")
        elif self._dispatcher.stage is Stage.SENT and not self._dispatcher.may_run_twice:
            self.fail(ReplicaLost(f"the proxy is shutting down; the outcome of {self.request.name} is unknown"))
        else:
            self.fail(NoReplica("the proxy is shutting down"))

    def expire(self) -> None:
        """End the exchange because its deadline has passed."""
        self.fail(self._dispatcher.late())

    def fail(self, error: Exception) -> None:
        """End the exchange with an error response, or cut off a response that has begun."""
        self._drop_connection()
        if self._dispatcher.stage is Stage.RESPONDING:
            self._cut_off(error)
            return
        self._release()
        ingress_state = self._ingress_state
        failed = _as_request_error(self._dispatcher.explain(error))
        now = self._proxy.clock()
        if failed.retry_after_s is not None and ingress_state is not self._proxy.unowned:
            waiting = self._dispatcher.router.waiting
            failed.retry_after_s = retry_after_s(waiting, ingress_state.responses.rate(now))
        if failed.status >= 500 and self.request.error is None:
            ingress_state.log_failure(self._id, failed, now)
        self._respond(self._error_response(failed), failed.reason)

    def _error_response(self, error: RequestError) -> builtin.BuiltinResponse:
        """Return the response for an error, as pages of other origins may read it."""
        request = self.request
        settings = self._proxy.registry.routes.cors(self._ingress_state.key, request.path)
        if not settings or request.websocket:
            return builtin.failure(error, self._id)
        preflight = builtin.preflight(settings, request)
        return preflight or builtin.failure(error, self._id, response_fields(settings, request.fields))

    # Before an attempt

    def _find_ingress(self) -> None:
        """Find the ingress that owns the request now, and check the body against its limit. Raise `RequestError`."""
        request, proxy = self.request, self._proxy
        kind: RequestKind = "websocket" if request.websocket else "http"
        key, self._route = proxy.registry.find(kind, request.method.decode(), request.path, self._choose_revision)
        router = proxy.registry.routers[key]
        self._ingress_state = proxy.ingress_state(key)
        self._dispatcher.assign(router, self._ingress_state.budget)
        self._max_body = None if request.websocket else router.policy.max_body_size
        self._check_body()
        self._read_key(key)

    def _choose_revision(self, able: Sequence[LiveIngress]) -> ReplicaSetKey:
        """Return the replica set of the live revision that serves the request."""
        routers, source = self._proxy.registry.routers, self._proxy.tag_source
        tag = None if source is None else value_at(source, self.request)
        if tag is not None and (tagged := next((each for each in able if each.tag == tag), None)):
            return tagged.replica_set
        keys = [] if self.request.shard_key is None else [self.request.shard_key]
        for each in able:
            self._read_key(each.replica_set)
            if each.share and routers[each.replica_set].has_session(self._affinity):
                return each.replica_set
            if (key := hashed(self._affinity)) is not None:
                keys.append(key)
        shares = {each.revision: each.share for each in able}
        chosen = choose(shares, keys[0] if keys else None, self._proxy.draw())
        return next(each.replica_set for each in able if each.revision == chosen)

    def _read_key(self, ingress: ReplicaSetKey) -> None:
        """Read the affinity key of the request, as an ingress defines it. Live revisions may define it differently."""
        affinity = self._proxy.registry.routers[ingress].policy.affinity
        if affinity is None:
            self._sessions = self._affinity = None
            return
        sessions = self._proxy.ingress_state(ingress).sessions(affinity, self._proxy.token)
        if sessions is not self._sessions:
            self._sessions, self._affinity = sessions, sessions.key(self.request, self._client.peers)

    def _check_body(self) -> None:
        """Raise `ContentTooLarge` if the announced or received size of the body exceeds the limit."""
        if self._max_body is not None:
            self.request.check_body(self._max_body, self._ingress_state.name)

    def _set_deadline(self) -> None:
        """Set the deadline from the request or the ingress. Raise `BadRequest` if the request's timeout is invalid."""
        dispatcher = self._dispatcher
        usual = dispatcher.router.policy.request_timeout_s
        if usual is None and self.request.timeout is None:
            return
        timeout = timeout_s(self.request.timeout, usual)
        if timeout is not None:
            shared = self._ingress_state.deadlines(timeout) if timeout == usual else None
            deadline = self._deadline = Deadline(self, dispatcher.began + timeout, timeout, shared)
            dispatcher.attempts.deadline = deadline.at

    def _ask_after(self, seconds: float) -> None:
        self._arriving = asyncio.get_running_loop().call_later(seconds, self._waited)

    def _waited(self) -> None:
        """Ask for a permit before enough of the body has arrived, or again."""
        if self.wants_body:
            self._measure()
        self._body_is_here()

    def _measure(self) -> None:
        """Find out whether the body arrives slowly, while or when the proxy stops reading it."""
        request = self.request
        if request.held:
            self._slow = is_slow(request.body.received, request.missing, self._proxy.clock() - self._dispatcher.began)

    def _body_is_here(self) -> None:
        """Ask for a permit, because enough of the body has arrived or the proxy stops waiting for it."""
        self._forget_arrival()
        dispatcher, now = self._dispatcher, self._proxy.clock()
        if dispatcher.attempts.count == 0:
            dispatcher.attempts.since = now
        # Its ingress may have been removed while the body arrived.
        if dispatcher.router is not self._proxy.registry.routers.get(self._ingress_state.key):
            try:
                self._find_ingress()
            except RequestError as error:
                self.fail(error)
                return
        self._ask(now)

    def _ask(self, now: float) -> None:
        """Acquire a permit, or wait for one."""
        client, dispatcher = self._client, self._dispatcher
        shared = bool(self.request.forwarded)
        sessions = self._sessions is not None
        preferred = self._ingress_state.preferred(client.served, client.peers, shared=shared, sessions=sessions)
        permit = dispatcher.acquire(now, *preferred, self._affinity)
        if permit is not None:
            self._connect(permit)
        else:
            self._wait_for_permit()

    def _wait_for_permit(self) -> None:
        """Wait for a permit, and leave the queue when the exchange ends before."""
        dispatcher = self._dispatcher
        attempts = dispatcher.attempts
        try:
            self._waiter = dispatcher.router.wait(
                self._granted,
                attempts.since,
                avoid=attempts.avoid,
                affinity=self._affinity,
                again=attempts.count > 0,
                failed=self.fail,
            )
        except RequestError as error:
            self.fail(error)

    def _granted(self, permit: RoutePermit) -> None:
        """Take the permit for which the request has waited."""
        self._waiter = None
        router = self._dispatcher.router
        if self._sessions is None and router.policy.affinity is not None:
            # The options of the ingress have arrived while the request waited: its session may be at another replica.
            self._read_key(self._ingress_state.key)
            if self._affinity is not None:
                router.release(permit)
                permit = router.try_acquire(self._dispatcher.attempts.avoid, None, False, False, self._affinity)
                if permit is None:
                    self._wait_for_permit()
                    return
        self._dispatcher.granted(permit, self._proxy.clock())
        self._connect(permit)

    # An attempt

    def _connect(self, permit: RoutePermit) -> None:
        permit.request = self.request.path
        address = permit.endpoint.address
        # A handshake is retried only if the replica has not read it, which can be detected on a new connection alone.
        connection = None if self.request.websocket else self._proxy.pool.take(address)
        if connection is not None:
            self._send(connection, permit)
        else:
            self._proxy.pool.dial(address, partial(self._reached, permit), self._unreached)

    def _reached(self, permit: RoutePermit, connection: PooledConnection) -> None:
        if self._dispatcher.stage is Stage.CONNECTING:
            self._send(connection, permit)
        else:  # the exchange has ended meanwhile
            self._proxy.pool.give_back(connection)

    def _unreached(self, gone: ReplicaGone) -> None:
        if self._dispatcher.stage is Stage.CONNECTING:
            now = self._proxy.clock()
            self._attempt_ended(self._dispatcher.lost(gone, now), now, gone)

    def _send(self, connection: PooledConnection, permit: RoutePermit) -> None:
        request, client, proxy = self.request, self._client, self._proxy
        assert request.id is not None
        self._dispatcher.sent()
        self._connection = connection
        self._holding = request.held or request.websocket
        connection.begin(self, head_only=request.method == b"HEAD", decode=request.version == "1.0")
        if not client.writable:
            connection.pause_reading()
        # The deadline of a WebSocket applies to its handshake only, and the proxy alone enforces it.
        left_ms = None if self._deadline is None or request.websocket else self._deadline.left_ms(proxy.clock())
        identity = hop.encode(proxy.token, request.id, request.version.encode(), client.peers, left_ms)
        if permit.redeem():
            identity += proxy.wait_queues.redeem
        if self._slow and not request.complete:
            identity += SLOW_BODY
        head = request.head(identity, None if self._sessions is None else self._sessions.unpinned(request))
        if self._holding:
            connection.write(head)
        else:
            connection.write_all((head, *request.body.take()))
        if proxy.registry.routes.has_mirrors:
            self._mirror()

    def _mirror(self) -> None:
        """Send copies of the request to mirrors, once it is complete or its body is too large for that."""
        request = self.request
        if self._sampled or request.websocket or not (request.complete or (request.length or 0) > MOST_BODY):
            return
        self._sampled = True
        unpinned = None if self._sessions is None else self._sessions.unpinned(request)
        self._primary = self._proxy.mirroring.copy(request, self._ingress_state.key, self._client.peers, unpinned)

    def _release_body(self) -> None:
        if self._holding:
            self._holding = False
            self.body_arrived()
            self._client.regulate()

    def _attempt_refused(self, word: bytes) -> None:
        now = self._proxy.clock()
        self._attempt_ended(self._dispatcher.refused(word.decode("latin-1"), now), now)

    def _attempt_ended(self, step: Action | Exception, now: float, error: ReplicaGone | None = None) -> None:
        """Begin another attempt, or fail, after one that ended before any response was sent to the client."""
        self._response.take_back()
        if isinstance(step, Exception):
            self.fail(step)
            return
        if step is Action.RETRY:
            log.warning("request %s is retried: %s", self._id, error)
        self._refusal = None
        self._holding = False
        self.request.body.rewind()
        if self._blocked:
            self._blocked = False
            self._client.regulate()
        if step is Action.DELAY:
            self._ask_after(DELAY_S)
        else:
            self._ask(now)

    # For the replica's connection

    def informed(self, head: ResponseHead) -> None:
        if head.status == 100 and not self.request.websocket:
            self._release_body()
        self._response.inform(head)

    def response_started(self, head: ResponseHead) -> None:
        if head.refusal is not None:
            self._refusal = head.refusal
            return
        if self._sessions is not None and head.status != 304:  # a 304 updates a response that caches may share
            replica = self._dispatcher.replica
            head.fields = self._sessions.pinned(head.fields, self.request, replica, self._client.peers)
        if self._proxy.server_timing:
            head.fields = [*head.fields, (SERVER_TIMING, self._dispatcher.server_timing(self._proxy.clock()))]
        if head.status == 101:
            self._open_tunnel(head)
        elif self._response.prepare(head):
            if head.stream is not None:
                self._open(kept=head.stream == hop.KEPT)
                self._gaps = self._proxy.counters.gaps(self._ingress_state.name)
            if head.stream == hop.LASTING:
                self._forget_deadline()
            self._start()

    def received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._dispatcher.stage is Stage.SENT:
            self._start()
        if self._primary is not None:
            self._primary.received(data)
        if self._gaps is not None:
            now, before = self._proxy.clock(), self._chunk_at
            if before:
                self._gaps.observe(now - before)
            self._chunk_at = now
        self._response.write(data)

    def ended(self, reusable: bool) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        if reusable and self.request.complete and not self._holding:
            # An idle connection must read, so that the pool detects when it is lost.
            if not self._client.writable:
                connection.resume_reading()
            self._proxy.pool.give_back(connection)
        else:
            connection.abort()
        if self._refusal is not None:
            self._attempt_refused(self._refusal)
            return
        if self._dispatcher.stage is Stage.SENT:
            self._start()
        self._finish()

    def lost(self, error: ReplicaGone) -> None:
        self._connection = None
        if self._refusal is not None:
            self._attempt_refused(self._refusal)
        elif self.tunnels:
            self._close_tunnel("the replica was lost")
        elif self._dispatcher.stage is Stage.RESPONDING:
            self._cut_off(error)
        else:
            permit = self._dispatcher.permit
            if permit is not None and not isinstance(error, ResponseUnreadable):
                self._proxy.pool.distrust(permit.endpoint.address)
            now = self._proxy.clock()
            self._attempt_ended(self._dispatcher.lost(error, now, head_only=self._holding), now, error)

    def writing_paused(self, paused: bool) -> None:
        self._blocked = paused
        self._client.regulate()

    # The response

    def _start(self) -> None:
        """Begin to send the response to the client. From now on, the request cannot be retried."""
        self._dispatcher.response_started(self._proxy.clock())
        # An app that responds before it reads the body sends no 100.
        if self._holding:
            self._release_body()
        self.request.body.forget()
        if self._primary is not None and (head := self._response.response_head) is not None:
            self._primary.response.comparable = head.extent != "chunked"  # the body has its framing
        self._response.start()

    def _finish(self) -> None:
        head = self._response.response_head
        assert head is not None
        if self._primary is not None:
            self._primary.end(str(head.status), self._proxy.clock())
        self._release()
        self._client.served[self._ingress_state.key] = self._dispatcher.replica, head.stream is not None
        self._record(head.status, OK)
        self._client.finished(self.request, self._response.keep)

    def _open_tunnel(self, head: ResponseHead) -> None:
        if not self.request.websocket:
            self.fail(BadResponse("the app switched protocols, but the request did not ask for an upgrade"))
            return
        self._dispatcher.response_started(self._proxy.clock())
        self._tunnel = True
        self._open()
        self._forget_deadline()
        self.request.body.forget()
        self._response.open_tunnel(head)
        self._release_body()

    def _open(self, *, kept: bool = False) -> None:
        """Release the slot of the request, because an open stream or WebSocket does not count as an ongoing request.

        `kept`: the stream keeps its slot, because the replica has too many open streams.
        """
        permit = self._dispatcher.permit
        assert permit is not None, "an attempt has a permit"
        if kept:
            permit.kept = True
            return
        self._ingress_state.opened(self, self._client.peers, permit, websocket=self.request.websocket)
        self._dispatcher.router.open(permit)

    def _close_tunnel(self, why: str) -> None:
        self._release()
        self._record(101, OK)
        self._response.close_tunnel(why)

    def _cut_off(self, error: Exception) -> None:
        """Cut off the response that has begun, because it cannot be completed. The replica's connection is gone."""
        tunnel, head = self.tunnels, self._response.response_head
        assert head is not None
        self._release()
        self._record(head.status, OK if tunnel else CUT)
        if not tunnel and self.request.error is None:
            log.warning("the response to request %s was cut off: %s", self._id, error)
        self._response.cut()

    def _respond(self, own: builtin.BuiltinResponse, outcome: str) -> None:
        """Send a response of the proxy itself."""
        self._response.give(own)
        self._record(own.status, outcome)
        self._client.finished(self.request, self._response.keep)

    @property
    def _id(self) -> str:
        return (self.request.id or b"-").decode()

    # The end

    def _drop_connection(self, *, in_order: bool = False) -> None:
        """End the connection to the replica. `in_order`: send the written bytes first, such as a close frame."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if in_order:
                connection.close()
            else:
                connection.abort()

    def _release(self) -> None:
        """Release all resources, and enter the last stage."""
        head, dispatcher = self._response.response_head, self._dispatcher
        if head is not None and (head.status == 101 or head.stream is not None):
            self._ingress_state.closed(self, self._client.peers, dispatcher.permit)
        self._forget_arrival()
        self._forget_deadline()
        if self._primary is not None:
            self._primary.abandon()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            dispatcher.router.leave(waiter)
        dispatcher.end()

    def _forget_arrival(self) -> None:
        timer, self._arriving = self._arriving, None
        if timer is not None:
            timer.cancel()

    def _forget_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.cancel()

    def _record(self, status: int, outcome: str) -> None:
        """Record the end of the request. Its client may then send another one."""
        proxy, request, response, dispatcher = self._proxy, self.request, self._response, self._dispatcher
        head, ingress_state = response.response_head, self._ingress_state
        now = proxy.clock()
        queued_s, first_byte_s, attempt_s, failed = dispatcher.stage_times(now)
        if first_byte_s is None and outcome != CLIENT_GONE:  # the proxy itself responds now
            first_byte_s = now - dispatcher.began
        if proxy.clients is not None:
            proxy.clients.leave(self._client.host, self)
        if head is not None and outcome == OK:
            ingress_state.responses.note(now)
        proxy.records.add(
            Record(
                dispatcher.began,
                now - dispatcher.began,
                "websocket" if head is not None and head.status == 101 else "http",
                ingress_state.name,
                dispatcher.replica,
                dispatcher.attempts.count,
                outcome,
                request.method,
                request.id or b"-",
                self._client.peers,
                request.raw_path[:LONGEST_PATH],
                status,
                response.size,
                dispatcher.affinity,
                queued_s,
                first_byte_s,
                attempt_s,
                failed,
                self._route,
                request.trace,
            )
        )


def _as_request_error(error: Exception) -> RequestError:
    """Return the error if it is a `RequestError`, else a general one that hides internal details from the client."""
    if isinstance(error, RequestError):
        return error
    failed = RequestError("the proxy failed")
    failed.__cause__ = error
    return failed
