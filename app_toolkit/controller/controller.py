"""The loop around the decisions: take events, plan, act, publish what differs."""

import asyncio
import contextlib
import json
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from app_toolkit.clock import Clock
from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, DeploymentSpec, HTTPOptions
from app_toolkit.controller.board import Board, within
from app_toolkit.controller.leases import LEASE_S, Leases
from app_toolkit.controller.proxies import Proxies
from app_toolkit.core.reconcile import (
    ANSWER_S,
    KILL_AGAIN_S,
    PROXIES,
    STOP_S,
    UNROUTE_S,
    Action,
    GroupRecord,
    GroupSpec,
    Kill,
    Probe,
    Retire,
    Start,
    are_proxies,
    due,
    forgiven,
    group_of,
    noted,
    plan,
    proxies_of,
    recovered,
    take,
)
from app_toolkit.core.replica_state import (
    Event,
    Exited,
    Found,
    Phase,
    Placed,
    ProbePassed,
    Started,
    Unrouted,
)
from app_toolkit.core.status import (
    STOPPING,
    ApplicationStatus,
    InstanceStatus,
    group_status,
    worst,
)
from app_toolkit.errors import ConfigError, Conflict, ControlError, StaleEpoch
from app_toolkit.interfaces import CODE, REPLICAS, ROUTES, Launcher, ReplicaSpec, Snapshot, Store, Version, code_key
from app_toolkit.observability.story import Story
from app_toolkit.types import Kind, NodeId, ReplicaId

GAP_S = 5.0
"""After so long without a tick we may have been stopped, and replaced: first the store is asked."""

RECOVERY_S = 10.0
"""How long what was found after a restart may hold back the publication of its group."""

RETRY_S = 1.0
"""Until the store is asked again after it could not be reached."""

SERVING = (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)
"""A proxy in one of these phases serves, or may."""

INBOX = 100_000
"""Events not yet taken. The oldest give way: a lost event costs time, never correctness."""


@dataclass(slots=True)
class _Group:
    record: GroupRecord
    spec: GroupSpec | None = None
    config: DeploymentConfig | None = None
    """Of a deployment: what callers are told of its limits."""
    wanted: bool = False
    touched: bool = True
    due: float | None = None
    quarantine: str | None = None


class Farewell(Enum):
    """The steps in which everything is put away."""

    REQUESTS = auto()  # the proxies take nothing new and finish what they have, with every replica behind them
    REPLICAS = auto()  # the replicas end, and tell the WebSockets that still pass through the proxies why
    PROXIES = auto()


