"""The desired state, and everything that changes it: commands, expired leases, and the nodes that have replicas."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from app_toolkit.clock import Clock
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.suggestions import nearest
from app_toolkit.controller.admin import START_S, Admin
from app_toolkit.controller.leases import LEASE_S, Leases
from app_toolkit.controller.proxies import Proxies, are_needed
from app_toolkit.controller.state_store import StateStore, StoredState
from app_toolkit.core import applications, rollout, shutdown, traffic
from app_toolkit.core.canary import CanaryRelease
from app_toolkit.core.diff import difference
from app_toolkit.core.identity import AnySetKey, ApplicationKey
from app_toolkit.core.reconcile import ReplicaSetSpec
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.rollout import Rollout
from app_toolkit.core.shutdown import ShutdownStep
from app_toolkit.errors import ConfigError, ControlError, CorruptValue, RevisionConflict, StaleEpoch
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import NodeId

ROUTES_S = 2.0
"""Seconds until every proxy has the new routes. From then on, no request begins to wait for a removed candidate."""


@dataclass(frozen=True, slots=True)
class _Specs:
    """The replica sets of one application, with the values that they were computed from."""

    rollout: Rollout
    spread: bool
    edge: Mapping[str, Any] | None
    specs: Mapping[AnySetKey, ReplicaSetSpec]


class DesiredState:
    """The applications, the options of the proxies, the leases, and the step of a shutdown.

    * A change is checked and stored in the state store before it takes effect. `changed` is called after each change.
    * Changes are serialized.
    * During a shutdown, `rollouts` keeps the applications for the status. The state store has already deleted them.
    """

    def __init__(
        self,
        written: StateStore,
        home: NodeId,
        clock: Clock,
        event_log: EventLog,
        changed: Callable[[], None],
        *,
        lasting: bool,
    ) -> None:
        self.rollouts: dict[ApplicationKey, Rollout] = {}
        """The rollout of each application and candidate."""
        self.proxies = Proxies(home)
        self.admin = Admin()
        self.leases = Leases()
        self.shutdown_step: ShutdownStep | None = None
        """The step of the shutdown; None: there is no shutdown."""
        self._state_store = written
        self._is_http_chosen = False
        """Whether the options of the proxies have been chosen, so that only those that a client names change."""
        self._has_served = False
        """Whether there was any application since the instance began, or `listen` was called. From then on it has
        proxies until its shutdown. They answer 404 while there is no application."""
        self._stored_port = 0
        self._stored_admin_port = 0
        self._stored_leases: dict[str, Any] = {}
        self._specs: dict[ApplicationKey, _Specs] = {}
        self._followed: dict[AnySetKey, ReplicaSetSpec] = {}
        """The specs of the proxies that `specs` returned last."""
        self._clock = clock
        self._event_log = event_log
        self._changed = changed
        self._lasting = lasting
        self._changing = asyncio.Lock()
        self._unwanted: dict[ApplicationKey, float] = {}
        """When the ingresses of each candidate that was removed are to be deleted, or the rest of it."""
        self.in_progress: set[ApplicationKey] = set()
        """The applications whose rollout is not settled."""

    def begin(self, stored: StoredState, now: float) -> None:
        """Take over the state that the previous controller stored. Every lease begins anew."""
        self.rollouts = stored.rollouts
        self.in_progress = {key for key, each in stored.rollouts.items() if not each.is_settled}
        self._note_unwanted()
        if stored.http is not None:
            self._move(stored.http)
        self._has_served = bool(stored.port or self.rollouts)  # a shutdown deletes the port from the state store
        self._is_http_chosen = self._has_served or stored.http is not None
        if self._has_served:
            self.admin.start_by(now if stored.admin_port else now + START_S)
        self.proxies.port = self._stored_port = stored.port
        self.admin.port = self._stored_admin_port = stored.admin_port
        self._stored_leases = stored.leases
        self.leases.read(stored.leases, now)

    def specs(self) -> dict[AnySetKey, ReplicaSetSpec]:
        """Return the specs of the replica sets that are desired now, by key."""
        self._followed = proxies = self._proxies()
        self._specs = {key: self._specs_of(each) for key, each in self.rollouts.items()}
        deployments = {key: spec for each in self._specs.values() for key, spec in each.specs.items()}
        return shutdown.desired(self.shutdown_step, deployments, proxies if self._has_served else {})

    def _specs_of(self, stands: Rollout) -> "_Specs":
        """Compute the replica sets of an application, or reuse those from before: computing them takes a while."""
        before, spread, edge = self._specs.get(stands.key), self.proxies.spread, self.proxies.edge
        if before is not None and before.rollout is stands and before.spread == spread and before.edge == edge:
            return before
        specs = applications.replica_set_specs(stands.active, spread=spread, number_of=stands.number_of, edge=edge)
        return _Specs(stands, spread, edge, specs)

    def _proxies(self) -> dict[AnySetKey, ReplicaSetSpec]:
        active = rollout.active_revisions(self.rollouts.values())
        return self.proxies.specs() if are_needed(self.proxies.http.edge, active) else {}

    @property
    def applications(self) -> dict[ApplicationKey, ApplicationSpec]:
        """The current revision of each application."""
        return {key: each.current for key, each in self.rollouts.items()}

    def rollout(self, key: ApplicationKey) -> Rollout:
        """Return the rollout of an application. Raises `ConfigError` if there is no such application."""
        if key not in self.rollouts:
            meant = nearest(key.name, [each.name for each in self.rollouts])
            raise ConfigError(f"there is no application {key.name!r}{meant}")
        return self.rollouts[key]

    @property
    def due(self) -> float | None:
        """When the next lease expires, the next node loses its proxies or the admin server starts, if nothing happens
        before; None: never."""
        expiring = [self.leases.due, self.admin.due, *self._unwanted.values()] if self.shutdown_step is None else []
        return min((at for at in (*expiring, self.proxies.due) if at is not None), default=None)

    # Commands. Each raises `StaleEpoch` if this controller was replaced.

    async def apply(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions,
        owner: str | None,
        code: Mapping[str, bytes],
        expected: int | None,
        initial: HTTPOptions | None,
    ) -> int:
        """Apply an application, and return its new revision number."""
        async with self._changing:
            self._check_open()
            key = ApplicationKey.parse(spec.name)
            last = self.rollouts.get(key)
            if last is not None and last.live:
                spec = applications.beside(spec, last.current)
            revision = 0 if last is None else last.revision
            if expected not in (None, revision):
                # The client repeats a request that was applied before: the controller died before it could answer.
                if last is not None and expected == last.number_before and last.desired == spec:
                    return revision
                raise RevisionConflict(
                    f"application {spec.name!r} has revision {revision}, and revision {expected} was expected"
                )
            await self._listen(self.check([spec], http, owner, initial))
            after = traffic.after(rollout.applied(last, spec).without_ended_release())
            if owner is not None and last is None:
                # First: without a stored lease, the application would stay forever.
                await self._store_lease(owner, key)
            await self._state_store.put_application(after, code)
            self._store_rollout(after)
            changes = difference(None if last is None else last.desired, spec)
            self._event_log.append(spec.name, "Applied", cause=f"revision {after.revision}: {changes}")
            self._changed()
            if owner is not None:
                await self._store_lease(owner, key)
            await self._delete_code()
            await self._state_store.check_epoch()  # a later controller may have read the store before this change
            return after.revision

    async def listen(self, http: HTTPOptions) -> None:
        """Start the proxies with these options, also without an application."""
        async with self._changing:
            self._check_open()
            await self._listen(http)
            self._changed()
            await self._state_store.check_epoch()

    async def _listen(self, http: HTTPOptions) -> None:
        if http != self.proxies.http:
            await self._state_store.put_http(http)
            self._move(http)
        self._is_http_chosen = self._has_served = True
        self.admin.start_by(self._clock.now() + START_S)

    def check(
        self,
        specs: Collection[ApplicationSpec],
        http: HTTPOptions,
        owner: str | None,
        initial: HTTPOptions | None = None,
    ) -> HTTPOptions:
        """Raise `ConfigError` if these applications cannot be applied, in this order.

        Return the options of the proxies after that. The parameters are as of `apply`.
        """
        for spec in specs:
            last = self.rollouts.get(ApplicationKey.parse(spec.name))
            if last is not None and last.live and spec.route_prefix != last.current.route_prefix:
                raise ConfigError(
                    f"the live revisions of application {spec.name!r} have the route prefix "
                    f"{last.current.route_prefix!r}; promote or abort them before you change it"
                )
        there = rollout.active_revisions(self.rollouts.values())
        listening = self.proxies.http if self._is_http_chosen else initial or HTTPOptions()
        return applications.check_all(specs, http, owner, there, listening, self.leases.holder)

    def _move(self, http: HTTPOptions) -> None:
        self.proxies.move(http)
        self.admin.move(http)

    async def add_candidate(
        self,
        spec: ApplicationSpec,
        code: Mapping[str, bytes],
        share: float,
        tag: str | None,
        owner: str | None,
        expected: int | None,
        mirror: float,
    ) -> int:
        """Start a revision of an application beside its main revision, and return its number.

        It gets requests once it is available. If an equal one is live, change its share, tag and mirror instead. Raises
        `ConfigError` if there is no such application, or if the revision has another route prefix, or if each revision
        would have streams in its memory without being asked for.
        """
        async with self._changing:
            self._check_open()
            main = self._main_of(spec)
            spec = applications.beside(spec, main.current)
            equal = self._live_equal(main, spec)
            if equal is None and expected not in (None, main.next_number):
                raise RevisionConflict(
                    f"the next revision of application {spec.name!r} is {main.next_number}, and {expected} was expected"
                )
            after = self.with_candidate(spec, share, tag, owner, mirror)
            if equal is not None:
                await self._put_rollout(after, "TrafficChanged", traffic.summary(after))
                return equal
            key = after.key.candidate(after.last_number)
            own = rollout.applied(None, spec.model_copy(update={"name": key.name}))
            await self._state_store.put_application(own, code)
            self._store_rollout(own)
            await self._put_rollout(after, "CandidateAdded", f"revision {after.last_number}")
            return after.last_number

    def with_candidate(
        self, spec: ApplicationSpec, share: float, tag: str | None, owner: str | None, mirror: float
    ) -> Rollout:
        """Return the rollout of the main revision as it would be with this candidate.

        The parameters are as of `add_candidate`, and it raises the same `ConfigError`.
        """
        main = self._main_of(spec)
        if main.key.is_candidate:
            raise ConfigError(f"{spec.name!r} is a live revision, and no other one can run beside it")
        if self.leases.holder(main.key) not in (None, owner):
            raise ConfigError(f"the application {spec.name!r} is held by another run of this instance")
        if spec.route_prefix is None:
            raise ConfigError(f"application {spec.name!r} serves no HTTP, so it cannot have several live revisions")
        if spec.route_prefix != main.current.route_prefix:
            raise ConfigError(
                f"a live revision of application {spec.name!r} must have its route prefix "
                f"{main.current.route_prefix!r}, not {spec.route_prefix!r}"
            )
        spec = applications.beside(spec, main.current)
        return traffic.with_candidate(main, share, tag, mirror, self._live_equal(main, spec))

    def _main_of(self, spec: ApplicationSpec) -> Rollout:
        """Return the rollout beside which a live revision of an application runs. Raises `ConfigError` without one."""
        key = ApplicationKey.parse(spec.name)
        if key not in self.rollouts:
            raise ConfigError(
                f"there is no application {spec.name!r} beside which a revision could run; deploy it first"
            )
        return self.rollouts[key]

    def _live_equal(self, main: Rollout, spec: ApplicationSpec) -> int | None:
        """Return the newest live revision beside the main one that was deployed from this spec; None: there is none."""
        for each in reversed(main.live):
            own = self.rollouts.get(main.key.candidate(each.revision))
            if own is not None and own.desired.model_copy(update={"name": main.name}) == spec:
                return each.revision
        return None

    async def set_traffic(self, key: ApplicationKey, change: Callable[[Rollout], Rollout]) -> None:
        """Change the shares of the live revisions of an application."""
        async with self._changing:
            self._check_open()
            after = change(self.rollout(key))
            await self._put_rollout(after, "TrafficChanged", traffic.summary(after))

    async def change_release(
        self, key: ApplicationKey, change: Callable[[Rollout], Rollout], event: str, cause: str
    ) -> None:
        """Change the canary release of an application. `event` and `cause`: the record of the change."""
        async with self._changing:
            self._check_open()
            before = self.rollout(key)
            after = change(before)
            if after is not before:  # otherwise the client repeats a request, or the release has ended meanwhile
                await self._put_rollout(after, event, cause)

    async def promote(
        self,
        key: ApplicationKey,
        revision: int | None,
        check: Callable[[ApplicationSpec], object],
        finished: CanaryRelease | None = None,
    ) -> Rollout:
        """Send all requests to a candidate, and apply its spec to the main revision. Return the rollout.

        Parameters:
            key: That of the application.
            revision: The candidate; None: the only one.
            check: Raises `ConfigError` if the spec cannot be applied.
            finished: The canary release that ends by this. If it was paused or has ended meanwhile, nothing changes.
                None: a client asked for the promotion.
        """
        async with self._changing:
            self._check_open()
            before = self.rollout(key)
            if finished is not None and before.canary != finished:
                return before
            main = traffic.promoted(before, revision)
            if main is before:
                return main  # the client repeats a request that was performed before
            assert main.promoted is not None
            own = self.rollout(key.candidate(main.promoted))
            if own.stable is None:
                raise ConfigError(f"revision {main.promoted} of application {key.name!r} is not available yet")
            spec = own.current.model_copy(update={"name": key.name})
            check(spec)
            after = traffic.after(rollout.applied(main, spec))
            await self._put_rollout(after, "Promoted", f"revision {main.promoted} as revision {after.revision}")
            return after

    async def _put_rollout(self, after: Rollout, event: str, cause: str) -> None:
        await self._state_store.put_application(after)
        self._store_rollout(after)
        self._event_log.append(after.name, event, cause=cause)
        self._changed()
        await self._state_store.check_epoch()  # a later controller may have read the store before this change

    async def delete(self, key: ApplicationKey) -> None:
        async with self._changing:
            self._check_open()
            main = self.rollout(key)
            await self._delete(key)
            for each in main.candidates:
                await self._delete(key.candidate(each.revision))

    async def _delete(self, key: ApplicationKey) -> None:
        await self._state_store.delete_application(key)
        self.rollouts.pop(key, None)
        self.in_progress.discard(key)
        self._unwanted.pop(key, None)
        self.leases.discard(key)
        self._event_log.append(key.name, "Deleted")
        self._changed()
        await self._delete_code()
        await self._state_store.check_epoch()  # a later controller may have read the store before this change

    async def _delete_candidates(self) -> None:
        """Delete the candidates that have been removed for so long that no request waits for them any more."""
        now = self._clock.now()
        for key, at in list(self._unwanted.items()):
            if now < at:
                continue
            async with self._changing:
                if self.shutdown_step is not None or key not in self._unwanted:
                    return
                own = self.rollouts.get(key)
                if own is not None and (rest := traffic.without_ingresses(own.current)) is not None:
                    # Its requests may call its other deployments until its ingresses have drained.
                    self._unwanted[key] = now + traffic.longest_drain_s(own) + ROUTES_S
                    drained = rollout.applied(own, rest)
                    await self._state_store.put_application(drained)
                    self._store_rollout(drained)
                    self._changed()
                    continue
                await self._delete(key)
                if key.main in self.rollouts:
                    after = traffic.without(self.rollouts[key.main], key.revision)
                    await self._state_store.put_application(after)
                    self._store_rollout(after)
                    self._changed()

    def _note_unwanted(self) -> None:
        """Note when each removed candidate is to be deleted: when no request waits in the queue of a caller."""
        removed = traffic.removed(self.rollouts)
        self._unwanted = {
            key: self._unwanted.get(key, self._clock.now() + traffic.longest_wait_s(self.rollouts.get(key)) + ROUTES_S)
            for key in removed
        }

    async def begin_shutdown(self, why: str) -> None:
        """Begin a shutdown, and delete the desired state from the state store. Does nothing if a shutdown has begun.

        If the store cannot be written, for example because the disk is full, the shutdown goes on. If the controller
        restarts meanwhile, the next one then starts the applications again.
        """
        async with self._changing:
            if self.shutdown_step is not None:
                return
            try:
                await self._state_store.delete_all()
            except (StaleEpoch, CorruptValue):
                raise
            except ControlError as error:
                self._event_log.append("", "ShutdownNotStored", cause=str(error))
            self._event_log.append("", "ShutdownBegun", cause=why)
            self.shutdown_step = ShutdownStep.REQUESTS
            self._changed()

    def hold(self, owner: str, ttl_s: float) -> None:
        self._check_open()
        self.leases.hold(owner, ttl_s, self._clock.now())

    # For the controller loop

    async def advance(self, key: ApplicationKey, known: Mapping[AnySetKey, ReplicaSet]) -> bool:
        """Continue the rollout of an application. Return whether it was rolled back to the stable revision now."""
        before = self.rollouts.get(key)
        after = before and traffic.after(rollout.step(before, known))
        if before is None or after is None or after is before:
            return False
        async with self._changing:
            if self.shutdown_step is not None or self.rollouts.get(key) is not before:
                return False  # another revision was applied meanwhile, or a shutdown has begun
            await self._state_store.put_application(after)
            self._store_rollout(after)
            self._log_progress(before, after)
            self._changed()
            return after.failure != before.failure

    def _store_rollout(self, after: Rollout) -> None:
        self.rollouts[after.key] = after
        self._note_unwanted()
        if after.is_settled:
            self.in_progress.discard(after.key)
        else:
            self.in_progress.add(after.key)

    def _log_progress(self, before: Rollout, after: Rollout) -> None:
        if after.failure != before.failure:
            self._event_log.append(after.name, "RolledBack", cause=after.failure)
        elif after.published != before.published:
            self._event_log.append(after.name, "RoutesPublished", cause=f"revision {after.revision}")
        if after.is_settled:
            self._event_log.append(after.name, "Available", cause=f"revision {after.revision}")

    async def _delete_code(self) -> None:
        await self._state_store.delete_code_except_of(
            [spec for each in self.rollouts.values() for spec in each.revisions]
        )

    async def keep(self) -> None:
        """Delete the applications of expired leases and the removed candidates, store the leases and the ports, and let
        the admin server start if it is due."""
        if self.shutdown_step is None:
            await self._end_leases()
            await self._delete_candidates()
        if self.shutdown_step is None:
            await self._put_ports()
            self._start_admin()

    def _start_admin(self) -> None:
        """Let the admin server start if it is due, or an application and a proxy are up."""
        if self.admin.due is not None and self.proxies.port and any(each.is_settled for each in self.rollouts.values()):
            self.admin.start_by(self._clock.now())
        if self.admin.is_newly_desired(self._clock.now()):
            self._changed()

    def follow(self, occupied: Collection[NodeId], active: Mapping[NodeId, int], now: float) -> None:
        """Choose the nodes that have proxies, and take over the ports that processes have chosen.

        Parameters:
            occupied: The nodes that have replicas.
            active: The number of proxies by node.
            now: The time on the clock of the controller.
        """
        self.proxies.follow(occupied, active, now)
        if self._proxies() != self._followed:
            self._changed()

    def continue_shutdown(self, step: ShutdownStep) -> None:
        """Set the step of the shutdown, if one has begun."""
        if self.shutdown_step is not None and step is not self.shutdown_step:
            self.shutdown_step = step
            self._changed()

    async def _end_leases(self) -> None:
        """Delete the applications of expired leases, and store the leases.

        An expired lease is removed only after its applications are deleted. If the state store fails, the next tick
        continues.
        """
        now = self._clock.now()
        over = self.leases.expired(now)
        for held in over.values():
            for key in held:
                # The previous controller may have deleted the application and died before it stored the leases.
                if key in self.rollouts:
                    await self.delete(key)
        still = self.leases.expired(now)  # an owner may have renewed its lease meanwhile
        over = {owner: held for owner, held in over.items() if owner in still}
        if over and not self._lasting and not self.rollouts and len(over) == len(self.leases):
            await self.begin_shutdown(f"all leases have expired: {', '.join(sorted(over))}")
        for owner, held in over.items():
            self.leases.remove(owner)
            self._event_log.append("", "LeaseEnded", cause=f"{owner} held {', '.join(map(str, held)) or 'nothing'}")
        if over:
            self._changed()
        if self.leases.plain() != self._stored_leases:
            async with self._changing:
                if self.shutdown_step is None:
                    await self._put_leases()

    async def _store_lease(self, owner: str, key: ApplicationKey) -> None:
        self.leases.hold(owner, LEASE_S, self._clock.now())
        self.leases.add(owner, key)
        await self._put_leases()

    async def _put_leases(self) -> None:
        plain = self.leases.plain()
        if plain != self._stored_leases:
            await self._state_store.put_leases(plain)
            self._stored_leases = plain

    async def _put_ports(self) -> None:
        """Store the ports, so that the proxies and the admin server of the next controller listen on the same ones."""
        port = self.proxies.port
        if self._has_served and port != self._stored_port:
            await self._state_store.put_port(port)
            self._stored_port = port
        if self.admin.port != self._stored_admin_port:
            port = self.admin.port
            await self._state_store.put_admin_port(port)
            self._stored_admin_port = port

    def _check_open(self) -> None:
        if self.shutdown_step is not None:
            raise ControlError("the instance is shut down")
