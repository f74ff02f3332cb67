"""The controller loop: takes events, plans, performs the actions and publishes changed snapshots."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from app_toolkit.clock import Clock
from app_toolkit.config.models import AdminOptions
from app_toolkit.config.settings import start_options
from app_toolkit.contract.identity import AnySetKey, ReplicaSetKey, are_proxies, live_revision_of_caller, replica_set_of
from app_toolkit.contract.loads import Compared, Loads, Lost, lost_sentence
from app_toolkit.contract.snapshots import encode
from app_toolkit.control import progress, shutdown, traffic
from app_toolkit.control.application import active_specs
from app_toolkit.control.canary_releases import Canaries
from app_toolkit.control.change import Change, State
from app_toolkit.control.command import Operation
from app_toolkit.control.desired_state import DesiredState
from app_toolkit.control.endpoints import EndpointPublisher
from app_toolkit.control.inbox import Inbox
from app_toolkit.control.leases import LEASE_S
from app_toolkit.control.metrics import ControllerMetrics
from app_toolkit.control.notifier import Notifier
from app_toolkit.control.publication import route_snapshot, split_members
from app_toolkit.control.publisher import Publisher
from app_toolkit.control.reconcile import Kill, Start
from app_toolkit.control.replica_set import active_proxies, occupied
from app_toolkit.control.replica_sets import ReplicaSets
from app_toolkit.control.replica_state import Event, Exited, Found, Started, Unrouted
from app_toolkit.control.scaling import Scaling
from app_toolkit.control.state_store import StateStore
from app_toolkit.control.status import InstanceStatus, instance_status
from app_toolkit.errors import ConfigError, ControlError, StaleEpoch
from app_toolkit.interfaces import MAINS, REPLICAS, ROUTES, SPLITS, Launcher, Snapshot, Store, Version
from app_toolkit.observability.event_log import EventLog, EventPage, LoggedEvent
from app_toolkit.observability.metrics import Sample
from app_toolkit.types import Address, ReplicaId

R = TypeVar("R")

GAP_S = 5.0
"""Seconds without a tick after which this process may have been suspended and replaced. The controller then checks its
epoch in the state store before anything else."""

ROUNDS = 3
"""How often in a row the state store may take longer than `GAP_S` to answer before the tick fails."""

RECOVERY_S = 10.0
"""The maximum number of seconds for which replicas that were found after a restart delay the publication of their
replica set."""

NOTHING: Compared = {}

RETRY_S = 1.0
"""Seconds until the next tick after a tick failed, for example because the state store could not be reached."""


class Controller:
    """Reconciles the running replicas and proxies with the desired state.

    * The desired state is in the state store before the controller acts on it. After a restart, the controller finds
      the running replicas again.
    * The controller plans for a replica set only after an event or when an action is due. Nothing polls.
    * If the handling of a replica set fails, the replica set is quarantined until its application is applied again. The
      other replica sets are not affected.
    * A controller that has been replaced by a later epoch does nothing more.
    * If a lease ends, its applications are deleted. Once the last lease has ended and no application is left, the
      instance shuts down, unless it was started to last.

    Call `start` once, then `run`. `run` returns after `shutdown`, after the last lease has ended, or when another
    controller has replaced this one. Call every method on one event loop. Only the launcher may emit events from
    another thread.
    """

    def __init__(self, store: Store, launcher: Launcher, clock: Clock, *, lasting: bool = False) -> None:
        """`lasting`: whether the instance stays until `shutdown`, also if the last lease ends and it is empty."""
        self.event_log = EventLog(clock.now)
        self.replaced = False
        self._launcher = launcher
        self._clock = clock
        self._changes = Notifier(clock)
        self._news = Notifier(clock)
        self.event_log.records.subscribe(lambda _: self._news.notify())
        self._metrics = ControllerMetrics()
        self.event_log.records.subscribe(self._metrics.add)
        self.state_store = StateStore(store, self._end_replaced)
        self.desired = DesiredState(
            self.state_store,
            launcher.home,
            clock,
            self.event_log,
            self._respecify,
            self._callers_of,
            lasting=lasting,
        )
        self._scaling = Scaling(self.event_log)
        self._canaries = Canaries()
        self._start_options = start_options().model_dump()
        self.ticked = clock.now()
        self._next: float | None = None
        self._published: set[str] = set()
        """The keys of the splits and main revisions that are published."""
        self._shutdown_deadline: float | None = None
        """When the shutdown ends even if some processes still run; None: there is no shutdown."""
        self._ended = asyncio.Event()

    # Lifecycle

    async def start(self, *, discard: bool = False) -> None:
        """Take the next epoch, read the desired state from the state store, and find the running replicas.

        `discard`: delete the desired state instead, which cannot be read.
        Raises `CorruptValue` if a stored value cannot be read.
        """
        self.epoch = await self.state_store.take_epoch(discard=discard)
        self.publisher = Publisher(self.epoch, self._clock)
        self.inbox = Inbox(self._clock)
        self._replica_sets = ReplicaSets(self.epoch, self.event_log, self._changes)
        stored = await (self.state_store.discard() if discard else self.state_store.read())
        self._launcher.listen(self.inbox.put, self.epoch)
        running: dict[AnySetKey, list[ReplicaId]] = {}
        for id in await self._launcher.found():
            running.setdefault(replica_set_of(id), []).append(id)
        self.ticked = now = self._clock.now()
        recover_until = now + RECOVERY_S
        self._endpoints = EndpointPublisher(self.publisher, recover_until)
        for key, ids in running.items():
            if are_proxies(key):
                self.desired.proxies.add_recovered(key.node, recover_until)
            self._replica_sets.find(key, ids, now)
        self.desired.begin(stored, now)
        self._scaling.adopt(self.desired.specs(), self._replica_sets.by_key, now)
        self._follow(now)
        self._respecify()

    async def run(self) -> None:
        """Tick until the shutdown is complete or another controller has replaced this one."""
        try:
            while not self._ended.is_set():
                began = self._clock.now()
                try:
                    await self._tick()
                except StaleEpoch as error:
                    self.replaced = True
                    self.event_log.append("", "Replaced", cause=str(error))
                    break
                except Exception as error:
                    # Only the state store can fail here. The controller does nothing while the store does not answer.
                    self.event_log.append("", "TickFailed", cause=f"{type(error).__name__}: {error}")
                    await self._clock.sleep(RETRY_S)
                    continue
                self._metrics.ticks.observe(self._clock.now() - began)
                if not self._ended.is_set():
                    self._next = self._next_due()
                    await self.inbox.sleep(self._next)
        finally:
            self._ended.set()
            self.publisher.close()
            self._changes.notify()
            self._news.notify()
            await self._launcher.aclose()

    async def shutdown(self) -> None:
        """Shut down everything, the proxies first, so that no request is refused that could have been served.

        Returns once all processes have exited or their deadlines have passed. Then `run` returns.
        """
        if not self._ended.is_set():
            await self.desired.begin_shutdown("it was shut down")
        await self._ended.wait()

    # Commands

    async def change(self, operation: Operation[R]) -> R:
        """Perform an operation, and return its result, as soon as the change is stored.

        Raises the errors of the operation, `ControlError` if the instance is shut down, and `StaleEpoch` if this
        controller was replaced.
        """
        self._check_open()
        return self._lifted(await self.desired.change(operation.decide))

    def _lifted(self, change: Change[R]) -> R:
        for key in change.lifted:
            self._replica_sets.lift(key)
        return change.result

    def _callers_of(self, called: str | ReplicaSetKey) -> Set[str]:
        """Return the names of the applications whose replicas call an application, or a replica set of it."""
        key = f"{MAINS}{called}" if isinstance(called, str) else f"{REPLICAS}{called.name}"
        calling = [live_revision_of_caller(caller) for caller in self.publisher.callers_of(f"{key}/")]
        return self.desired.applications.keys() & {live.application for live in calling if live is not None}

    def hold(self, owner: str, ttl_s: float = LEASE_S) -> None:
        """Begin or renew a lease. If it expires, the applications that were applied under it are deleted.

        Once the last lease has ended and no application is left, the instance shuts down. An instance that never had a
        lease, or that was started to last, stays until `shutdown`.
        """
        self._check_open()
        self.desired.hold(owner, ttl_s)
        self.inbox.wake()

    async def leave(self, owner: str) -> None:
        """End a lease and delete its applications.

        Returns once their replicas have ended. If nothing is left, returns once the instance has shut down.
        """
        leases = self.desired.leases
        applications = leases.end(owner, self._clock.now())
        self.inbox.wake()
        number = -1
        while not self._ended.is_set():
            remaining = any(
                isinstance(key, ReplicaSetKey) and key.application in applications for key in self._replica_sets.by_key
            )
            if owner not in leases and not remaining and self._shutdown_deadline is None:
                return
            number, _ = await self.status_after(number, LEASE_S)

    # Status and callers

    def status(self) -> InstanceStatus:
        return instance_status(
            self.desired.applications.values(),
            self._replica_sets.by_key,
            self._clock.now(),
            epoch=self.epoch,
            change=self._changes.number,
            home=self.desired.proxies.home,
            stopping=self._shutdown_deadline is not None,
            scaling=self._scaling.status(self._clock.now()),
            canaries=self._canaries.status(self.desired.applications.values(), self._clock.now()),
            admin_url=self.desired.admin.url,
            admin_failure=self.desired.admin.failure,
            options={**self._start_options, **self.desired.proxies.http.model_dump()},
        )

    def samples(self) -> Iterator[Sample]:
        """Return the samples of all metrics of the controller."""
        return self._metrics.samples(
            self.desired.applications.values(), self._replica_sets.by_key, self._scaling.status(self._clock.now())
        )

    def metrics_state(self) -> Mapping[str, object]:
        """Return the revisions and the processes that the aggregate of the metrics must know (`Snapshots`)."""
        applications = self.desired.applications.values()
        replica_sets = self._replica_sets.by_key.values()
        return {
            "revisions": {
                live.key.name: live.number for application in applications for live in application.with_replicas
            },
            "processes": [replica.id for replica_set in replica_sets for replica in replica_set.record.replicas],
        }

    async def admin_after(self, options: AdminOptions | None, timeout_s: float) -> AdminOptions | None:
        """Wait until the desired options of the admin server are not `options`, and return them.

        None: the server is not to run. Returns the present ones after `timeout_s` seconds.
        """
        until = self._clock.now() + timeout_s
        while self.desired.admin.desired == options and self._clock.now() < until:
            await self._changes.wait(until)
        return self.desired.admin.desired

    def admin_serves(self, address: Address | None, failure: str | None = None) -> None:
        """Take where the admin server listens now. `address`: None: nowhere. `failure`: why it could not start."""
        if failure is not None and failure != self.desired.admin.failure:
            self.event_log.append("", "AdminFailed", cause=failure)
        self.desired.admin.learn(address, failure)
        self._changes.notify()
        self.inbox.wake()  # to store the port

    async def status_after(self, number: int, timeout_s: float) -> tuple[int, InstanceStatus]:
        """Wait until the number of the status is above `number`, and return the number and the status.

        Returns the present ones after `timeout_s` seconds, or when the controller has ended.
        """
        until = self._clock.now() + timeout_s
        while self._changes.number <= number and not self._ended.is_set() and self._clock.now() < until:
            await self._changes.wait(until)
        return self._changes.number, self.status()

    async def events_after(
        self, subject: str | None, last: int | None, epoch: int, number: int, timeout_s: float
    ) -> EventPage:
        """Wait until there are events after the first `number` ones, and return these.

        Returns none after `timeout_s` seconds, or when the controller has ended.

        Parameters:
            subject: Only events of this application or replica set. None: all.
            last: At most so many, the newest ones. None: all that the log keeps.
            epoch: The controller that `number` refers to. The events of another one count from the first.
            number: The number of events that the client has seen.
            timeout_s: The longest wait in seconds.
        """
        until = self._clock.now() + timeout_s
        seen = number if epoch == self.epoch else 0
        while True:
            entries = self.event_log.entries(subject=subject, last=last, after=seen)
            if entries or self._ended.is_set() or self._clock.now() >= until:
                break
            await self._news.wait(until)
        now = self._clock.now()
        events = (
            LoggedEvent(now - entry.at, entry.subject, entry.name, entry.replica, entry.cause) for entry in entries
        )
        return EventPage(tuple(events), self.epoch, self.event_log.number)

    async def watch(
        self,
        caller: str,
        seen: Mapping[str, Version],
        timeout_s: float = 20.0,
        prefix: str | tuple[str, ...] = "",
    ) -> Mapping[str, Snapshot]:
        """Call `Publisher.watch`. Replicas and proxies use their own id as `caller`, and are removed when they exit."""
        self._check_open()
        # The watch stores the acknowledged versions before it waits. The controller loop, woken here, runs after that.
        if self._endpoints.is_awaited:
            self.inbox.wake()
        return await self.publisher.watch(caller, seen, timeout_s, prefix)

    def report(
        self, caller: str, loads: Loads, compared: Compared = NOTHING, lost: Lost = MappingProxyType({})
    ) -> bool:
        """Take the report of a caller about its present load. Return False if the caller must report again.

        `compared`: the requests of the live revisions that canary releases compare. `lost`: the requests that ran in
        replicas that were lost.
        """
        self._check_open()
        for replica, requests in lost.items():
            self._replica_sets.requests_lost(replica, lost_sentence(requests))
        if self._canaries.add_requests(caller, compared, self.desired.applications.values(), self._clock.now()):
            self.inbox.wake()
        loads = traffic.with_candidates(loads, self.desired.applications.values())
        all_used = self._scaling.add_loads(caller, loads, self._clock.now())
        if self._scaling.has_changed:
            self.inbox.wake()
        return all_used

    def forget(self, caller: str) -> None:
        """Remove a caller that has ended: nothing waits for its acknowledgements, and its load no longer counts."""
        self._forget(caller)
        self.inbox.wake()

    # The tick

    async def _tick(self) -> None:
        self.inbox.awake()
        await self._catch_up()
        await self.desired.keep()
        await self._catch_up()  # the process may have been suspended while it waited for the state store
        now = self._clock.now()
        for event in self.inbox.take():
            self._handle_event(event, now)
        if self._replica_sets.moved or now >= (self.desired.proxies.due or math.inf):
            self._follow(now)
        for id in self._endpoints.released(self._replica_sets.by_key):
            self._replica_sets.take(Unrouted(id), now)
        await self._advance()
        await self._continue_releases(now)
        if self._endpoints.end_recovery(self._replica_sets.by_key, now):
            self._replica_sets.touch()
            self._scaling.settle(self._replica_sets.by_key, now)
        for key, target in self._scaling.decide(self._replica_sets.by_key, now):
            self._replica_sets.scale(key, target)
        for key in self._replica_sets.plan(now):
            self._publish(key, now)
        self._continue_shutdown(now)
        await self._act()

    async def _catch_up(self) -> None:
        """After a gap between ticks, check the epoch, and extend deadlines and leases by the time of the gap."""
        rounds = _rounds()
        while (now := self._clock.now()) - self.ticked > GAP_S:
            next(rounds)
            overslept = now - max(self.ticked, self._next or now)
            await self.state_store.check_epoch()
            if overslept > GAP_S:
                self._replica_sets.forgive(overslept)
                self.desired.leases.extend(overslept)
                self.publisher.extend_leases(overslept)
                self.event_log.append("", "Suspended", cause=f"nothing was watched for {overslept:.1f} s")
            self.ticked = now
            self._next = None
        self.ticked = now

    def _handle_event(self, event: Event, now: float) -> None:
        """Apply an event of the engine to its replica set, and forget the load of a process that has ended."""
        if isinstance(event, Exited):
            self._forget(event.replica)
        if not self._replica_sets.take(event, now):
            return
        if isinstance(event, (Started, Found)) and event.location is not None:
            key = replica_set_of(event.replica)
            if are_proxies(key):
                self.desired.proxies.learn(event.location.address)
            elif event.location.clients is not None:
                self.desired.proxies.learn(event.location.clients)

    def _forget(self, caller: str) -> None:
        self.publisher.forget(caller)
        self._scaling.forget(caller, self._clock.now())
        self._canaries.forget(caller)

    def _follow(self, now: float) -> None:
        """Choose the nodes that have proxies, by the nodes that have replicas."""
        self._replica_sets.moved = False
        by_key = self._replica_sets.by_key
        self.desired.follow(occupied(by_key), active_proxies(by_key), now)

    async def _advance(self) -> None:
        """Continue the updates whose replica sets have changed."""
        if not self.desired.in_progress:
            return
        happened = {key.live_revision for key in self._replica_sets.touched if isinstance(key, ReplicaSetKey)}
        for key in self.desired.in_progress & happened:
            await self._change(partial(progress.advanced, key=key, replica_sets=self._replica_sets.by_key))

    async def _continue_releases(self, now: float) -> None:
        """Perform what the canary releases decide."""
        if self.desired.shutdown_step is not None:
            return
        decided = list(self._canaries.decide(self.desired.applications.values(), self._replica_sets.by_key, now))
        for name, release, decision, baseline in decided:
            try:
                await self._change(
                    partial(
                        progress.release_continued, name=name, release=release, decision=decision, baseline=baseline
                    )
                )
            except ConfigError as error:  # others call a deployment that it lacks, or the application was deleted
                self._canaries.refuse(name, release, str(error))
                self.event_log.append(name, "CanaryBlocked", cause=str(error))

    async def _change(self, decide: Callable[[State], Change[Any]]) -> None:
        """Make a change of the controller itself, unless a shutdown has begun."""
        change = await self.desired.change_unless_shut_down(decide)
        if change is not None:
            self._lifted(change)

    def _publish(self, key: AnySetKey, now: float) -> None:
        if self._endpoints.publish(key, self._replica_sets.by_key[key], now):
            self.inbox.wake()  # the removed replica can be released at once if no caller uses it
        if self._replica_sets.drop_gone(key):
            self._endpoints.remove(key)
            if are_proxies(key) and self._shutdown_deadline is not None:
                self._respecify()  # with fewer proxies, the shutdown may continue with its next step

    async def _act(self) -> None:
        """Perform the planned actions. Before any process is started or killed, check that this controller has not been
        replaced."""
        actions = self._replica_sets.actions
        if any(isinstance(action, (Start, Kill)) for action in actions):
            asked, rounds = -math.inf, _rounds()
            while self._clock.now() - asked > GAP_S:  # an answer that took longer than this may be out of date
                next(rounds)
                asked = self._clock.now()
                await self.state_store.check_epoch()
        while actions:
            self._launcher.perform(actions.popleft())

    def _next_due(self) -> float | None:
        times = (
            self._replica_sets.due,
            self.desired.due,
            self._endpoints.due,
            self._scaling.due,
            self._canaries.due,
            self._shutdown_deadline,
        )
        return min((at for at in times if at is not None), default=None)

    # Changes of the desired state

    def _respecify(self) -> None:
        step = self.desired.shutdown_step
        if step is not None and self._shutdown_deadline is None:
            self._shutdown_deadline = self._clock.now() + shutdown.longest(self._replica_sets.by_key)
        specs = self.desired.specs()
        specs = self._scaling.scaled(specs, self._replica_sets.by_key, self._clock.now())
        self._replica_sets.specify(specs, proxies_linger=shutdown.proxies_linger(step))
        applications = self.desired.applications.values()
        self.publisher.publish(ROUTES, encode(route_snapshot(traffic.published(applications))))
        splits = split_members(active_specs(applications))
        published = {f"{SPLITS}{key.name}": encode(members) for key, members in splits.items()}
        published |= {f"{MAINS}{application.name}": application.main.key.name for application in applications}
        for name, value in published.items():
            self.publisher.publish(name, value)
        for name in self._published - published.keys():
            self.publisher.remove(name)
        self._published = set(published)
        self._changes.notify()
        self.inbox.wake()

    def _continue_shutdown(self, now: float) -> None:
        """Continue the shutdown, and end once no replica set is left or the deadline has passed."""
        if self._shutdown_deadline is None:
            return
        by_key = self._replica_sets.by_key
        self.desired.continue_shutdown(shutdown.step(by_key))
        if by_key and now < self._shutdown_deadline:
            return
        self._replica_sets.kill_all("the deadline of the shutdown has passed")
        self._ended.set()

    def _end_replaced(self) -> None:
        self.replaced = True
        self._ended.set()
        self.inbox.wake()

    def _check_open(self) -> None:
        if self.replaced:
            raise StaleEpoch(f"the controller of epoch {self.epoch} has been replaced")
        if self._ended.is_set():
            raise ControlError("the instance is shut down")


def _rounds() -> Iterator[int]:
    """Yield `ROUNDS` numbers, then raise `ControlError`."""
    yield from range(ROUNDS)
    raise ControlError(f"the state store took longer than {GAP_S:g} s to return the epoch, {ROUNDS} times in a row")
