"""The router of one deployment: the queue of its requests, the permits at its replicas, and their assignment."""

import asyncio
import logging
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from random import Random

from app_toolkit.config.models import Policy
from app_toolkit.errors import CannotStart, NoReplica, QueueFull, QueueTimeout, RequestError
from app_toolkit.exchange.attempts import Result
from app_toolkit.exchange.permits import Failed, Permit, ReplicaPermits, Waiter
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.holders import PREFERENCE_S
from app_toolkit.exchange.placement.placements import Placements
from app_toolkit.exchange.preference import NO_PREFERENCE, Preference
from app_toolkit.exchange.queueing import FULL_S, Candidate, FullAlarm, ServingOrder, next_served
from app_toolkit.interfaces import Call, Endpoint, Join, QueuePosition
from app_toolkit.types import ReplicaId
from app_toolkit.wire import hop

logger = logging.getLogger("app_toolkit.router")

MOST_NAMES = 3
"""The maximum number of different requests that a warning names."""

LONGEST_NAME = 100
"""The maximum number of characters of a request's name in a warning."""

REST_S = 0.1
"""Seconds until a replica that was not reached gets permits again. Short, because it may be the only replica."""

WATCH_S = FULL_S + 0.1
"""Seconds between two looks whether the deployment is full. A little more than `FULL_S`, because the clock of an event
loop can be behind the time since which a request waits, and the look would come too early."""

NOBODY: Collection[ReplicaId] = ()

SINCE = attrgetter("since")