class Controller:
    """Keeps what runs like what was applied.

    * What is wanted is in the store before anything is done about it; what runs is found again after a
      restart.
    * It plans for a group only when something happened to it or came due; nothing polls.
    * A group whose handling fails is quarantined until it is applied again; the others go on.
    * One that has been replaced by a later epoch does nothing more.
    * What a lease holds goes with it; once the last has ended and no application is left, everything is put away.

    `start` once, then `run` until it returns: after `shutdown`, after the last lease, or when it was
    replaced. Every method belongs to one event loop; only what the launcher emits may come from another
    thread.
    """

    def __init__(self, store: Store, launcher: Launcher, clock: Clock) -> None:
        self.story = Story(clock.now)
        self._store = store
        self._launcher = launcher
        self._clock = clock
        # What is wanted.
        self._applications: dict[str, ApplicationSpec] = {}
        self._proxies = Proxies(launcher.home)
        self._port_written = 0
        self._leases = Leases()
        self._leases_written: dict[str, Any] = {}
        self._put_away_by: float | None = None
        self._farewell: Farewell | None = None
        # What is known.
        self._groups: dict[str, _Group] = {}
        self._unrouting: dict[ReplicaId, Version] = {}
        """Replicas on their way out, by the first snapshot without them."""
        self._moved = False
        """A process has come up or gone: another node may need proxies, or none."""
        self._followed: dict[str, GroupSpec] = {}
        """The proxies that the groups were last specified for."""
        self._minted = 0
        self._recovering = True
        """Until every replica that was found has said what it is, or `_recover_until`."""
        self._recover_until = 0.0
        # The loop.
        self._inbox: deque[Event] = deque(maxlen=INBOX)
        self._outbox: deque[Action] = deque()
        """What one tick has planned; empty between two."""
        self._woken: asyncio.Future[None] | None = None
        self._ticked = clock.now()
        self._next: float | None = None
        self._change = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._ended = asyncio.Event()
        self.replaced = False
        self._writing = asyncio.Lock()

    # Life

    async def start(self) -> None:
        """Take the next epoch, read what is wanted, and find who is there."""
        self._loop = asyncio.get_running_loop()
        self.epoch = await self._take_epoch()
        self.board = Board(self.epoch, self._clock)
        await self._read()
        self._launcher.listen(self._emit, self.epoch)
        found: dict[str, list[ReplicaId]] = {}
        for id in await self._launcher.found():
            found.setdefault(group_of(id), []).append(id)
        self._ticked = now = self._clock.now()
        self._recover_until = now + RECOVERY_S
        for group, ids in found.items():
            if are_proxies(group):
                self._proxies.found(NodeId(group.removeprefix(PROXIES)), self._recover_until)
            self._groups[group] = _Group(recovered(group, sorted(ids), now))
            for id in ids:
                self.story.tell(group, "Recovering", replica=id, cause=f"epoch {self.epoch} began")
        self._leases.read(self._leases_written, now)
        self._follow_replicas(now)
        self._respecify()

    async def run(self) -> None:
        """Tick until there is nothing more to look after, or another controller does."""
        try:
            while not self._ended.is_set():
                try:
                    await self._tick()
                except StaleEpoch as error:
                    self.replaced = True
                    self.story.tell("", "Replaced", cause=str(error))
                    break
                except Exception as error:
                    # What can fail here is the store. Nothing is done unless it can be asked.
                    self.story.tell("", "TickFailed", cause=_sentence(error))
                    await self._clock.sleep(RETRY_S)
                    continue
                if not self._ended.is_set():
                    await self._sleep()
        finally:
            self._ended.set()
            self.board.close()
            self._changed()
            await self._launcher.aclose()

    async def shutdown(self) -> None:
        """Retire everything, the proxies first, so that no request is refused that could have been served.

        Gives back once all have exited, or their deadlines have passed; then `run` returns.
        """
        if not self._ended.is_set():
            await self._put_away("it was shut down")
        await self._ended.wait()

    # What is wanted

    async def apply(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions | None = None,
        owner: str | None = None,
        code: bytes | None = None,
    ) -> None:
        """Make this the application of its name, held by the lease of `owner`; `http` None leaves the proxies.

        `code`: what its replicas unpack, where `spec.code` is the hash of that. Applied again unchanged, it only lifts
        a quarantine and whatever holds back its restarts. Raises `ConfigError` where another application has its
        prefix, `StaleEpoch` where this controller was replaced.
        """
        async with self._writing:
            self._check_open()
            for other in self._applications.values():
                if other.name != spec.name and other.route_prefix == spec.route_prefix is not None:
                    raise ConfigError(
                        f"application {spec.name!r} cannot have the route prefix {spec.route_prefix!r}: "
                        f"{other.name!r} has it"
                    )
            if self._leases.holder(spec.name) not in (None, owner):
                raise ConfigError(
                    f"the application {spec.name!r} is held by another run on this cluster: choose another name"
                )
            old = self._proxies.http
            if http is not None and http != old and self._applications.keys() - {spec.name}:
                raise ConfigError(
                    f"the proxy of this instance listens on {old.host}:{old.port} for other "
                    f"applications and cannot be moved to {http.host}:{http.port}"
                )
            await self._check_epoch()
            if http is not None and http != old:
                await self._write("http", http.model_dump_json().encode())
                self._proxies.move(http)
            if code is not None:
                await self._write(code_key(spec.code), code)
            await self._write(f"applications/{spec.name}", spec.model_dump_json().encode())
            self._applications[spec.name] = spec
            await self._drop_code()
            if owner is not None:
                self.hold(owner)
                self._leases.add(owner, spec.name)
            self.story.tell(spec.name, "Applied")
            for deployment in spec.deployments:
                group = self._groups.get(f"{spec.name}/{deployment.config.name}")
                if group is not None:
                    group.quarantine = None
                    group.record = replace(group.record, failures=())
            self._respecify()

    def methods(self, application: str, deployment: str) -> Mapping[str, Kind]:
        """What callers may call of a deployment, by name. Raises `ConfigError` where there is none of that name."""
        spec = self._applications.get(application)
        if spec is None:
            there = ", ".join(sorted(self._applications)) or "none"
            raise ConfigError(f"there is no application {application!r}; those that run: {there}")
        for each in spec.deployments:
            if each.kind == "class" and each.config.name == deployment:
                return each.methods
        there = ", ".join(spec.callees) or "none"
        raise ConfigError(f"application {application!r} has no deployment {deployment!r} to call; it has {there}")

    async def delete(self, name: str) -> None:
        """Retire an application. Raises `ConfigError` where there is none of that name."""
        async with self._writing:
            self._check_open()
            if name not in self._applications:
                raise ConfigError(f"there is no application {name!r}")
            await self._check_epoch()
            await self._store.delete(f"applications/{name}")
            del self._applications[name]
            await self._drop_code()
            self._leases.discard(name)
            self.story.tell(name, "Deleted")
            self._respecify()

    def hold(self, owner: str, ttl_s: float = LEASE_S) -> None:
        """Take or renew a lease. Where it runs out, what was applied under it is deleted.

        Once the last lease has ended and no application is left, the instance puts itself away; where there never was
        a lease it stays until it is shut down.
        """
        self._check_open()
        self._leases.hold(owner, ttl_s, self._clock.now())
        self._wake()

    async def leave(self, owner: str) -> None:
        """End a lease, and what it holds; gives back once that is gone, and the instance, too, if nothing is left."""
        held = self._leases.end(owner, self._clock.now())
        self._wake()
        number = -1
        while not self._ended.is_set():
            there = any(group.partition("/")[0] in held for group in self._groups)
            if owner not in self._leases and not there and self._put_away_by is None:
                return
            number, _ = await self.status_after(number, LEASE_S)

    # Looking in

    def status(self) -> InstanceStatus:
        now = self._clock.now()
        groups = {
            name: group_status(group.spec, group.record, now, group.quarantine) for name, group in self._groups.items()
        }
        applications = []
        for spec in sorted(self._applications.values(), key=lambda spec: spec.name):
            mine = tuple(groups[name] for d in spec.deployments if (name := f"{spec.name}/{d.config.name}") in groups)
            applications.append(ApplicationStatus(spec.name, worst(g.status for g in mine), spec.route_prefix, mine))
        home = proxies_of(self._proxies.home)
        proxies = tuple(groups[n] for n in sorted(filter(are_proxies, groups), key=lambda n: (n != home, n)))
        leaving = tuple(groups[n] for n, g in self._groups.items() if not g.wanted and not are_proxies(n))
        words = [
            *(a.status for a in applications),
            *(p.status for p in proxies),
            *(g.status for g in leaving),
        ]
        return InstanceStatus(
            epoch=self.epoch,
            change=self._change,
            status=STOPPING if self._put_away_by is not None else worst(words),
            applications=tuple(applications),
            proxies=proxies,
            leaving=leaving,
        )

    async def status_after(self, number: int, timeout_s: float) -> tuple[int, InstanceStatus]:
        """The status and its number once that is above `number`; what there is after `timeout_s`."""
        until = self._clock.now() + timeout_s
        while self._change <= number and not self._ended.is_set() and self._clock.now() < until:
            await self._news(until)
        return self._change, self.status()

    async def _news(self, until: float) -> None:
        """Wait until the status may have changed, or a caller has come back."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await within(self._clock, until - self._clock.now(), waiter)
        finally:
            self._waiters.discard(waiter)

    async def watch(
        self,
        caller: str,
        seen: Mapping[str, Version],
        timeout_s: float = 20.0,
        beginning: str | tuple[str, ...] = "",
    ) -> Mapping[str, Snapshot]:
        """`Board.watch`. A process of ours comes under its own `ReplicaId`, and is forgotten when it exits."""
        self._check_open(also_while_stopping=True)
        # The watch takes down what was seen before it waits; whoever is woken here runs only then.
        if self._unrouting:
            self._wake()
        self._loop.call_soon(self._notify)
        return await self.board.watch(caller, seen, timeout_s, beginning)

    def forget(self, caller: str) -> None:
        """A caller of the board has gone: what it has not seen holds nobody back."""
        self.board.forget(caller)
        self._wake()

    # The tick

    def _emit(self, event: Event) -> None:
        self._inbox.append(event)
        # A launcher's last words may come after the loop has gone; nobody is there to hear them.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _sleep(self) -> None:
        assert self._woken is not None
        self._next = self._next_due()
        if self._next is None:
            await asyncio.wait({self._woken})
        else:
            await within(self._clock, self._next - self._clock.now(), self._woken)

    def _next_due(self) -> float | None:
        times = [group.due for group in self._groups.values() if not group.quarantine]
        times.append(self._leases.due if self._put_away_by is None else None)
        times += [self._put_away_by, self._proxies.due]
        if self._unrouting:
            times.append(self.board.next_expiry())
        if self._recovering:
            times.append(self._recover_until)
        return min((at for at in times if at is not None), default=None)

    async def _tick(self) -> None:
        self._woken = self._loop.create_future()
        await self._catch_up()
        await self._keep_leases()
        await self._keep_port()
        now = self._clock.now()
        self._take_events(now)
        if self._moved or now >= (self._proxies.due or math.inf):
            self._follow_replicas(now)
        self._unroute(now)
        self._end_recovery(now)
        changed = [
            (name, group)
            for name, group in self._groups.items()
            if group.touched or (group.due is not None and group.due <= now)
        ]
        for name, group in changed:
            self._plan(name, group, now)
        for name, group in changed:
            self._publish(name, group)
            self._drop_if_gone(name, group)
        self._take_leave()
        self._end_if_put_away(now)
        await self._act()
        self._ticked = self._clock.now()

    async def _catch_up(self) -> None:
        """After a gap: are we still the one, and what may we hold against whom?"""
        while (now := self._clock.now()) - self._ticked > GAP_S:
            overslept = now - max(self._ticked, self._next or now)
            await self._check_epoch()
            if overslept > GAP_S:
                for group in self._groups.values():
                    group.record = forgiven(group.record, overslept)
                    group.touched = True
                self._leases.forgive(overslept)
                self.board.forgive(overslept)
                self.story.tell("", "Overslept", cause=f"nothing was watched for {overslept:.1f} s")
            self._ticked = now
            self._next = None

    def _take_events(self, now: float) -> None:
        for _ in range(len(self._inbox)):
            event = self._inbox.popleft()
            name = group_of(event.replica)
            group = self._groups.get(name)
            if isinstance(event, Exited):
                self.board.forget(event.replica)
            if group is None or group.record.replica(event.replica) is None:
                if isinstance(event, (Started, Placed, Found)):
                    # It lives, and nobody knows of it: the record of its start was lost with an earlier
                    # controller.
                    self._perform(name, Kill(event.replica, "it is not among the replicas that are known"))
                continue
            self._take(name, group, event, now)
            if isinstance(event, (Started, Found)) and event.location is not None and are_proxies(name):
                self._proxies.learn(event.location.address)

    def _follow_replicas(self, now: float) -> None:
        """Let the proxies be where replicas are."""
        self._moved = False
        occupied, living = set(), Counter[NodeId]()
        for name, group in self._groups.items():
            for replica in group.record.replicas:
                if are_proxies(name):
                    living[NodeId(name.removeprefix(PROXIES))] += replica.phase in SERVING
                elif replica.location is not None and replica.phase in (Phase.RUNNING, Phase.DRAINING):
                    occupied.add(replica.location.node)
        self._proxies.follow(occupied, living, now)
        if self._proxies.wanted() != self._followed:
            self._respecify()

    def _take(self, name: str, group: _Group, event: Event, now: float) -> None:
        before = group.record
        try:
            group.record = take(before, event, now)
        except Exception as error:
            self._quarantine(name, group, error)
            return
        group.touched = True
        self._moved = self._moved or isinstance(event, (Started, Found, Exited))
        was = before.replica(event.replica)
        nothing_new = was is not None and (
            (isinstance(event, ProbePassed) and not was.failed_probes) or was.unplaceable == event
        )
        if not nothing_new:
            self._tell(name, event)

    def _unroute(self, now: float) -> None:
        for id, version in list(self._unrouting.items()):
            name = group_of(id)
            group = self._groups.get(name)
            record = group.record.replica(id) if group else None
            if group is None or record is None or record.phase is not Phase.DRAINING:
                del self._unrouting[id]
            elif self.board.acknowledged(_key(name), version):
                del self._unrouting[id]
                self._take(name, group, Unrouted(id), now)

    def _plan(self, name: str, group: _Group, now: float) -> None:
        group.touched = False
        group.due = None
        if group.quarantine:
            return
        try:
            for action in plan(group.spec, group.record, now, self.epoch):
                group.record = noted(group.record, action, now)
                self._perform(name, action)
            group.due = due(group.spec, group.record)
        except Exception as error:
            self._quarantine(name, group, error)
        self._minted = max(self._minted, group.record.starts)

    def _perform(self, name: str, action: Action) -> None:
        if not isinstance(action, Probe):
            self._tell(name, action)
        if not isinstance(action, Retire):
            self._outbox.append(action)

    async def _act(self) -> None:
        """Perform what was planned. A process begins or ends only on the word of who is still the controller."""
        if any(isinstance(action, (Start, Kill)) for action in self._outbox):
            await self._check_epoch()
        while self._outbox:
            self._launcher.perform(self._outbox.popleft())

    def _quarantine(self, name: str, group: _Group, error: Exception) -> None:
        group.quarantine = f"{name} is not looked after any more: {_sentence(error)}"
        self.story.tell(name, "Quarantined", cause=_sentence(error))
        self._changed()

    # What is published

    def _end_recovery(self, now: float) -> None:
        """Once everyone has said what it is, or has had its time: what is not on the board does not exist."""
        if self._recovering and (now >= self._recover_until or not self._holds_back()):
            self._recovering = False
            for group in self._groups.values():
                group.touched = True
            self.board.settle()

    def _holds_back(self) -> bool:
        return any(
            replica.phase is Phase.RECOVERING for group in self._groups.values() for replica in group.record.replicas
        )

    def _publish(self, name: str, group: _Group) -> None:
        if are_proxies(name):
            return
        replicas = sorted(group.record.replicas, key=lambda replica: replica.id)
        if self._recovering and any(r.phase is Phase.RECOVERING for r in replicas):
            return  # a smaller set than the last one published is worse than that one
        key = _key(name)
        if group.config is not None:
            self.board.post(
                key,
                {
                    "policy": group.config.policy.model_dump(),
                    "replicas": [
                        {
                            "id": replica.id,
                            "address": replica.location.address,
                            "remote_address": replica.location.remote_address,
                            "node": replica.location.node,
                            "trunks": True,
                            "max_ongoing_requests": group.config.max_ongoing_requests,
                        }
                        for replica in replicas
                        if replica.phase in (Phase.RUNNING, Phase.RECOVERING) and replica.location is not None
                    ],
                },
            )
        version = self.board.version(key) or Version(self.epoch, 0)
        for replica in replicas:
            if replica.phase is Phase.DRAINING and not replica.unrouted and replica.id not in self._unrouting:
                self._unrouting[replica.id] = version
                self._wake()

    def _drop_if_gone(self, name: str, group: _Group) -> None:
        if not group.wanted and not group.record.replicas:
            del self._groups[name]
            self.board.remove(_key(name))
            self._changed()
            if are_proxies(name) and self._put_away_by is not None:
                self._respecify()  # nobody asks the others any more

    # From applications to groups

    def _respecify(self) -> None:
        self._followed = self._proxies.wanted()
        wanted = self._wanted()
        for name, (spec, config) in wanted.items():
            group = self._groups.setdefault(name, _Group(GroupRecord(name, starts=self._minted)))
            group.spec, group.config, group.wanted, group.touched = spec, config, True, True
        for name, group in self._groups.items():
            if name not in wanted:
                lingers = are_proxies(name) and self._farewell in (Farewell.REQUESTS, Farewell.REPLICAS)
                group.spec = group.spec and replace(group.spec, target=0, lingers=lingers)
                if group.wanted:
                    group.quarantine = None
                group.wanted, group.touched = False, True
        served = [(spec, spec.route_prefix) for spec in self._applications.values() if spec.route_prefix is not None]
        longest_first = sorted(served, key=lambda each: (-len(each[1]), each[0].name))
        self.board.post(
            ROUTES,
            {
                "applications": [
                    {
                        "name": spec.name,
                        "prefix": prefix,
                        "default": spec.default,
                        "routes": [list(route.row) for route in spec.routes],
                    }
                    for spec, prefix in longest_first
                ]
            },
        )
        self._changed()
        self._wake()

    def _wanted(self) -> dict[str, tuple[GroupSpec, DeploymentConfig | None]]:
        wanted: dict[str, tuple[GroupSpec, DeploymentConfig | None]] = {}
        if self._farewell not in (None, Farewell.REQUESTS):
            return wanted
        for spec in self._applications.values():
            for deployment in spec.deployments:
                group = _group_spec(spec, deployment, spread=self._proxies.spread)
                wanted[group.group] = (group, deployment.config)
        if self._applications and self._farewell is None:
            wanted |= {name: (proxies, None) for name, proxies in self._followed.items()}
        return wanted

    # Putting everything away

    async def _put_away(self, why: str) -> None:
        async with self._writing:
            if self._put_away_by is not None or self._ended.is_set():
                return
            await self._check_epoch()
            # First what is wanted: a controller that comes back in the middle goes on putting away.
            for key in [*await self._store.keys("applications/"), *await self._store.keys(CODE), "lease", "port"]:
                await self._store.delete(key)
            self.story.tell("", "PutAway", cause=why)
            self._put_away_by = self._clock.now() + self._longest_farewell()
            self._farewell = Farewell.REQUESTS
            self._respecify()

    def _take_leave(self) -> None:
        """Go on to the next step of the farewell once the one before is done."""
        if self._farewell is None:
            return
        proxies = [r for name, group in self._groups.items() if are_proxies(name) for r in group.record.replicas]
        if any(proxy.phase is not Phase.STOPPING for proxy in proxies):
            step = Farewell.REQUESTS
        elif not all(map(are_proxies, self._groups)):
            step = Farewell.REPLICAS
        else:
            step = Farewell.PROXIES
        if step is not self._farewell:
            self._farewell = step
            self._respecify()

    def _longest_farewell(self) -> float:
        """Proxies first, then all others at once; each within its deadlines."""
        proxies, others = 0.0, 0.0
        for name, group in self._groups.items():
            if not group.record.replicas:
                continue
            spec = group.spec or self._proxies.wanted()[proxies_of(self._proxies.home)]
            graceful = spec.graceful_shutdown_timeout_s
            lasts = graceful + max(graceful, STOP_S) + 3 * ANSWER_S + KILL_AGAIN_S
            if any(replica.phase is Phase.RECOVERING for replica in group.record.replicas):
                lasts += spec.startup_timeout_s
            if are_proxies(name):
                proxies = max(proxies, lasts)
            else:
                others = max(others, UNROUTE_S + lasts)
        return proxies + others

    def _end_if_put_away(self, now: float) -> None:
        if self._put_away_by is None:
            return
        if self._groups and now < self._put_away_by:
            return
        for name, group in self._groups.items():
            for replica in group.record.replicas:
                self._perform(name, Kill(replica.id, "everything was to be put away by now"))
        self._ended.set()

    # The store

    async def _take_epoch(self) -> int:
        while True:
            last = await self._store.get("epoch")
            epoch = int(last or 0) + 1
            with contextlib.suppress(Conflict):
                await self._store.compare_and_set("epoch", last, str(epoch).encode())
                return epoch

    async def _check_epoch(self) -> None:
        last = int(await self._store.get("epoch") or 0)
        if last > self.epoch:
            self.replaced = True
            self._ended.set()
            self._wake()
            raise StaleEpoch(f"this controller has epoch {self.epoch}, and another has taken {last}")

    async def _read(self) -> None:
        for key in await self._store.keys("applications/"):
            kept = await self._store.get(key)
            if kept is not None:
                spec = ApplicationSpec.model_validate_json(kept)
                self._applications[spec.name] = spec
        if (kept := await self._store.get("http")) is not None:
            self._proxies.move(HTTPOptions.model_validate_json(kept))
        if (kept := await self._store.get("port")) is not None:
            self._proxies.port = self._port_written = int(kept)
        if (kept := await self._store.get("lease")) is not None:
            self._leases_written = json.loads(kept)

    async def _write(self, key: str, value: bytes) -> None:
        before = await self._store.get(key)
        if before != value:
            await self._store.compare_and_set(key, before, value)

    async def _drop_code(self) -> None:
        """Of what was packed only that stays which an application names: a replica that is started later unpacks it."""
        named = {code_key(spec.code) for spec in self._applications.values()}
        for key in await self._store.keys(CODE):
            if key not in named:
                await self._store.delete(key)

    async def _keep_leases(self) -> None:
        if self._put_away_by is not None:
            return
        over = self._leases.over(self._clock.now())
        for owner, held in over.items():
            self.story.tell("", "LeaseEnded", cause=f"{owner} held {', '.join(held) or 'nothing'}")
            for name in held:
                if name in self._applications:  # else it was deleted a moment before the controller died
                    await self.delete(name)
        if over:
            self._changed()
        if over and not self._applications and not self._leases:
            await self._put_away(f"nobody holds it any more: {', '.join(sorted(over))} has gone")
            return
        written = self._leases.plain()
        if written != self._leases_written:
            await self._write("lease", json.dumps(written).encode())
            self._leases_written = written

    async def _keep_port(self) -> None:
        """Written down, so that a proxy started by the next controller listens where this one's did."""
        port = self._proxies.port
        if port != self._port_written and self._put_away_by is None:
            await self._write("port", str(port).encode())
            self._port_written = port

    def _check_open(self, *, also_while_stopping: bool = False) -> None:
        if self.replaced:
            raise StaleEpoch(f"the controller of epoch {self.epoch} has been replaced")
        if self._ended.is_set() or (self._put_away_by is not None and not also_while_stopping):
            raise ControlError("the instance is shut down")

    # Telling

    def _tell(self, name: str, what: Event | Action) -> None:
        cause = getattr(what, "why", None)
        if isinstance(what, Start):
            cause = f"revision {what.revision}"
        self.story.tell(name, type(what).__name__, replica=what.replica, cause=cause)
        self._changed()

    def _changed(self) -> None:
        self._change += 1
        self._notify()

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _key(group: str) -> str:
    return f"{REPLICAS}{group}"


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _group_spec(spec: ApplicationSpec, deployment: DeploymentSpec, *, spread: bool) -> GroupSpec:
    config = deployment.config
    revision = spec.revision(config.name)
    return GroupSpec(
        group=f"{spec.name}/{config.name}",
        revision=revision,
        target=max(config.starting_replicas, 1),  # of none, nothing would ever start
        template=ReplicaSpec(
            id=ReplicaId(""),
            application=spec.name,
            deployment=config.name,
            revision=revision,
            target=spec.target,
            app_dir=spec.app_dir,
            root_path=(spec.route_prefix or "").rstrip("/"),
            live=config.live,
            graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
            on_disconnect=config.on_disconnect,
            kind=deployment.kind,
            callees=spec.callees,
            sync_threads=getattr(config, "sync_threads", 1),
            working_dir=spec.working_dir,
            code=spec.code,
        ),
        options=config.ray_actor_options,
        max_per_node=config.max_replicas_per_node,
        startup_timeout_s=config.startup_timeout_s,
        graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
        health_check_period_s=config.health_check_period_s,
        health_check_timeout_s=config.health_check_timeout_s,
        health_check_failure_threshold=config.health_check_failure_threshold,
        spread=spread,
    )
