"""What is wanted, and everything that changes it: a command, a lease that ends, proxies that follow the replicas."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app_toolkit.clock import Clock
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.controller.leases import LEASE_S, Leases
from app_toolkit.controller.proxies import Proxies
from app_toolkit.controller.state_store import HTTP, StateStore, StoredState, application_key, application_of_key
from app_toolkit.core import applications, rollout, shutdown
from app_toolkit.core.applications import application_of
from app_toolkit.core.reconcile import ReplicaSetSpec, are_proxies
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.rollout import Rollout
from app_toolkit.core.shutdown import ShutdownStep
from app_toolkit.errors import ConfigError, ControlError, RevisionConflict
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import NodeId


@dataclass(frozen=True, slots=True)
class _Specs:
    """The replica sets of one application, as it stood when they were worked out."""

    rollout: Rollout
    spread: bool
    specs: Mapping[str, ReplicaSetSpec]


class DesiredState:
    """Applications, how the proxies listen, who holds what, and whether everything is to be put away.

    * A change is checked, then it is in the store, then `changed` is called, and only then is anything done about it.
    * One change at a time.
    * What is put away stays in `rollouts`, for whoever looks in meanwhile; the store has forgotten it.
    * Of what is corrupt in the store nobody knows what is wanted: it is left alone until that is said anew.
    """

    def __init__(
        self, written: StateStore, home: NodeId, clock: Clock, event_log: EventLog, changed: Callable[[], None]
    ) -> None:
        self.rollouts: dict[str, Rollout] = {}
        """Of each application, by its name."""
        self.proxies = Proxies(home)
        self.leases = Leases()
        self.shutdown_step: ShutdownStep | None = None
        """The step of putting everything away; None: it is not to be."""
        self._state_store = written
        self._stored_port = 0
        self._stored_leases: dict[str, Any] = {}
        self._specs: dict[str, _Specs] = {}
        self._followed: dict[str, ReplicaSetSpec] = {}
        """The proxies that were last told to be wanted."""
        self._clock = clock
        self._event_log = event_log
        self._changed = changed
        self._changing = asyncio.Lock()
        self.in_progress: set[str] = set()
        """The applications whose rollout is not settled."""
        self._corrupt: dict[str, str] = {}
        """Keys of the store, and why nobody knows what they said."""

    def begin(self, stored: StoredState, now: float) -> None:
        """Take over what the controller before this one has left; every lease begins anew."""
        self._corrupt = dict(stored.corrupt)
        self.rollouts = stored.rollouts
        self.in_progress = {name for name, each in stored.rollouts.items() if not each.is_settled}
        if stored.http is not None:
            self.proxies.move(stored.http)
        self.proxies.port = self._stored_port = stored.port
        self._stored_leases = stored.leases
        self.leases.read(stored.leases, now)

    def specs(self) -> dict[str, ReplicaSetSpec]:
        """The replica sets that are wanted now, by name."""
        self._followed = self._proxies()
        self._specs = {name: self._specs_of(each) for name, each in self.rollouts.items()}
        deployments = {name: spec for each in self._specs.values() for name, spec in each.specs.items()}
        return shutdown.desired(self.shutdown_step, deployments, self._followed if self._is_any else {})

    def _proxies(self) -> dict[str, ReplicaSetSpec]:
        return {} if HTTP in self._corrupt else self.proxies.specs()

    @property
    def corrupt(self) -> dict[str, str]:
        """The applications of which nobody knows what is wanted, and why."""
        return {name: why for key, why in self._corrupt.items() if (name := application_of_key(key)) is not None}

    @property
    def _is_any(self) -> bool:
        """Whether there is any application."""
        return bool(self.rollouts or self.corrupt)

    def unmanaged(self, replica_sets: Iterable[str]) -> dict[str, str]:
        """Why some of these replica sets stay as they are: their desired state cannot be read. By name."""
        if not self._corrupt:
            return {}
        keys = {name: HTTP if are_proxies(name) else application_key(application_of(name)) for name in replica_sets}
        return {name: self._corrupt[key] for name, key in keys.items() if key in self._corrupt}

    def _specs_of(self, stands: Rollout) -> "_Specs":
        """To work them out takes a while; of an application that stands as it stood they are known."""
        before, spread = self._specs.get(stands.name), self.proxies.spread
        if before is not None and before.rollout is stands and before.spread == spread:
            return before
        return _Specs(stands, spread, applications.replica_set_specs(stands.active, spread=spread))

    @property
    def applications(self) -> dict[str, ApplicationSpec]:
        """The version of each that is to run, by name."""
        return {name: each.current for name, each in self.rollouts.items()}

    def rollout(self, name: str) -> Rollout:
        """Raises `ConfigError` where there is no application of that name."""
        if name in self.corrupt:
            raise ConfigError(f"application {name!r} has to be deployed again before: {self.corrupt[name]}")
        if name not in self.rollouts:
            raise ConfigError(f"there is no application {name!r}")
        return self.rollouts[name]

    @property
    def due(self) -> float | None:
        """When a lease ends, or a node loses its proxies, if nothing happens before."""
        leases = self.leases.due if self.shutdown_step is None else None
        return min((at for at in (leases, self.proxies.due) if at is not None), default=None)

    # By command. Each raises `StaleEpoch` where this controller was replaced.

    async def apply(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions | None,
        owner: str | None,
        code: Mapping[str, bytes],
        expected: int | None,
    ) -> int:
        """Gives the application's revision."""
        async with self._changing:
            self._check_open()
            last = self.rollouts.get(spec.name)
            revision = 0 if last is None else last.revision
            if expected not in (None, revision):
                # Whoever asks again, because the controller died before it could answer, has what it asked for.
                if last is not None and expected == revision - 1 and last.desired == spec:
                    return revision
                raise RevisionConflict(
                    f"application {spec.name!r} has revision {revision}, and revision {expected} was expected"
                )
            anew = HTTP in self._corrupt
            old = http if anew and http is not None else self.proxies.http
            there = rollout.active_revisions(self.rollouts.values())
            applications.check(spec, http, owner, there, self.corrupt, old, self.leases.holder(spec.name))
            if http is not None and (anew or http != old):
                await self._state_store.put_http(http)
                self.proxies.move(http, stay=anew)
                self._corrupt.pop(HTTP, None)
            after = rollout.applied(last, spec)
            if owner is not None and last is None and spec.name not in self.corrupt:
                await self._hold(owner, spec.name)  # first: what nobody is known to hold stays
            await self._state_store.put_application(after, code)
            self._corrupt.pop(application_key(spec.name), None)
            self._stands(after)
            self._event_log.append(spec.name, "Applied", cause=f"revision {after.revision}")
            self._changed()
            if owner is not None:
                await self._hold(owner, spec.name)
            await self._delete_code()
            await self._state_store.check_epoch()  # else nobody may know of what was written
            return after.revision

    async def delete(self, name: str) -> None:
        async with self._changing:
            self._check_open()
            if name not in self.corrupt:
                self.rollout(name)
            await self._state_store.delete_application(name)
            self.rollouts.pop(name, None)
            self._corrupt.pop(application_key(name), None)
            self.in_progress.discard(name)
            self.leases.discard(name)
            self._event_log.append(name, "Deleted")
            self._changed()
            await self._delete_code()
            await self._state_store.check_epoch()  # else it may be there again

    async def begin_shutdown(self, why: str) -> None:
        """Want nothing any more, step by step; where that has begun it goes on."""
        async with self._changing:
            if self.shutdown_step is not None:
                return
            await self._state_store.delete_all()
            self._corrupt.clear()
            self._event_log.append("", "ShutdownBegun", cause=why)
            self.shutdown_step = ShutdownStep.REQUESTS
            self._changed()

    def hold(self, owner: str, ttl_s: float) -> None:
        self._check_open()
        self.leases.hold(owner, ttl_s, self._clock.now())

    # In the course of things

    async def advance(self, name: str, known: Mapping[str, ReplicaSet]) -> bool:
        """Let the rollout of an application go on; whether it went back to the good version just now."""
        before = self.rollouts.get(name)
        after = before and rollout.step(before, known)
        if before is None or after is None or after is before:
            return False
        async with self._changing:
            if self.shutdown_step is not None or self.rollouts.get(name) is not before:
                return False  # something else was applied meanwhile
            await self._state_store.put_application(after)
            self._stands(after)
            self._tell(before, after)
            self._changed()
            return after.failure != before.failure

    def _stands(self, after: Rollout) -> None:
        self.rollouts[after.name] = after
        if after.is_settled:
            self.in_progress.discard(after.name)
        else:
            self.in_progress.add(after.name)

    def _tell(self, before: Rollout, after: Rollout) -> None:
        if after.failure != before.failure:
            self._event_log.append(after.name, "RolledBack", cause=after.failure)
        elif after.published != before.published:
            self._event_log.append(after.name, "RoutesPublished", cause=f"revision {after.revision}")
        if after.is_settled:
            self._event_log.append(after.name, "Available", cause=f"revision {after.revision}")

    async def _delete_code(self) -> None:
        if self.corrupt:
            return  # which may name any of it
        await self._state_store.delete_code_except_of(
            [spec for each in self.rollouts.values() for spec in each.revisions]
        )

    async def keep(self) -> None:
        """End what its lease no longer holds, and write down what the next controller must know."""
        if self._is_http_lost:
            await self._forget_http()
        if self.shutdown_step is None:
            await self._end_leases()
        if self.shutdown_step is None:
            await self._put_port()

    def follow(self, occupied: Collection[NodeId], living: Mapping[NodeId, int], now: float) -> None:
        """Let the proxies be where replicas are."""
        self.proxies.follow(occupied, living, now)
        if self._proxies() != self._followed or self._is_http_lost:
            self._changed()

    def continue_shutdown(self, step: ShutdownStep) -> None:
        """Go on to this step of the shutdown, where one has begun."""
        if self.shutdown_step is not None and step is not self.shutdown_step:
            self.shutdown_step = step
            self._changed()

    @property
    def _is_http_lost(self) -> bool:
        """Whether nobody knows how the proxies are to listen, and none is left that could stay as it is."""
        return HTTP in self._corrupt and not self.proxies.any_living

    async def _forget_http(self) -> None:
        async with self._changing:
            if not self._is_http_lost:
                return  # that was said anew meanwhile
            await self._state_store.delete_http()
            del self._corrupt[HTTP]
            http = self.proxies.http
            cause = f"new ones listen on {http.host}:{http.port}, as they do by default"
            self._event_log.append("", "HTTPForgotten", cause=f"no proxy is left that could stay as it is: {cause}")
            self._changed()

    async def _end_leases(self) -> None:
        """A lease that is over stays until what it holds is gone: where the store fails, the next tick goes on."""
        now = self._clock.now()
        over = self.leases.expired(now)
        for held in over.values():
            for name in held:
                # Else it was deleted a moment before the controller died.
                if name in self.rollouts or name in self.corrupt:
                    await self.delete(name)
        still = self.leases.expired(now)  # somebody may have been heard meanwhile
        over = {owner: held for owner, held in over.items() if owner in still}
        if over and not self._is_any and len(over) == len(self.leases):
            await self.begin_shutdown(f"nobody holds it any more: {', '.join(sorted(over))} has gone")
        for owner, held in over.items():
            self.leases.remove(owner)
            self._event_log.append("", "LeaseEnded", cause=f"{owner} held {', '.join(held) or 'nothing'}")
        if over:
            self._changed()
        if self.leases.plain() != self._stored_leases:
            async with self._changing:
                if self.shutdown_step is None:
                    await self._put_leases()

    async def _hold(self, owner: str, name: str) -> None:
        self.leases.hold(owner, LEASE_S, self._clock.now())
        self.leases.add(owner, name)
        await self._put_leases()

    async def _put_leases(self) -> None:
        plain = self.leases.plain()
        if plain != self._stored_leases:
            await self._state_store.put_leases(plain)
            self._stored_leases = plain

    async def _put_port(self) -> None:
        """So that a proxy started by the next controller listens where this one's did."""
        port = self.proxies.port
        if port != self._stored_port:
            await self._state_store.put_port(port)
            self._stored_port = port

    def _check_open(self) -> None:
        if self.shutdown_step is not None:
            raise ControlError("the instance is shut down")
