"""The controller loop: takes events, plans, performs the actions and publishes changed snapshots."""

import asyncio
import functools
import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from app_toolkit.clock import Clock
from app_toolkit.config.files import check_unmasked
from app_toolkit.config.models import ApplicationSpec, ClassSpec, HTTPOptions, SplitSpec
from app_toolkit.config.settings import start_options
from app_toolkit.controller.canaries import Canaries
from app_toolkit.controller.changes import Changes
from app_toolkit.controller.desired_state import DesiredState
from app_toolkit.controller.endpoints import EndpointPublisher
from app_toolkit.controller.inbox import Inbox
from app_toolkit.controller.leases import LEASE_S
from app_toolkit.controller.metrics import ControllerMetrics
from app_toolkit.controller.publisher import Publisher
from app_toolkit.controller.replica_sets import ReplicaSets
from app_toolkit.controller.scaling import Scaling
from app_toolkit.controller.state_store import StateStore
from app_toolkit.core import applications, partial, replica_sets, rollout, shutdown, traffic
from app_toolkit.core.applications import Comparison, replica_set_keys
from app_toolkit.core.canary import CanaryPlan, CanaryRelease
from app_toolkit.core.identity import (
    AnySetKey,
    ApplicationKey,
    ProcessSetKey,
    ReplicaSetKey,
    application_of_caller,
    are_proxies,
    replica_set_of,
)
from app_toolkit.core.publication import encode, route_snapshot, split_members
from app_toolkit.core.reconcile import Kill, Start
from app_toolkit.core.replica_state import Event, Exited, Found, Phase, Started, Unrouted
from app_toolkit.core.reports import Compared, Loads, Lost, lost_sentence
from app_toolkit.core.rollout import Reverted, Rollout
from app_toolkit.core.status import InstanceStatus, instance_status
from app_toolkit.errors import ConfigError, ControlError, StaleEpoch
from app_toolkit.interfaces import REPLICAS, ROUTES, SPLITS, Launcher, Snapshot, Store, Version
from app_toolkit.observability.event_log import EventLog, EventPage, LoggedEvent
from app_toolkit.observability.metrics import Sample
from app_toolkit.types import ReplicaId

GAP_S = 5.0
"""Seconds without a tick after which this process may have been suspended and replaced. The controller then checks its
epoch in the state store before anything else."""

ROUNDS = 3
"""How often in a row the state store may take longer than `GAP_S` to answer before the tick fails."""

RECOVERY_S = 10.0
"""The maximum number of seconds for which replicas that were found after a restart delay the publication of their
replica set."""

ADMIN_DOWN_S = 5.0
"""Seconds after which a process asks again for the admin process if that does not run."""

