"""One request and its response: the exchange between a downstream, which has sent it, and the upstreams of replicas.

Design: docs/design/edge.md
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, Protocol

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.targets import Target
from app_toolkit.errors import (
    BadResponse,
    NoReplica,
    ReplicaGone,
    ReplicaLost,
    RequestError,
    ResponseUnreadable,
)
from app_toolkit.exchange import builtin
from app_toolkit.exchange.allowed_time import timeout_s
from app_toolkit.exchange.attempts import Action
from app_toolkit.exchange.cors import response_fields
from app_toolkit.exchange.deadlines import Deadlines, SingleDeadline
from app_toolkit.exchange.dispatcher import CONNECTING, DONE, IDLE, RESPONDING, SENT, WAITING, Dispatcher
from app_toolkit.exchange.downstream import Downstream
from app_toolkit.exchange.ingress_router import RoutePermit
from app_toolkit.exchange.plane import ExchangePlane
from app_toolkit.exchange.preference import NO_PREFERENCE, Preference, served_by
from app_toolkit.exchange.recent import retry_after_s
from app_toolkit.exchange.request import KEPT_BODY, ClientRequest
from app_toolkit.exchange.upstream import Terms, Upstream
from app_toolkit.observability.records import CLIENT_CLOSED_REQUEST, CLIENT_GONE, CUT, LONGEST_PATH, OK, Record
from app_toolkit.types import Header
from app_toolkit.wire import hop
from app_toolkit.wire.pool import ResponseHead

log = logging.getLogger("app_toolkit.proxy")

DELAY_S = 1.0
"""Seconds until a request whose body arrives slowly asks again, after the replicas had no slot for such a body."""


class Observer(Protocol):
    """Is told of the body of a response."""

    def received(self, data: bytes) -> None: ...


class Exchange:
    """One request and its response. It decides when which end does what, and no end knows the other.

    * Every end of the exchange releases its permit, its place in the queue, its upstream and its timers.
    * The exchange ends once, with one outcome, which is recorded.
    * One deadline applies to waiting and all attempts. If it passes, the client gets 504. If the response has begun, it
      is cut off.
    * A dispatcher has the stage and the attempts of the request. An attempt without a response ends in
      `_attempt_ended`, which does what the dispatcher has decided.
    * If a response announces its length, its head is sent together with the first bytes of the body, so that a request
      can be retried if the connection breaks between the two.
    * Features are filters (`exchange.filters`), which the exchange calls at its stages.
    """

    __slots__ = (
        "_blocked",
        "_deadlines",
        "_ingress_state",
        "_max_body",
        "_observers",
        "_refusal",
        "_route",
        "_timer",
        "_tunnel",
        "_upstream",
        "_waiter",
        "dispatcher",
        "downstream",
        "fields",
        "holding",
        "marks",
        "plane",
        "preference",
        "request",
        "targets",
    )

    def __init__(self, plane: ExchangePlane, downstream: Downstream, request: ClientRequest) -> None:
        self.plane = plane
        self.downstream = downstream
        self.request = request
        self.dispatcher: Dispatcher[RoutePermit] = Dispatcher(request, plane.clock())
        #: The replica that the request prefers by its key. None: it has none, and prefers that of its client.
        self.preference: Preference | None = None
        #: The targets of which one was chosen. Empty: there is only one.
        self.targets: Sequence[Target] = ()
        #: What filters remember, by filter.
        self.marks: dict[Any, Any] = {}
        #: Fields that filters add to the response, whoever gives it.
        self.fields: list[Header] = []
        self._observers: list[Observer] | None = None
        self._ingress_state = plane.unowned
        self._route = ""  # the path template of its route
        self._max_body: int | None = None
        # Other resources, released in `_release`.
        self._waiter: object | None = None
        self._upstream: Upstream | None = None
        #: What its deadline is discarded from. None: it has no deadline.
        self._deadlines: Deadlines | SingleDeadline | None = None
        #: Ends a wait before an attempt: of a filter, of an upload, or in the queue. None: there is none.
        self._timer: asyncio.TimerHandle | None = None
        self._tunnel = False  # the response is an open WebSocket
        # State of the current attempt.
        #: Whether the body is held back until the replica asks for it, by a 100.
        self.holding = False
        self._blocked = False  # the write buffer to the replica is full
        self._refusal: bytes | None = None

    #: The kind of its record, if it does not become a WebSocket.
    kind = "http"

    @property
    def ingress(self) -> ReplicaSetKey:
        """The replica set of the ingress that serves the request."""
        return self._ingress_state.key

    @property
    def ingress_name(self) -> str:
        """The name of the ingress in records, metrics and messages."""
        return self._ingress_state.name

    @property
    def tunnels(self) -> bool:
        """Whether the exchange has become an open WebSocket."""
        return self._tunnel and self.dispatcher.stage is RESPONDING

    @property
    def waits(self) -> bool:
        """Whether the request waits for its body, or for a permit."""
        return self.dispatcher.stage is IDLE or self.dispatcher.stage is WAITING

    @property
    def done(self) -> bool:
        return self.dispatcher.stage is DONE

    @property
    def wants_body(self) -> bool:
        """Whether more may be read from the client. A complete request reads on, to detect a disconnect."""
        request = self.request
        return request.complete or (not self._blocked and request.body.waiting <= KEPT_BODY)

    @property
    def body_is_due(self) -> bool:
        """Whether the client is expected to send body data now. This is false while the client waits for a 100."""
        request = self.request
        return not (request.complete or request.websocket or (request.expects and not self.downstream.continued))

    # For filters

    def observe(self, observer: Observer) -> None:
        """Tell an observer of the body of the response."""
        self._observers = [*(self._observers or ()), observer]

    def proceed(self) -> None:
        """Ask for a permit, if no filter lets the request wait any more."""
        if self.dispatcher.stage is IDLE and ((self.request.complete and not self.marks) or self._may_ask()):
            self._ask_now()

    # For the downstream

    def begin(self) -> None:
        request, plane = self.request, self.plane
        if request.id is None:
            request.id = plane.mint_id()
        try:
            if request.error is not None:
                raise request.error
            response = plane.own_response(request)
            if response is None:
                for hook in plane.filters.arrived:
                    hook(self)
                self._find_ingress()
                self._set_deadline()
                for hook in self._ingress_state.request_hooks:
                    hook(self)
        except RequestError as error:
            self.fail(error)
            return
        if response is not None:
            self.dispatcher.end()
            self._respond(response, OK)
        elif (request.complete and not self.marks) or self._may_ask():
            self._ask(self.dispatcher.attempts.since)

    def body_arrived(self) -> None:
        """Handle new bytes of the body, or its end."""
        if self._max_body is not None:
            try:
                self._check_body(self._max_body)
            except RequestError as error:
                self.fail(error)
                return
        if self.dispatcher.stage is IDLE:
            self.proceed()
        elif self._upstream is not None and not self.holding:
            pieces = self.request.body.take()
            if pieces:
                self._upstream.write_all(pieces)
            if self.targets:
                for hook in self.plane.filters.sent:
                    hook(self)

    def tunnel(self, data: bytes) -> None:
        """Pass on data of the client's WebSocket to the replica."""
        if self._upstream is not None:
            self._upstream.pass_on(data)

    def client_paused(self, paused: bool) -> None:
        """Pause or resume reading from the replica, because the write buffer to the client is full or has drained."""
        if self._upstream is not None:
            if paused:
                self._upstream.pause_reading()
            else:
                self._upstream.resume_reading()

    def client_gone(self) -> None:
        """End the exchange because the client has disconnected. The replica sees it, too."""
        if self.dispatcher.stage is DONE:
            return
        tunnel = self.tunnels
        self._drop_upstream(in_order=tunnel)
        self._release()
        if tunnel:
            self._record(101, OK)
        else:
            self._record(CLIENT_CLOSED_REQUEST, CLIENT_GONE)

    def dismiss(self) -> None:
        """End the exchange because the proxy stops and its drain timeout has passed."""
        if self.tunnels:
            self._drop_upstream(in_order=True)
            self._close_tunnel("the proxy is shutting down")
        elif self.dispatcher.stage is SENT and not self.dispatcher.may_run_twice:
            self.fail(ReplicaLost(f"the proxy is shutting down; the outcome of {self.request.name} is unknown"))
        else:
            self.fail(NoReplica("the proxy is shutting down"))

    def expire(self) -> None:
        """End the exchange because its deadline has passed."""
        self.fail(self.dispatcher.late())

    def fail(self, error: Exception) -> None:
        """End the exchange with an error response, or cut off a response that has begun."""
        self._drop_upstream()
        if self.dispatcher.stage is RESPONDING:
            self._cut_off(error)
            return
        self._release()
        ingress_state = self._ingress_state
        failed = _as_request_error(self.dispatcher.explain(error))
        now = self.plane.clock()
        if failed.retry_after_s is not None and ingress_state is not self.plane.unowned:
            waiting = self.dispatcher.router.waiting
            failed.retry_after_s = retry_after_s(waiting, ingress_state.responses.rate(now))
        if failed.status >= 500 and self.request.error is None:
            ingress_state.log_failure(self._id, failed, now)
        self._respond(self._error_response(failed), failed.reason)

    def _error_response(self, error: RequestError) -> builtin.BuiltinResponse:
        """Return the response for an error, as pages of other origins may read it."""
        request = self.request
        settings = self.plane.cors(self.ingress, request.path)
        if not settings or request.websocket:
            return builtin.failure(error, self._id)
        preflight = builtin.preflight(settings, request)
        return preflight or builtin.failure(error, self._id, response_fields(settings, request.fields))

    # Before an attempt

    def _find_ingress(self) -> None:
        """Find the ingress that owns the request now, and check the body against its limit. Raise `RequestError`."""
        plane = self.plane
        ingress, self._route = plane.find(self)
        router = plane.router(ingress)
        assert router is not None, "routes have routers"
        self._ingress_state = ingress_state = plane.ingress_state(ingress)
        policy = router.policy
        if ingress_state.policy is not policy:
            ingress_state.apply(policy, plane.filters)
        self.dispatcher.assign(router, ingress_state.budget)
        self._max_body = None if self.request.websocket else policy.max_body_size
        if self._max_body is not None:
            self._check_body(self._max_body)
        # A mark may be that of another ingress, which has served the request before, or could have.
        for hook in plane.filters.place if self.marks else ingress_state.place_hooks:
            hook(self, ingress)

    def place(self, ingress: ReplicaSetKey) -> None:
        """Set the `preference` of the request, as an ingress that may serve it would."""
        for hook in self.plane.filters.place:
            hook(self, ingress)

    def _check_body(self, most: int) -> None:
        """Raise `ContentTooLarge` if the announced or received size of the body exceeds the limit."""
        self.request.check_body(most, self._ingress_state.name)

    def _set_deadline(self) -> None:
        """Set the deadline from the request or the ingress. Raise `BadRequest` if the request's timeout is invalid."""
        dispatcher = self.dispatcher
        usual, asked = dispatcher.router.policy.request_timeout_s, self.request.timeout
        timeout = usual if asked is None else timeout_s(asked, usual)
        if timeout is None:
            return
        deadline = dispatcher.attempts.deadline = dispatcher.began + timeout
        if timeout == usual:
            self._deadlines = self._ingress_state.deadlines(timeout)
            self._deadlines.add(self, deadline)
        else:
            self._deadlines = SingleDeadline(self, timeout)

    def _may_ask(self) -> bool:
        """Return whether the request asks for a permit now. Otherwise it does later, or when more of its body is here.

        The longest time for which a filter wants to wait counts. It begins once.
        """
        seconds = 0.0
        for hook in self.plane.filters.waits:
            seconds = max(seconds, hook(self))
        if not seconds:
            return True
        if seconds < float("inf") and self._timer is None:
            self._ask_after(seconds)
        return False

    def _ask_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._waited)

    def _waited(self) -> None:
        """Ask for a permit before enough of the body has arrived, or again."""
        for hook in self.plane.filters.waited:
            hook(self)
        self._ask_now()

    def _ask_now(self) -> None:
        """Ask for a permit, because the filters have no reason to wait, or do not wait any longer."""
        self._forget_timer()
        dispatcher, now = self.dispatcher, self.plane.clock()
        if dispatcher.attempts.count == 0:
            dispatcher.attempts.since = now
        # Its ingress may have been removed while the body arrived.
        if dispatcher.router is not self.plane.router(self.ingress):
            try:
                self._find_ingress()
            except RequestError as error:
                self.fail(error)
                return
        self._ask(now)

    def _ask(self, now: float) -> None:
        """Acquire a permit, or wait for one."""
        downstream, dispatcher, preference = self.downstream, self.dispatcher, self.preference
        if preference is None:
            shared = bool(self.request.forwarded)
            sessions = dispatcher.router.policy.affinity is not None
            served, peers = downstream.served, downstream.peers
            preference = self._ingress_state.preferred(served, peers, shared=shared, sessions=sessions)
        permit = dispatcher.acquire(now, preference)
        if permit is not None:
            self._connect(permit)
        else:
            self._wait_for_permit()

    def _wait_for_permit(self) -> None:
        """Wait for a permit, and leave the queue when the exchange ends before."""
        dispatcher = self.dispatcher
        attempts = dispatcher.attempts
        try:
            self._waiter = dispatcher.router.wait(
                self._granted,
                attempts.since,
                avoid=attempts.avoid,
                preference=self.preference or NO_PREFERENCE,
                again=attempts.count > 0,
                failed=self._wait_failed,
            )
        except RequestError as error:
            self.fail(error)

    def _wait_failed(self, error: Exception) -> None:
        """Fail, because the router gives no permit."""
        self.fail(error)

    def _granted(self, permit: RoutePermit) -> None:
        """Take the permit for which the request has waited."""
        self._waiter = None
        if self.preference is None:
            # The options of the ingress may have arrived while the request waited: its session is at another replica.
            self.place(self.ingress)
            if self.preference is not None:
                router = self.dispatcher.router
                router.release(permit)
                permit = router.try_acquire(self.dispatcher.attempts.avoid, self.preference)
                if permit is None:
                    self._wait_for_permit()
                    return
        self.dispatcher.granted(permit, self.plane.clock())
        self._connect(permit)

    # An attempt

    def _connect(self, permit: RoutePermit) -> None:
        permit.request = permit.request or self.request.path
        address, upstreams = permit.endpoint.address, self.plane.upstreams
        # A handshake is retried only if the replica has not read it, which can be detected on a new connection alone.
        upstream = None if self.request.websocket else upstreams.take(address)
        if upstream is not None:
            self._send(upstream, permit)
        else:
            upstreams.dial(address, partial(self._reached, permit), self._unreached)

    def _reached(self, permit: RoutePermit, upstream: Upstream) -> None:
        if self.dispatcher.stage is CONNECTING:
            self._send(upstream, permit)
        else:  # the exchange has ended meanwhile
            self.plane.upstreams.give_back(upstream)

    def _unreached(self, gone: ReplicaGone) -> None:
        if self.dispatcher.stage is CONNECTING:
            now = self.plane.clock()
            self._attempt_ended(self.dispatcher.lost(gone, now), now, gone)

    def _send(self, upstream: Upstream, permit: RoutePermit) -> None:
        request, plane = self.request, self.plane
        self.dispatcher.sent()
        self._upstream = upstream
        self.holding = request.body_on_demand or request.websocket
        # The deadline of a WebSocket applies to its handshake only, and the exchange alone enforces it.
        deadline, left_ms = self.dispatcher.attempts.deadline, None
        if deadline is not None and not request.websocket:
            left_ms = max(ceil((deadline - plane.clock()) * 1_000), 1)
        terms = Terms(left_ms, permit.redeem())
        if self.marks:
            for hook in plane.filters.sending:
                hook(self, terms)
        plane.upstreams.send(upstream, self, terms)
        if not self.downstream.writable:
            upstream.pause_reading()
        if self.targets:
            for hook in plane.filters.sent:
                hook(self)

    def _release_body(self) -> None:
        if self.holding:
            self.holding = False
            self.body_arrived()
            self.downstream.regulate()

    def _attempt_refused(self, word: bytes) -> None:
        now = self.plane.clock()
        self._attempt_ended(self.dispatcher.refused(word.decode("latin-1"), now), now)

    def _attempt_ended(self, step: Action | Exception, now: float, error: ReplicaGone | None = None) -> None:
        """Begin another attempt, or fail, after one that ended before any response was sent to the client."""
        self.downstream.take_back()
        if isinstance(step, Exception):
            self.fail(step)
            return
        if step is Action.RETRY:
            self._ingress_state.log_retry(self._id, error)
        self._refusal = None
        self.holding = False
        self._observers = None
        self.request.body.rewind()
        if self._blocked:
            self._blocked = False
            self.downstream.regulate()
        if step is Action.DELAY:
            self._ask_after(DELAY_S)
        else:
            self._ask(now)

    # For the upstream

    def informed(self, head: ResponseHead) -> None:
        if head.status == 100 and not self.request.websocket:
            self._release_body()
        self.downstream.inform(head)

    def response_started(self, head: ResponseHead) -> None:
        if head.refusal is not None:
            self._refusal = head.refusal
            return
        if self.marks:
            for hook in self.plane.filters.response:
                hook(self, head)
        if head.stream is not None:
            for hook in self.plane.filters.stream:
                hook(self)
        if self.fields:
            head.fields = [*head.fields, *self.fields]
        if head.status == 101:
            self._open_tunnel(head)
        elif self.downstream.prepare(head):
            if head.stream is not None:
                self._open(kept=head.stream == hop.KEPT)
            if head.stream == hop.LASTING:
                self._forget_deadline()
            self._start()

    def received(self, data: Any) -> None:
        """Pass on bytes of the body, or a result of a call."""
        if self._refusal is not None:
            return
        if self._observers is not None:
            for observer in self._observers:
                observer.received(data)
        if self.dispatcher.stage is SENT:
            self._start(data)
        else:
            self.downstream.write(data)

    def ended(self, reusable: bool) -> None:
        upstream, self._upstream = self._upstream, None
        assert upstream is not None
        if reusable and self.request.complete and not self.holding:
            # An idle connection must read, so that the pool detects when it is lost.
            if not self.downstream.writable:
                upstream.resume_reading()
            self.plane.upstreams.give_back(upstream)
        else:
            upstream.abort()
        if self._refusal is not None:
            self._attempt_refused(self._refusal)
            return
        if self.dispatcher.stage is SENT:
            self._start()
        self._finish()

    def lost(self, error: ReplicaGone) -> None:
        self._upstream = None
        if self._refusal is not None:
            self._attempt_refused(self._refusal)
        elif self.tunnels:
            self._close_tunnel("the replica was lost")
        elif self.dispatcher.stage is RESPONDING:
            self._cut_off(error)
        else:
            permit = self.dispatcher.permit
            if permit is not None and not isinstance(error, ResponseUnreadable):
                self.plane.upstreams.distrust(permit.endpoint.address)
            now = self.plane.clock()
            self._attempt_ended(self.dispatcher.lost(error, now, head_only=self.holding), now, error)

    def writing_paused(self, paused: bool) -> None:
        self._blocked = paused
        self.downstream.regulate()

    # The response

    def _start(self, data: Any = None) -> None:
        """Begin to send the response to the client. From now on, the request cannot be retried.

        `data`: the first bytes of the body, or the first result of a call. None: the head alone.
        """
        self.dispatcher.response_started(self.plane.clock())
        # An app that responds before it reads the body sends no 100.
        if self.holding:
            self._release_body()
        self.request.body.forget()
        self.downstream.start(data)

    def _finish(self) -> None:
        head = self.downstream.head
        assert head is not None
        self._release()
        self.downstream.served[self._ingress_state.key] = served_by(self.dispatcher.replica, head.stream is not None)
        self._record(head.status, OK)
        self.downstream.finished()

    def _open_tunnel(self, head: ResponseHead) -> None:
        if not self.request.websocket:
            self.fail(BadResponse("the app switched protocols, but the request did not ask for an upgrade"))
            return
        self.dispatcher.response_started(self.plane.clock())
        self._tunnel = True
        self._open()
        self._forget_deadline()
        self.request.body.forget()
        self.downstream.open_tunnel(head)
        self._release_body()

    def _open(self, *, kept: bool = False) -> None:
        """Release the slot of the request, because an open stream or WebSocket does not count as an ongoing request.

        `kept`: the stream keeps its slot, because the replica has too many open streams.
        """
        permit = self.dispatcher.permit
        assert permit is not None, "an attempt has a permit"
        if kept:
            permit.kept = True
            return
        self._ingress_state.opened(self, self.downstream.peers, permit, websocket=self.request.websocket)
        self.dispatcher.router.open(permit)

    def _close_tunnel(self, why: str) -> None:
        self._release()
        self._record(101, OK)
        self.downstream.close_tunnel(why)

    def _cut_off(self, error: Exception) -> None:
        """Cut off the response that has begun, because it cannot be completed. The upstream is gone."""
        tunnel, head = self.tunnels, self.downstream.head
        assert head is not None
        self._release()
        self._record(head.status, OK if tunnel else CUT)
        if not tunnel and self.request.error is None:
            log.warning("the response to request %s was cut off: %s", self._id, error)
        self.downstream.cut(error)

    def _respond(self, response: builtin.BuiltinResponse, outcome: str) -> None:
        """Send a response of the toolkit itself."""
        if self.fields:
            response = replace(response, fields=(*response.fields, *self.fields))
        self.downstream.give(response)
        self._record(response.status, outcome)
        self.downstream.finished()

    @property
    def _id(self) -> str:
        return (self.request.id or b"-").decode()

    # The end

    def _drop_upstream(self, *, in_order: bool = False) -> None:
        """End the attempt at the replica. `in_order`: send the written bytes first, such as a close frame."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            if in_order:
                upstream.close()
            else:
                upstream.abort()

    def _release(self) -> None:
        """Release all resources, and enter the last stage."""
        head, dispatcher = self.downstream.head, self.dispatcher
        if head is not None and (head.status == 101 or head.stream is not None):
            self._ingress_state.closed(self, self.downstream.peers, dispatcher.permit)
        if self._timer is not None:
            self._forget_timer()
        if self._deadlines is not None:
            self._forget_deadline()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            dispatcher.router.leave(waiter)
        dispatcher.end()

    def _forget_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _forget_deadline(self) -> None:
        deadlines, self._deadlines = self._deadlines, None
        if deadlines is not None:
            deadlines.discard(self)

    def _record(self, status: int, outcome: str) -> None:
        """Record the end of the request. Its client may then send another one."""
        plane, request, downstream, dispatcher = self.plane, self.request, self.downstream, self.dispatcher
        head, ingress_state = downstream.head, self._ingress_state
        now = plane.clock()
        queued_s, first_byte_s, attempt_s, failed = dispatcher.stage_times(now)
        if first_byte_s is None and outcome != CLIENT_GONE:  # the toolkit itself responds now
            first_byte_s = now - dispatcher.began
        if self.marks:
            for hook in plane.filters.ended:
                hook(self, status, outcome)
        if head is not None and outcome == OK:
            ingress_state.responses.note(now)
        plane.records.add(
            Record(
                dispatcher.began,
                now - dispatcher.began,
                "websocket" if head is not None and head.status == 101 else self.kind,
                ingress_state.name,
                dispatcher.replica,
                dispatcher.attempts.count,
                outcome,
                request.method,
                request.id or b"-",
                downstream.peers,
                request.raw_path[:LONGEST_PATH],
                status,
                downstream.size,
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
