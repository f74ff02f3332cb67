"""What is wanted, and everything that changes it: a command, a lease that ends, proxies that follow the replicas."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from app_toolkit.clock import Clock
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.controller.leases import LEASE_S, Leases
from app_toolkit.controller.proxies import Proxies
from app_toolkit.controller.written import Kept, Written
from app_toolkit.core import applications, farewell
from app_toolkit.core.farewell import Farewell
from app_toolkit.core.reconcile import GroupSpec
from app_toolkit.errors import ConfigError, ControlError
from app_toolkit.observability.story import Story
from app_toolkit.types import NodeId


class Wanted:
    """Applications, how the proxies listen, who holds what, and whether everything is to be put away.

    * A change is checked, then it is in the store, then `changed` is called, and only then is anything done about it.
    * One change at a time.
    * What is put away stays in `applications`, for whoever looks in meanwhile; the store has forgotten it.
    """

    def __init__(self, written: Written, home: NodeId, clock: Clock, story: Story, changed: Callable[[], None]) -> None:
        self.applications: dict[str, ApplicationSpec] = {}
        self.proxies = Proxies(home)
        self.leases = Leases()
        self.farewell: Farewell | None = None
        """The step of putting everything away; None: it is not to be."""
        self._written = written
        self._port_written = 0
        self._leases_written: dict[str, Any] = {}
        self._followed: dict[str, GroupSpec] = {}
        """The proxies that were last told to be wanted."""
        self._clock = clock
        self._story = story
        self._changed = changed
        self._changing = asyncio.Lock()

    def begin(self, kept: Kept, now: float) -> None:
        """Take over what the controller before this one has left; every lease begins anew."""
        self.applications = kept.applications
        if kept.http is not None:
            self.proxies.move(kept.http)
        self.proxies.port = self._port_written = kept.port
        self._leases_written = kept.leases
        self.leases.read(kept.leases, now)

    def specs(self) -> dict[str, GroupSpec]:
        """The groups that are wanted now, by name."""
        self._followed = self.proxies.wanted()
        deployments = applications.group_specs(self.applications.values(), spread=self.proxies.spread)
        return farewell.wanted(self.farewell, deployments, self._followed if self.applications else {})

    @property
    def due(self) -> float | None:
        """When a lease ends, or a node loses its proxies, if nothing happens before."""
        leases = self.leases.due if self.farewell is None else None
        return min((at for at in (leases, self.proxies.due) if at is not None), default=None)

    # By command. Each raises `StaleEpoch` where this controller was replaced.

    async def apply(
        self, spec: ApplicationSpec, http: HTTPOptions | None, owner: str | None, code: Mapping[str, bytes]
    ) -> None:
        async with self._changing:
            self._check_open()
            old = self.proxies.http
            applications.check(spec, http, owner, self.applications, old, self.leases.holder(spec.name))
            await self._written.check_epoch()
            if http is not None and http != old:
                await self._written.keep_http(http)
                self.proxies.move(http)
            await self._written.keep_application(spec, code)
            self.applications[spec.name] = spec
            await self._written.drop_code_except_of(self.applications.values())
            if owner is not None:
                self.leases.hold(owner, LEASE_S, self._clock.now())
                self.leases.add(owner, spec.name)
            self._story.tell(spec.name, "Applied")
            self._changed()

    async def delete(self, name: str) -> None:
        async with self._changing:
            self._check_open()
            if name not in self.applications:
                raise ConfigError(f"there is no application {name!r}")
            await self._written.check_epoch()
            await self._written.drop_application(name)
            del self.applications[name]
            await self._written.drop_code_except_of(self.applications.values())
            self.leases.discard(name)
            self._story.tell(name, "Deleted")
            self._changed()

    async def put_away(self, why: str) -> None:
        """Want nothing any more, step by step; where that has begun it goes on."""
        async with self._changing:
            if self.farewell is not None:
                return
            await self._written.check_epoch()
            await self._written.drop_all()
            self._story.tell("", "PutAway", cause=why)
            self.farewell = Farewell.REQUESTS
            self._changed()

    def hold(self, owner: str, ttl_s: float) -> None:
        self._check_open()
        self.leases.hold(owner, ttl_s, self._clock.now())

    # In the course of things

    async def keep(self) -> None:
        """End what its lease no longer holds, and write down what the next controller must know."""
        if self.farewell is None:
            await self._keep_leases()
        if self.farewell is None:
            await self._keep_port()

    def follow(self, occupied: Collection[NodeId], living: Mapping[NodeId, int], now: float) -> None:
        """Let the proxies be where replicas are."""
        self.proxies.follow(occupied, living, now)
        if self.proxies.wanted() != self._followed:
            self._changed()

    def take_leave(self, step: Farewell) -> None:
        """Go on to this step of the farewell, where one has begun."""
        if self.farewell is not None and step is not self.farewell:
            self.farewell = step
            self._changed()

    async def _keep_leases(self) -> None:
        over = self.leases.over(self._clock.now())
        for owner, held in over.items():
            self._story.tell("", "LeaseEnded", cause=f"{owner} held {', '.join(held) or 'nothing'}")
            for name in held:
                if name in self.applications:  # else it was deleted a moment before the controller died
                    await self.delete(name)
        if over:
            self._changed()
        if over and not self.applications and not self.leases:
            await self.put_away(f"nobody holds it any more: {', '.join(sorted(over))} has gone")
            return
        plain = self.leases.plain()
        if plain != self._leases_written:
            await self._written.keep_leases(plain)
            self._leases_written = plain

    async def _keep_port(self) -> None:
        """So that a proxy started by the next controller listens where this one's did."""
        port = self.proxies.port
        if port != self._port_written:
            await self._written.keep_port(port)
            self._port_written = port

    def _check_open(self) -> None:
        if self.farewell is not None:
            raise ControlError("the instance is shut down")