ADMIN_OFF_S = 60.0
"""The same if the admin process is switched off."""

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
        self._changes = Changes(clock)
        self._news = Changes(clock)
        self.event_log.records.subscribe(lambda _: self._news.notify())
        self._metrics = ControllerMetrics()
        self.event_log.records.subscribe(self._metrics.add)
        self.state_store = StateStore(store, self._end_replaced)
        self.desired = DesiredState(
            self.state_store, launcher.home, clock, self.event_log, self._respecify, lasting=lasting
        )
        self._scaling = Scaling(self.event_log)
        self._canaries = Canaries()
        self._start_options = start_options().model_dump()
        self.ticked = clock.now()
        self._next: float | None = None
        self._splits: set[ReplicaSetKey] = set()
        """The splits that are published."""
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
        found: dict[AnySetKey, list[ReplicaId]] = {}
        for id in await self._launcher.found():
            found.setdefault(replica_set_of(id), []).append(id)
        self.ticked = now = self._clock.now()
        recover_until = now + RECOVERY_S
        self._endpoints = EndpointPublisher(self.publisher, recover_until)
        for key, ids in found.items():
            if are_proxies(key):
                self.desired.proxies.found(key.node, recover_until)
            elif isinstance(key, ProcessSetKey):
                self.desired.admin.start_by(now)
            self._replica_sets.find(key, ids, now)
        self.desired.begin(stored, now)
        self._scaling.adopt(self.desired.specs(), self._replica_sets.known, now)
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

    # Desired state

    async def apply(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions | None = None,
        owner: str | None = None,
        code: Mapping[str, bytes] | None = None,
        expected: int | None = None,
        initial: HTTPOptions | None = None,
        *,
        only: Collection[str] = (),
        as_written: bool = False,
    ) -> int:
        """Apply an application under its name, and return its new revision number.

        The number counts the revisions that were applied under this name. To apply an unchanged application only lifts
        the quarantine of its replica sets and clears the backoff of their restarts.

        Parameters:
            spec: The application.
            http: The options of the proxies that change, which are those that are set explicitly; None: none does.
            owner: The lease that holds the application; None: no lease. With `as_written`, it stays the same.
            code: The packed code that the replicas unpack, by hash, if the state store may not have it yet.
            expected: The revision number that the application must have before; 0: it must not exist; None: any.
            initial: The options of the proxies if the instance has none yet; None: the default ones.
            only: The deployments that replace those that run, by their names or by endpoints. Empty: all.
            as_written: Whether `spec` is as written. Its references and masked secrets then have the values that they
                have in the running application. If nothing changes, no revision is created.

        Raises:
            ConfigError: Another application has the same route prefix or may have it, or calls a deployment that the
                application would lose.
            RevisionConflict: The application has another revision number than `expected`.
            StaleEpoch: This controller was replaced.
        """
        self._check_open()
        if only or as_written:
            running, revision = self.application(spec.name)
            spec = applications.changed(running, spec, only, as_written=as_written)
            expected = revision if expected is None else expected
            listening = self.desired.proxies.http
            same_options = applications.proxy_options(listening, http or HTTPOptions()) == listening
            if as_written and spec == running and expected == revision and same_options:
                return revision
        if as_written:  # it only changes options, so it does not matter who holds the application
            owner = self.desired.leases.holder(_key(spec.name))
        self._check(spec)
        revision = await self.desired.apply(spec, http or HTTPOptions(), owner, code or {}, expected, initial)
        self._lift(spec)
        return revision

    async def listen(self, http: HTTPOptions) -> None:
        """Start the proxies with these options, before there is an application."""
        self._check_open()
        await self.desired.listen(http)

    async def rollback(self, name: str, expected: int | None = None) -> Reverted:
        """Apply the last stable revision other than the current one.

        Raises `ConfigError` if there is no such revision or no such application, and the errors of `apply`.
        """
        self._check_open()
        there = self.desired.rollout(_key(name))
        version = rollout.rollback_target(there)
        if version is None:
            raise ConfigError(f"application {name!r} has no stable revision other than the current one")
        revision = await self._apply_again(there, version, expected)
        return Reverted(name, there.current_revision, rollout.rollback_revision(there), revision)

    async def add_candidate(
        self,
        spec: ApplicationSpec,
        code: Mapping[str, bytes],
        share: float,
        tag: str | None,
        owner: str | None = None,
        expected: int | None = None,
        mirror: float = 0.0,
    ) -> int:
        """Start a live revision beside the main revision of an application, and return its number.

        `owner`: the lease of the client. `expected`: the number that it must get; None: any. `mirror`: the share of the
        requests of the others that it gets copies of. Raises `ConfigError` if it cannot be added, and
        `RevisionConflict` if it would get another number.
        """
        self._check_open()
        check_unmasked(spec)
        return await self.desired.add_candidate(spec, code, share, tag, owner, expected, mirror)

    async def set_traffic(
        self, name: str, weights: Mapping[int, float], mirrors: Mapping[int, float] | None = None
    ) -> None:
        """Set the weights of the live revisions of an application, and what they mirror.

        Raises `ConfigError` if there is no such application or revision, or the weights are invalid.
        """
        self._check_open()
        await self.desired.set_traffic(_key(name), lambda it: traffic.with_weights(it, weights, mirrors))

    async def begin_release(self, name: str, revision: int | None, plan: CanaryPlan) -> None:
        """Begin a canary release of a candidate. `revision`: None for the only one.

        Raises `ConfigError` if there is no such application or candidate, another one gets requests, or a release goes
        on.
        """
        self._check_open()
        await self.desired.change_release(
            _key(name),
            lambda it: traffic.with_release(it, revision, plan),
            "CanaryBegun",
            f"steps {', '.join(f'{each:g} %' for each in plan.steps)}",
        )

    async def pause_release(self, name: str, *, paused: bool) -> None:
        """Pause or resume the canary release of an application. Raises `ConfigError` if there is none that goes on."""
        self._check_open()
        await self.desired.change_release(
            _key(name),
            lambda it: traffic.with_paused(it, paused=paused),
            "CanaryPaused" if paused else "CanaryResumed",
            "a client asked for it",
        )

    async def set_split(
        self, application: str, split: str, weights: Mapping[str, float], mirrors: Mapping[str, float] | None = None
    ) -> int:
        """Set the weights and mirrors of a split as of `with_split`. Return the application's new revision number.

        Raises `ConfigError` if there is no such application, split or member, or the weights or mirrors are invalid.
        """
        self._check_open()
        there = self.desired.rollout(_key(application))
        return await self._apply_again(there, traffic.with_split(there.current, split, weights, mirrors), None)

    async def promote(self, name: str, revision: int | None, finished: CanaryRelease | None = None) -> int:
        """Send all requests to a candidate, and make it the main revision. Return the new number of that revision.

        `finished`: the canary release that ends by this. None: a client asked for it. Raises `ConfigError` if there is
        no such application or candidate.
        """
        self._check_open()
        after = await self.desired.promote(_key(name), revision, self._check_unused, finished)
        self._lift(after.desired)
        return after.revision

    async def abort(self, name: str) -> None:
        """Send all requests to the main revision of an application, and remove its other live revisions."""
        self._check_open()
        await self.desired.set_traffic(_key(name), traffic.aborted)
        self._lift(self.desired.rollout(_key(name)).desired)

    async def scale(self, application: str, deployment: str, num_replicas: int) -> int:
        """Set the number of replicas of a deployment, and return the application's new revision number.

        Raises `ConfigError` if there is no such deployment, it is autoscaled, or the number is out of bounds.
        """
        self._check_open()
        there = self.desired.rollout(_key(application))
        return await self._apply_again(there, applications.scaled(there.current, deployment, num_replicas), None)

    async def _apply_again(self, there: Rollout, version: ApplicationSpec, expected: int | None) -> int:
        """Apply a changed version of an application that exists, under the lease that holds it."""
        owner = self.desired.leases.holder(there.key)
        return await self.apply(version, None, owner, None, there.revision if expected is None else expected)

    def _lift(self, spec: ApplicationSpec) -> None:
        for key in replica_set_keys(spec):
            self._replica_sets.lift(key)

    def current(self) -> tuple[Mapping[str, ApplicationSpec], HTTPOptions]:
        """Return the current revision of each application by name, and the options of the proxies."""
        return self._current(), self.desired.proxies.http

    def _current(self) -> dict[str, ApplicationSpec]:
        return {key.name: spec for key, spec in self.desired.applications.items()}

    def compare(
        self,
        specs: Collection[ApplicationSpec],
        http: HTTPOptions,
        only: Collection[str],
        beside: Collection[str] = (),
    ) -> Comparison:
        """Return what applying these applications would change, as of `core.applications.compare`.

        `beside`: the names of those that would start as live revisions instead (`check_candidate`). Raises the
        `ConfigError` of `apply` if one of the others would be refused.
        """
        self._check_open()
        running = {each.name: (each.current, each.revision) for each in self.desired.rollouts.values()}
        comparison = applications.compare(specs, running, self.desired.proxies.http, http, only)
        applied = [
            applications.changed(running.get(spec.name, (None, 0))[0], spec, only)
            for spec in specs
            if spec.name not in beside
        ]
        for spec in applied:
            self._check(spec)
        self.desired.check(applied, http, None)
        return comparison

    def check_candidate(
        self, spec: ApplicationSpec, share: float, tag: str | None, owner: str | None, mirror: float
    ) -> None:
        """Raise the `ConfigError` of `add_candidate` if it would refuse this live revision."""
        self._check_open()
        check_unmasked(spec)
        self.desired.with_candidate(spec, share, tag, owner, mirror)

    def callee(self, application: str, name: str) -> ClassSpec | SplitSpec:
        """Return the deployment or the split of this name, which handles call.

        Raises `ConfigError` if there is none.
        """
        return applications.callee(self._current(), application, name)

    def application(self, name: str) -> tuple[ApplicationSpec, int]:
        """Return the current revision of an application, and the number of the revision that was applied last.

        Raises `ConfigError` if there is no such application.
        """
        there = self.desired.rollout(_key(name))
        return there.current, there.revision

    async def delete(self, application: str, deployment: str | None = None) -> None:
        """Delete an application, or one deployment of it.

        Raises `ConfigError` if it does not exist, or if another application or deployment calls it.
        """
        self._check_open()
        key = _key(application)
        if deployment is not None:
            there = self.desired.rollout(key)
            await self._apply_again(there, partial.without(there.current, deployment), None)
            return
        if key.is_candidate and key in self.desired.rollouts:
            await self.desired.set_traffic(key.main, lambda it: traffic.removed_one(it, key.revision))
            return
        callers = self._callers_of(key, key)
        if callers:
            raise ConfigError(
                f"application {application!r} cannot be deleted: its deployments are called by "
                f"{', '.join(sorted(callers))}"
            )
        await self.desired.delete(key)

    def _check(self, spec: ApplicationSpec) -> None:
        """Raise `ConfigError` if an application has masked secrets, or lacks a deployment that others call."""
        check_unmasked(spec)
        self._check_unused(spec)

    def _check_unused(self, spec: ApplicationSpec) -> None:
        application = _key(spec.name)
        before = self.desired.applications.get(application)
        lost = [] if before is None else [key for key in replica_set_keys(before) if key not in replica_set_keys(spec)]
        for key in lost:
            if callers := self._callers_of(application, key):
                raise ConfigError(f"{key.name!r} cannot be deleted: it is called by {', '.join(sorted(callers))}")

    def _callers_of(self, application: ApplicationKey, called: ApplicationKey | ReplicaSetKey) -> set[str]:
        """Return the names of the other applications whose replicas call the application, or a replica set of it."""
        callers = self.publisher.callers_of(f"{REPLICAS}{called.name}/")
        calling = set(map(application_of_caller, callers))
        return {each.name for each in self.desired.rollouts.keys() & calling - {application}}

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
        held = leases.end(owner, self._clock.now())
        self.inbox.wake()
        number = -1
        while not self._ended.is_set():
            there = any(
                isinstance(key, ReplicaSetKey) and key.application_key.main in held for key in self._replica_sets.known
            )
            if owner not in leases and not there and self._shutdown_deadline is None:
                return
            number, _ = await self.status_after(number, LEASE_S)

    # Status and callers

    def status(self) -> InstanceStatus:
        return instance_status(
            self.desired.rollouts.values(),
            self._replica_sets.known,
            self._clock.now(),
            epoch=self.epoch,
            change=self._changes.number,
            home=self.desired.proxies.home,
            stopping=self._shutdown_deadline is not None,
            scaling=self._scaling.status(self._clock.now()),
            canaries=self._canaries.status(self.desired.rollouts, self._clock.now()),
            options={**self._start_options, **self.desired.proxies.http.model_dump()},
        )

    def samples(self) -> Iterator[Sample]:
        """Return the samples of all metrics of the controller."""
        return self._metrics.samples(
            self.desired.rollouts, self._replica_sets.known, self._scaling.status(self._clock.now())
        )

    def metrics_state(self) -> Mapping[str, object]:
        """Return the revisions and the processes that the aggregate of the metrics must know (`Snapshots`)."""
        rollouts = self.desired.rollouts.values()
        known = self._replica_sets.known.values()
        return {
            "revisions": {each.name: each.current_revision or each.revision for each in rollouts},
            "processes": [replica.id for replica_set in known for replica in replica_set.record.replicas],
        }

    def admin(self) -> tuple[ReplicaId | None, float]:
        """Return the admin process, and the seconds after which a process asks again if there is none."""
        if not self.desired.proxies.http.admin:
            return None, ADMIN_OFF_S
        there = self._replica_sets.known.get(ProcessSetKey("admin", self.desired.admin.home))
        replicas = () if there is None else there.record.replicas
        return next((each.id for each in replicas if each.phase is Phase.RUNNING), None), ADMIN_DOWN_S

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
            found = self.event_log.entries(subject=subject, last=last, after=seen)
            if found or self._ended.is_set() or self._clock.now() >= until:
                break
            await self._news.wait(until)
        now = self._clock.now()
        events = (LoggedEvent(now - each.at, each.subject, each.name, each.replica, each.cause) for each in found)
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
        if self._canaries.hear(caller, compared, self.desired.rollouts, self._clock.now()):
            self.inbox.wake()
        heard = self._scaling.hear(caller, traffic.with_candidates(loads, self.desired.rollouts), self._clock.now())
        if self._scaling.is_stirred:
            self.inbox.wake()
        return heard

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
        for id in self._endpoints.released(self._replica_sets.known):
            self._replica_sets.take(Unrouted(id), now)
        await self._advance()
        await self._continue_releases(now)
        if self._endpoints.end_recovery(self._replica_sets.known, now):
            self._replica_sets.touch()
            self._scaling.settle(self._replica_sets.known, now)
        for key, target in self._scaling.decide(self._replica_sets.known, now):
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
            elif isinstance(key, ProcessSetKey):
                self.desired.admin.learn(event.location.address)

    def _forget(self, caller: str) -> None:
        self.publisher.forget(caller)
        self._scaling.forget(caller, self._clock.now())
        self._canaries.forget(caller)

    def _follow(self, now: float) -> None:
        """Choose the nodes that have proxies, by the nodes that have replicas."""
        self._replica_sets.moved = False
        known = self._replica_sets.known
        self.desired.follow(replica_sets.occupied(known), replica_sets.active_proxies(known), now)

    async def _advance(self) -> None:
        """Continue the rollouts whose replica sets have changed."""
        if not self.desired.in_progress:
            return
        happened = {key.application_key for key in self._replica_sets.touched if isinstance(key, ReplicaSetKey)}
        for key in self.desired.in_progress & happened:
            if await self.desired.advance(key, self._replica_sets.known):
                self._lift(self.desired.applications[key])

    async def _continue_releases(self, now: float) -> None:
        """Perform what the canary releases decide."""
        if self.desired.shutdown_step is not None:
            return
        decided = list(self._canaries.decide(self.desired.rollouts, self._replica_sets.known, now))
        for key, release, decision, baseline in decided:
            change = functools.partial(traffic.after_decision, release=release, decision=decision, baseline=baseline)
            event = "CanaryReturned" if decision.action == "return" else "CanaryStep"
            try:
                if decision.action == "finish":
                    await self.promote(key.name, release.revision, release)
                else:
                    await self.desired.change_release(key, change, event, decision.why)
            except ConfigError as error:  # others call a deployment that it lacks, or the application was deleted
                self._canaries.refuse(key, release, str(error))
                self.event_log.append(key.name, "CanaryBlocked", cause=str(error))

    def _publish(self, key: AnySetKey, now: float) -> None:
        if self._endpoints.publish(key, self._replica_sets.known[key], now):
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
            self._shutdown_deadline = self._clock.now() + shutdown.longest(self._replica_sets.known)
        specs = self.desired.specs()
        promoted = traffic.promoted_sets(self.desired.rollouts, specs)
        specs = self._scaling.scaled(specs, self._replica_sets.known, promoted, self._clock.now())
        self._replica_sets.specify(specs, proxies_linger=shutdown.proxies_linger(step))
        self.publisher.publish(ROUTES, encode(route_snapshot(traffic.published(self.desired.rollouts))))
        self._publish_splits()
        self._changes.notify()
        self.inbox.wake()

    def _publish_splits(self) -> None:
        splits = split_members(rollout.active_revisions(self.desired.rollouts.values()))
        for key, members in splits.items():
            self.publisher.publish(f"{SPLITS}{key.name}", encode(members))
        for key in self._splits - splits.keys():
            self.publisher.remove(f"{SPLITS}{key.name}")
        self._splits = set(splits)

    def _continue_shutdown(self, now: float) -> None:
        """Continue the shutdown, and end once no replica set is left or the deadline has passed."""
        if self._shutdown_deadline is None:
            return
        known = self._replica_sets.known
        self.desired.continue_shutdown(shutdown.step(known))
        if known and now < self._shutdown_deadline:
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


def _key(name: str) -> ApplicationKey:
    """Return the application that a client names. Raises `ConfigError` if none can have this name."""
    try:
        return ApplicationKey.parse(name)
    except ValueError:
        raise ConfigError(f"there is no application {name!r}") from None


def _rounds() -> Iterator[int]:
    """Yield `ROUNDS` numbers, then raise `ControlError`."""
    yield from range(ROUNDS)
    raise ControlError(f"the state store took longer than {GAP_S:g} s to return the epoch, {ROUNDS} times in a row")