class Router:
    """Grants permits at replicas.

    * A permit is granted only at a replica with room: this router has fewer than `max_ongoing_requests` permits there.
      If other callers have filled a replica, the router joins its wait queue, and the replica reserves slots for it.
    * The oldest request in the queue is served first, or the newest while clients give up (`exchange.queueing`).
    * No request waits while a replica that it may use has room. At most `max_queued_requests` requests wait. `expire`
      fails those that have waited for `max_queue_wait_s`.
    * A request gets the replica that its preference ranks first (`exchange.placement`), at once or from the queue. Some
      preferences make it wait: for the replica of its session, or for a bounded time for those that hold its key.
      Requests that displace other keys at their replica come after those that do not, for a bounded time, too
      (`exchange.queueing`).
    * A permit counts until it is released, even if its replica is removed meanwhile. Releasing it again has no effect.
    * A new replica set keeps the permits at replicas that remain.

    If a replica has room, the synchronous `try_acquire` is the only cost of a request. Not thread-safe: every method
    must be called on the event loop that owns the router, except properties that are marked as thread-safe.
    """

    def __init__(
        self,
        name: str,
        join: Join | None = None,
        unserved: Callable[[], None] = lambda: None,
        *,
        policy: Policy | None = None,
        rng: Random | None = None,
        near: ReplicaId | None = None,
    ) -> None:
        """Create a router without replicas.

        Parameters:
            name: Names the deployment in error messages.
            join: Joins the wait queue of a replica. None: a replica that refused a request as busy rests for `REST_S`.
            unserved: Is called whenever a request begins to wait while there is no replica.
            policy: The limits of the deployment. None: the default ones.
            rng: The random numbers of the placements. None: a new generator.
            near: The replica in this process. None: there is none.
        """
        self.name = name
        #: May be replaced at any time, and applies from then on.
        self.policy = policy or Policy()
        self._join = join
        self._unserved = unserved
        #: The replicas of the present replica set, and how one of them is chosen.
        self._placements = Placements(name, rng or Random(), near)
        self._replicas = self._placements.replicas
        # The state of a router is its waiters and its permits. `_assign` assigns permits to waiters.
        #: The waiters by the replicas that they avoid and by the group of their preference: those that cannot use a
        #: free replica are skipped together. Oldest first.
        self._queues: dict[tuple[frozenset[ReplicaId], tuple[str, str]], list[Waiter]] = {}
        self._order = ServingOrder()
        #: When the first of the requests began to wait since which the queue was never empty.
        self._waiting_since = 0.0
        self._alarm = FullAlarm()
        #: Checks every `WATCH_S` whether the deployment is full, while requests wait. None: none has waited lately.
        self._watch: asyncio.TimerHandle | None = None
        #: The permits that were held when `_watch` began.
        self._held_before: set[Permit] = set()
        self._leaving: set[ReplicaPermits] = set()
        #: The permits of open streams and WebSockets.
        self._open: set[Permit] = set()
        #: Why no replica runs and none will start. None: there are replicas, or one may start.
        self._failing: str | None = None
        self._closed = False
        #: Fires when the next waiter has waited for long enough for a replica that holds its key. None: there is none.
        self._preference: asyncio.TimerHandle | None = None

    # Permits

    def try_acquire(
        self, avoid: Collection[ReplicaId] = NOBODY, preference: Preference = NO_PREFERENCE
    ) -> Permit | None:
        """Acquire a permit at a replica with room. Return None if there is no such replica, or the request waits.

        The request does not overtake waiting requests, because these cannot use the free replicas.

        Parameters:
            avoid: Replicas that have failed for this request. They are used only if there is no other replica. With
                `NO_OTHER` among them, they are not used, and the request waits.
            preference: What decides which of the replicas the request prefers.
        """
        if self._closed:
            return None
        choice = self._placements.of(preference).rank(preference, avoid)
        return None if choice is None else self._begin(choice)

    def preference(self, call: Call) -> Preference:
        """Return the preference of a call, for all of its attempts."""
        return self._placements.preference(call, self.policy.routing_policy)

    def wait(
        self,
        granted: Callable[[Permit], None],
        since: float,
        *,
        avoid: Collection[ReplicaId] = NOBODY,
        preference: Preference = NO_PREFERENCE,
        again: bool = False,
        failed: Failed = lambda error: None,
    ) -> Waiter:
        """Add a request to the queue, after `try_acquire` returned None.

        Parameters:
            granted: Is called synchronously with the permit.
            since: When the request began to wait. It is placed behind those that have waited longer.
            avoid: As for `try_acquire`.
            preference: As for `try_acquire`.
            again: The request had a permit before, so `max_queued_requests` does not apply to it.
            failed: Is called with an error, instead of `granted`, if the request expires, the router is closed, or no
                replica will start.

        Raises:
            QueueFull: `max_queued_requests` requests wait.
            CannotStart: No replica will start.
            NoReplica: The router is closed.
        """
        if self._closed:
            raise self._closed_error()
        if self._failing is not None:
            raise self.cannot_start()
        most = self.policy.max_queued_requests
        if not again and self.waiting >= most:
            raise QueueFull(f"{self.waiting} requests wait for {self.name}, its max_queued_requests is {most}")
        if not self._queues:
            self._order.began()
            self._waiting_since = since
            self._watch_later()
        waiter = Waiter(granted, failed, since, frozenset(avoid), preference)
        insort(self._queues.setdefault((waiter.avoid, preference.group), []), waiter, key=SINCE)
        if preference.key:
            self._assign_at(since + PREFERENCE_S)
        if not self._replicas.by_id:
            self._unserved()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter from the queue. Does nothing if it was granted a permit or has failed."""
        if not waiter.done:
            self._remove(waiter)
            self._order.gave_up()

    def stream(self, permit: Permit, slot: bytes) -> None:
        """Note that the response to a permit is a stream. `slot`: what the replica says of its slot (`hop.STREAM`)."""
        permit.kept = slot == hop.KEPT
        if not permit.kept:
            self.open(permit)

    def open(self, permit: Permit) -> None:
        """Release the slot of a permit whose response is an open stream or a WebSocket.

        The permit counts as open until `release`.
        """
        if permit in permit.replica.permits:
            self.release(permit)
            permit.replica.opened.add(permit)
            self._open.add(permit)

    def release(self, permit: Permit) -> None:
        """Release a permit, or an open stream. Does nothing if it was released before."""
        replica = permit.replica
        if self._end(permit):
            if replica.position is not None and permit.redeem():
                replica.reservations += 1  # for another waiter
            if replica.reservations:
                self._use_reservations(replica)
            if self._queues:
                self._assign()
        else:
            replica.opened.discard(permit)
            self._open.discard(permit)

    def ended(self, permit: Permit, result: Result) -> None:
        """Release the permit of an attempt without a response, and treat the replica as the result requires."""
        match result:
            case Result.BUSY:
                self.refused(permit)
            case (
                Result.MOVED | Result.CROWDED | Result.SLOW | Result.REFUSED | Result.UNREADABLE
            ):  # the replica has room for other requests
                self.release(permit)
            case _:
                self.rest(permit)

    def refused(self, permit: Permit) -> None:
        """Release a permit at a replica that other callers have filled, and join its wait queue."""
        replica = permit.replica
        if self._end(permit):
            if self._join is None:
                self._start_rest(replica)
            elif replica.position is None and self._replicas.by_id.get(replica.endpoint.id) is replica:
                self._join_queue(replica, self._join)
            self._use_reservations(replica)
            self._assign()

    def rest(self, permit: Permit) -> None:
        """Release a permit at a replica that was lost, drains, or was not reached. The replica rests for `REST_S`."""
        if self._end(permit):
            self._leave_queue(permit.replica)
            self._start_rest(permit.replica)
            self._assign()

    def _end(self, permit: Permit) -> bool:
        replica = permit.replica
        if permit not in replica.permits:
            return False
        replica.permits.remove(permit)
        if not replica.permits:
            self._leaving.discard(replica)
        return True

    def waited_too_long(self) -> QueueTimeout:
        if not self._replicas.by_id:
            waited = f"none began to serve within {self.policy.max_queue_wait_s:g} s"
            return QueueTimeout(f"no replica of {self.name} runs, and {waited}; `app-toolkit status` shows why")
        full = next((replica for replica in self._replicas.all if replica.position or not replica.below_limit), None)
        return QueueTimeout(
            f"no replica of {self.name} had room within {self.policy.max_queue_wait_s:g} s"
            + (f": {full.reached}" if full is not None else "")
        )

    def expire(self, now: float) -> list[Waiter]:
        """Fail the requests that have waited for `max_queue_wait_s`, and return their waiters."""
        longest = self.policy.max_queue_wait_s
        late = [
            waiter
            for queue in self._queues.values()
            for waiter in takewhile(lambda waiter: now - waiter.since >= longest, queue)
        ]
        for waiter in late:
            self._remove(waiter)
            self._order.gave_up()
        return _fail(late, self.waited_too_long)

    # The replica set

    def update(self, endpoints: Iterable[Endpoint], failing: str | None = None) -> list[Waiter]:
        """Apply a new replica set. Permits remain valid until they are released, even at a removed replica.

        `failing`: why no replica runs and none will start. In that case, fail all waiters and return them.
        """
        before, remaining = dict(self._replicas.by_id), {}
        for endpoint in endpoints:
            replica = before.pop(endpoint.id, None)
            if replica is None:
                replica = ReplicaPermits(endpoint)
            replica.endpoint = endpoint
            remaining[endpoint.id] = replica
        self._placements.update(remaining)
        for replica in before.values():
            self._leave_queue(replica)
            self._end_rest(replica)
        self._leaving.update(replica for replica in before.values() if replica.permits)
        self._failing = None if self._replicas.by_id else failing
        if self._failing is not None:
            return self._dismiss(self.cannot_start)
        for replica in self._replicas.all:
            self._use_reservations(replica)
        self._assign()
        return []

    def cannot_start(self) -> CannotStart:
        return CannotStart(self._failing or f"no replica of {self.name} runs")

    def _closed_error(self) -> NoReplica:
        return NoReplica(f"the router of {self.name} is closed: the deployment was removed, or this process shuts down")

    def close(self) -> list[Waiter]:
        """Grant no more permits. Fail all waiters and return them."""
        self._closed = True
        for timer in (self._preference, self._watch):
            if timer is not None:
                timer.cancel()
        self._preference = self._watch = None
        for replica in self._replicas.all:
            self._leave_queue(replica)
            self._end_rest(replica)
        return self._dismiss(self._closed_error)

    def _dismiss(self, error: Callable[[], RequestError]) -> list[Waiter]:
        """Empty the queue, and fail all waiters."""
        waiters = [waiter for queue in self._queues.values() for waiter in queue]
        self._queues.clear()
        for waiter in waiters:
            waiter.done = True
        return _fail(waiters, error)

    # Deployments that are full

    def _watch_later(self) -> None:
        if self._watch is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # a simulation with a clock of its own
                return
            self._watch = loop.call_later(WATCH_S, self._look_whether_full)
            self._held_before = {permit for replica in self._replicas.all for permit in replica.permits}

    def _look_whether_full(self) -> None:
        self._watch, held_before = None, self._held_before
        self._held_before = set()
        if not self._queues:
            return
        self._watch_later()
        now = asyncio.get_running_loop().time()
        if self._alarm.must_warn(self._is_full, self._waiting_since, now):
            logger.warning("%s", self._explain_full(now, held_before))

    @property
    def _is_full(self) -> bool:
        full = any(replica.position is not None or not replica.below_limit for replica in self._replicas.all)
        return full and not any(replica.has_room for replica in self._replicas.all)

    def _explain_full(self, now: float, held_before: set[Permit]) -> str:
        """`held_before`: the permits that were held at the look before, at least `FULL_S` ago."""
        full = [replica for replica in self._replicas.all if replica.position is not None or not replica.below_limit]
        permits = [permit for replica in full for permit in replica.permits]
        counts = Counter(permit.request for permit in permits if permit.request)
        names = ", ".join(f"{count} {_printable(name)}" for name, count in counts.most_common(MOST_NAMES))
        rest = len(permits) - sum(count for _, count in counts.most_common(MOST_NAMES))
        which = f"{names}, {rest} others" if names and rest else names or f"{rest}"
        kept = next((replica for replica in full if replica.endpoint.max_open_streams and replica.keeps_streams), None)
        option = "max_ongoing_requests" if kept is None else "max_open_streams"
        silent = [permit for replica in full for permit in replica.without_item if permit in held_before]
        cure = f"Raise {option}, or add replicas"
        if 2 * len(silent) > len(permits):
            methods = " and ".join(sorted({_printable(permit.request) for permit in silent}))
            cure = (
                f"{len(silent)} calls of {methods} have yielded no item for {FULL_S:g} s, and a call leaves its slot "
                "with its first item: yield one at once, or raise max_ongoing_requests above the number of such calls, "
                "or add replicas if they are busy"
            )
        elif permits and kept is None and held_before.issuperset(permits):
            cure += (
                f". None of these requests has ended for {FULL_S:g} s: if they wait for requests to {self.name} "
                "themselves, such as those of an endpoint that calls its own server, each one needs another slot"
            )
        number = "its replica is" if len(self._replicas.all) == 1 else f"its {len(self._replicas.all)} replicas are"
        return (
            f"requests have waited for {self.name} for {now - self._waiting_since:.0f} s: {number} full, "
            f"{(kept or full[0]).reached}; slots held by requests of this process: {which}. "
            f"{cure}"
        )

    # Statistics

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def newest_first(self) -> bool:
        """Whether the newest waiter is served next, because clients give up."""
        return self._order.newest_first

    @property
    def ongoing(self) -> int:
        return sum(len(replica.permits) for replica in (*self._replicas.all, *self._leaving))

    @property
    def opened(self) -> int:
        """The number of open streams and WebSockets, also at removed replicas. Thread-safe."""
        return len(self._open)

    @property
    def reached(self) -> str:
        """`1,000 of 1,000 max_queued_requests` while the queue is full, else an empty string. Thread-safe."""
        waiting, most = self.waiting, self.policy.max_queued_requests
        return f"{waiting:,} of {most:,} max_queued_requests" if waiting >= most > 0 else ""

    @property
    def positions(self) -> int:
        """The number of replicas in whose wait queue this router has a position."""
        return sum(replica.position is not None for replica in self._replicas.all)

    @property
    def replicas(self) -> int:
        return len(self._replicas.by_id)

    @property
    def ready(self) -> Collection[ReplicaId]:
        """The replicas that serve and answer their probes."""
        return [replica.endpoint.id for replica in self._replicas.all if not replica.endpoint.unresponsive]

    def __repr__(self) -> str:
        return f"<Router {self.name} [{self.waiting} waiting, {self.ongoing} ongoing | {self.replicas} replicas]>"

    # Replicas that hold keys

    def report(self, permit: Permit, holdings: bytes, *, moved: bool = False) -> None:
        """Note which keys the replica of a permit holds, as it has reported in the field `hop.HOLDINGS`.

        `moved`: the replica has refused the request because of its key. Otherwise, a report that was received before
        changes nothing: requests that are on their way to the replica are assumed to have arrived.
        """
        first = permit.replica.holdings is None
        if self._placements.holders.report(permit.replica, holdings, moved=moved):
            self._assign()
            if first:
                self._assign_when_due()

    def has_session(self, preference: Preference | None) -> bool:
        """Return whether a replica of this deployment has the session of a request."""
        session = "" if preference is None else preference.session
        return bool(session) and self._replicas.with_session(session) is not None

    def _assign_at(self, due: float) -> None:
        """Assign again when a waiter has waited for `PREFERENCE_S`, which is at this time."""
        timer = self._preference
        if timer is not None and timer.when() <= due:
            return
        if timer is not None:
            timer.cancel()
        self._preference = asyncio.get_running_loop().call_at(due, self._preference_over)

    def _preference_over(self) -> None:
        self._preference = None
        self._assign()
        self._assign_when_due()

    def _assign_when_due(self) -> None:
        """Assign again when the next waiter has waited for `PREFERENCE_S`. Without reports, none prefers to wait."""
        if not self._replicas.reporting:
            return
        late = asyncio.get_running_loop().time() - PREFERENCE_S
        keyed = [queue for (_, group), queue in self._queues.items() if any(group)]
        following = [waiter.since for queue in keyed for waiter in queue[bisect_right(queue, late, key=SINCE) :][:1]]
        if following:
            self._assign_at(min(following) + PREFERENCE_S)

    # Assignment of permits to waiters

    def _begin(self, choice: Choice, reserved: bool = False) -> Permit:
        replica = choice.replica
        permit = Permit(replica, reserved, choice.holds_key, choice.outcome)
        replica.permits.add(permit)
        if choice.granted is not None:
            choice.granted()
        return permit

    def _assign(self) -> None:
        """Grant permits to waiters in order, except for waiters that avoid the free replicas."""
        while self._queues and (free := self._replicas.free()) and self._assign_next(free):
            pass

    def _assign_next(self, free: Sequence[ReplicaPermits]) -> bool:
        """Grant a permit at one of these replicas to the next waiter that may use it. Return False if there is none."""
        following = next_served(self._candidates(free))
        if following is None:
            return False
        waiter, choice = following.request
        self._serve(waiter, self._begin(choice))
        return True

    def _candidates(self, free: Sequence[ReplicaPermits]) -> Iterator[Candidate[tuple[Waiter, Choice]]]:
        """Yield the waiters that may use one of these replicas, with the replica for each, in the order of the queue.

        The replica for a key is found only when it is asked for, because there may be as many keys as waiters.
        """
        newest_first = self._order.newest_first
        heads = [queue[0] for queue in self._queues.values()]
        if newest_first:  # the oldest waiter with a key may go to replicas for which a newer one still waits
            heads += [queue[-1] for queue in self._queues.values() if len(queue) > 1]
        for waiter in sorted(heads, key=SINCE, reverse=newest_first):
            choice = self._placements.rank(waiter.preference, waiter.avoid, free, waiter.since)
            if choice is not None:
                yield Candidate((waiter, choice), choice.gives_way)

    def _serve(self, waiter: Waiter, permit: Permit) -> None:
        self._remove(waiter)
        waiter.granted(permit)
        self._order.served()

    def _remove(self, waiter: Waiter) -> None:
        waiter.done = True
        queue = self._queues[waiter.avoid, waiter.preference.group]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.avoid, waiter.preference.group]

    # Replicas that are full or rest

    def _join_queue(self, replica: ReplicaPermits, join: Join) -> None:
        position = replica.position = join(
            replica.endpoint, lambda: self._reserved(replica, position), lambda: self._queue_ended(replica, position)
        )

    def _reserved(self, replica: ReplicaPermits, position: QueuePosition) -> None:
        """Use a reservation for the next waiter that does not avoid the replica. If there is none, leave the queue.

        If this router has all of its permits at the replica, the reservation is kept until a permit is released. The
        replica makes the reservation when it ends a request, so the end of that response may still be on its way.
        """
        if replica.position is not position:
            return
        following = next_served(self._candidates([replica]))
        if following is None:
            self._leave_queue(replica)
        elif replica.below_limit:
            waiter, choice = following.request
            self._serve(waiter, self._begin(choice, reserved=True))
        else:
            replica.reservations += 1

    def _use_reservations(self, replica: ReplicaPermits) -> None:
        """Use the reservations that were kept until this router may have another permit at the replica."""
        while replica.reservations and replica.below_limit and replica.position is not None:
            replica.reservations -= 1
            self._reserved(replica, replica.position)

    def _queue_ended(self, replica: ReplicaPermits, position: QueuePosition) -> None:
        if replica.position is position:
            kept, replica.position, replica.reservations = replica.reservations, None, 0
            if not kept:  # otherwise a reservation has expired, and the replica has not failed
                self._start_rest(replica)

    def _leave_queue(self, replica: ReplicaPermits) -> None:
        position, replica.position, replica.reservations = replica.position, None, 0
        if position is not None:
            position.leave()

    def _start_rest(self, replica: ReplicaPermits) -> None:
        self._end_rest(replica)
        if self._replicas.by_id.get(replica.endpoint.id) is replica and not self._closed:
            replica.rest = asyncio.get_running_loop().call_later(REST_S, self._rest_over, replica)

    def _rest_over(self, replica: ReplicaPermits) -> None:
        replica.rest = None
        self._assign()

    def _end_rest(self, replica: ReplicaPermits) -> None:
        timer, replica.rest = replica.rest, None
        if timer is not None:
            timer.cancel()


def _printable(name: str) -> str:
    """Return a name that is safe in a log. A client chooses the path of its request, which may have line breaks."""
    shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
    return shown if shown.isprintable() else ascii(shown)


def _fail(waiters: Iterable[Waiter], error: Callable[[], RequestError]) -> list[Waiter]:
    """Fail waiters, oldest first, each with a new error. Return them."""
    failed = sorted(waiters, key=SINCE)
    for waiter in failed:
        waiter.failed(error())
    return failed
