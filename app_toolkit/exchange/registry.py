"""The published applications and replica sets, as one process uses them."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from app_toolkit.config.models import Policy
from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey
from app_toolkit.contract.routes import Choose, RequestKind, RouteLookup
from app_toolkit.contract.snapshots import (
    PublishedReplica,
    ReplicaSetSnapshot,
    decode_main,
    decode_replica_set,
    decode_routes,
    decode_split,
)
from app_toolkit.contract.targets import Target
from app_toolkit.errors import NoReplica
from app_toolkit.interfaces import MAINS, REPLICAS, ROUTES, SPLITS, Endpoint, Snapshot, Version, Watch
from app_toolkit.types import Address, NodeId
from app_toolkit.wire.pool import Pool

logger = logging.getLogger("app_toolkit.dispatch")

AGAIN_S = 1.0
"""Seconds before the published snapshots are requested again after an error."""


class PublishedRouter(Protocol):
    """The router interface that the registry uses."""

    policy: Policy

    def update(self, endpoints: Iterable[Endpoint], failing: str | None) -> object: ...

    def expire(self, now: float) -> object: ...

    def close(self) -> object: ...

    @property
    def waiting(self) -> int: ...

    @property
    def ongoing(self) -> int: ...

    @property
    def reached(self) -> str: ...


R = TypeVar("R", bound=PublishedRouter)


class Registry(Generic[R]):
    """Follows the published snapshots, and has one router for each replica set that this process uses.

    * Snapshots may arrive in any order and repeatedly. A snapshot that is not newer than the last one is ignored.
    * A router exists if a route names its replica set, or if `router` was called. A replica set without replicas has a
      router, too, so its requests wait.
    * A router is closed, and its waiters fail, once no route and no snapshot names its replica set. The routers that
      `router` has returned stay until `close`.
    * The calls of a split whose members are not published wait at a router, too. It is closed when they are published.

    Not thread-safe: call the methods on one event loop, except where noted.
    """

    def __init__(
        self,
        new_router: Callable[[ReplicaSetKey], R],
        pool: Pool,
        node: NodeId = NodeId(""),
        prefixes: Iterable[str] = ("",),
    ) -> None:
        """Create a registry without snapshots.

        Parameters:
            new_router: Creates the router of an ingress.
            pool: Has connections to the replicas of all routers.
            node: The node of this process.
            prefixes: The beginnings of the keys to follow.
        """
        #: The routers by their replica sets.
        self.routers: dict[ReplicaSetKey, R] = {}
        #: Finds the replica set that serves a request.
        self.routes = RouteLookup()
        #: Whether routes have been published.
        self.ready = False
        self._new_router = new_router
        self._pool = pool
        self._node = node
        self._prefixes = set(prefixes)
        #: Is called with a replica set after its router was closed. The owner of what depends on routers sets it.
        self.closed: Callable[[ReplicaSetKey], object] = lambda key: None
        self._versions: dict[str, Version] = {}
        #: The last snapshots, including those of replica sets that this process does not use yet.
        self._snapshots: dict[ReplicaSetKey, ReplicaSetSnapshot] = {}
        #: The members of the published splits. A split that was removed has none.
        self.splits: dict[ReplicaSetKey, tuple[Target, ...]] = {}
        #: The main revision of each application whose deployments handles of other processes call, by its name.
        self.mains: dict[str, LiveRevisionKey] = {}
        #: The routers at which calls wait until the members of a split, or the main revision of an application, are
        #: published. They never have replicas.
        self.unpublished: dict[ReplicaSetKey, R] = {}
        #: The addresses that the router of a replica set uses.
        self._addresses: dict[ReplicaSetKey, set[Address]] = {}
        #: The replica sets whose routers stay until `close`.
        self._called: set[ReplicaSetKey] = set()
        self._followed = asyncio.Event()
        #: The present wait for snapshots; None: there is none.
        self._watching: asyncio.Future[Mapping[str, Snapshot]] | None = None
        if self._prefixes:
            self._followed.set()

    # Lookups

    def find(self, kind: RequestKind, method: str, path: str, choose: Choose) -> tuple[ReplicaSetKey, str]:
        """Return the replica set that serves a request, a key of `routers`, and the template of its route.

        `choose`: chooses among live revisions. It is called only if there are several.

        Raises:
            NotFound: No application owns the path.
            NoReplica: No routes have been published yet.
        """
        if not self.ready:
            raise NoReplica("this proxy has no routes yet")
        return self.routes.find(kind, method, path, choose)

    def router(self, key: ReplicaSetKey, new_router: Callable[[ReplicaSetKey], R] | None = None) -> R:
        """Return the router of a replica set that handles call, which stays until `close`.

        `new_router`: creates it, if there is none; None: as that of an ingress. Other threads may call this, one at a
        time. A new router has no replicas before `follow_replica_set`.
        """
        self._called.add(key)
        router = self.routers.get(key)
        if router is None:
            router = self.routers[key] = (new_router or self._new_router)(key)
        return router

    def router_until_published(self, key: ReplicaSetKey, new_router: Callable[[ReplicaSetKey], R] | None = None) -> R:
        """Return the router at which calls wait until the members of a split, or a main revision, are published.

        `new_router`: as for `router`.
        """
        router = self.unpublished.get(key)
        if router is None:
            router = self.unpublished[key] = (new_router or self._new_router)(key)
        return router

    def close_until_published(self, key: ReplicaSetKey) -> None:
        """Close the router at which the calls of a split or to a main revision wait, if there is one."""
        router = self.unpublished.pop(key, None)
        if router is not None:
            router.close()

    @property
    def ingress_routers(self) -> dict[ReplicaSetKey, R]:
        """The routers of the ingresses, without those of the deployments that handles call. Thread-safe."""
        return {key: router for key, router in list(self.routers.items()) if key not in self._called}

    def idempotent(self, key: ReplicaSetKey) -> tuple[str, ...]:
        """Return the methods of a class that may be called again if a replica is lost."""
        snapshot = self._snapshots.get(key)
        return () if snapshot is None else snapshot.idempotent

    def unavailable(self, application: str | None = None) -> list[str]:
        """Return a sentence for each ingress that cannot serve a request now. Empty: all can.

        An ingress that is scaled to zero can serve: the request starts a replica. `application`: only the ingresses of
        this one. None: all.
        """
        if not self.ready:
            return ["no routes have been published yet"]
        serving = [target for target in self.routes.serving if application in (None, target.replica_set.application)]
        if application is not None and not serving:
            return [f"there is no application {application[:200]!r} with a route prefix"]
        return [reason for target in serving if (reason := self._unavailable(target.replica_set)) is not None]

    def _unavailable(self, key: ReplicaSetKey) -> str | None:
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            return f"no replica of {key} has been published yet"
        if snapshot.scaled_to_zero or any(not replica.unresponsive for replica in snapshot.replicas):
            return None
        if snapshot.replicas:
            return f"no replica of {key} answers its health checks"
        if snapshot.cannot_start is not None:
            return snapshot.cannot_start.sentence(key)
        return f"no replica of {key} runs yet"

    # Snapshots

    async def followed(self) -> None:
        """Wait until there is a key to follow."""
        await self._followed.wait()

    async def follow(self, watch: Watch) -> None:
        """Apply the published snapshots until cancelled."""
        while True:
            try:
                await self.receive(watch)
            except Exception:  # requests and calls go on with the last known snapshots
                logger.exception("published snapshots could not be received; the last ones stay in use")
                await asyncio.sleep(AGAIN_S)

    async def receive(self, watch: Watch) -> None:
        """Wait for new snapshots and apply them. Return early if another key is followed from now on.

        The snapshots that were applied before are acknowledged. If a snapshot could not be applied, or if the watch was
        cancelled elsewhere, return after `AGAIN_S`: the next watch may return at once.
        """
        prefixes = tuple(self._prefixes)
        self._watching = asyncio.ensure_future(watch(dict(self._versions), prefixes))
        try:
            await asyncio.wait((self._watching,))
            if self._watching.cancelled():
                again = len(self._prefixes) == len(prefixes)
            else:
                again = not self.update(self._watching.result())
        finally:
            self._watching.cancel()
        if again:
            await asyncio.sleep(AGAIN_S)

    def follow_replica_set(self, key: ReplicaSetKey) -> None:
        """Follow the snapshots of a replica set, too."""
        if key in self._snapshots:
            self._apply(key)
        self._follow_name(f"{REPLICAS}{key.name}")

    def follow_split(self, key: ReplicaSetKey) -> None:
        """Follow the members of a split, too."""
        self._follow_name(f"{SPLITS}{key.name}")

    def follow_main(self, key: ReplicaSetKey) -> None:
        """Follow which revision is the main one of the application, too."""
        self._follow_name(f"{MAINS}{key.application}")

    def _follow_name(self, name: str) -> None:
        prefix = f"{name}/"  # the slash excludes other names
        # A process that follows all keys also names those that it calls: the controller does not let these be deleted.
        if prefix.startswith(tuple(name for name in self._prefixes if name)):
            return
        self._prefixes.add(prefix)
        self._followed.set()
        if self._watching is not None:
            self._watching.cancel()

    def update(self, snapshots: Mapping[str, Snapshot]) -> bool:
        """Apply new snapshots, replica sets first, so that a new route or split has its replicas at once.

        Return False if one of them could not be applied. It is logged and will not be acknowledged.
        """
        all_applied = True
        for key, snapshot in sorted(snapshots.items(), key=lambda item: not item[0].startswith(REPLICAS)):
            seen = self._versions.get(key)
            if seen is not None and snapshot.version <= seen:
                continue
            try:
                if key == ROUTES:
                    self._take_routes(snapshot.value)
                elif key.startswith(REPLICAS):
                    self._take_replica_set(ReplicaSetKey.parse(key.removeprefix(REPLICAS)), snapshot.value)
                elif key.startswith(SPLITS):
                    self._take_split(ReplicaSetKey.parse(key.removeprefix(SPLITS)), snapshot.value)
                elif key.startswith(MAINS):
                    self._take_main(key.removeprefix(MAINS), snapshot.value)
            except Exception as error:
                why = " ".join(str(error).split())
                logger.error("the published value of %r cannot be applied, the last one stays in use: %s", key, why)
                all_applied = False
            else:
                self._versions[key] = snapshot.version
        for unused in self.routers.keys() - self.routes.replica_sets - self._called - self._snapshots.keys():
            self._addresses.pop(unused, None)
            self.routers.pop(unused).close()
            self.closed(unused)
        return all_applied

    def _take_routes(self, value: Any) -> None:
        if value is None:
            self.routes = RouteLookup()
            return
        self.routes, self.ready = RouteLookup(decode_routes(value).applications), True
        for key in self.routes.replica_sets - self.routers.keys():
            self.routers[key] = self._new_router(key)
            if key in self._snapshots:
                self._apply(key)

    def _take_replica_set(self, key: ReplicaSetKey, value: Any) -> None:
        if value is None:
            self._snapshots.pop(key, None)
        else:
            self._snapshots[key] = decode_replica_set(value)
        if key in self.routers:
            self._apply(key)

    def _take_split(self, key: ReplicaSetKey, value: Any) -> None:
        self.splits[key] = () if value is None else decode_split(value)
        self.close_until_published(key)

    def _take_main(self, application: str, value: Any) -> None:
        if value is None:
            self.mains.pop(application, None)
            return
        self.mains[application] = decode_main(value)
        for key in [key for key in self.unpublished if key == key.main and key.application == application]:
            self.close_until_published(key)

    def _apply(self, key: ReplicaSetKey) -> None:
        """Update the router of a replica set and the pool. Idle connections to removed replicas are closed."""
        router, snapshot = self.routers[key], self._snapshots.get(key)
        endpoints: list[Endpoint] = []
        failing: str | None = None
        if snapshot is not None:
            router.policy = snapshot.policy
            endpoints = [
                reached for replica in snapshot.replicas if (reached := endpoint(replica, self._node)) is not None
            ]
            failing = None if snapshot.cannot_start is None else snapshot.cannot_start.sentence(key)
        for reached in endpoints:
            self._pool.allow(reached.address, reached.max_ongoing_requests)
        before, now = self._addresses.get(key, set()), {reached.address for reached in endpoints}
        for address in before - now:
            self._pool.forget(address)
        self._addresses[key] = now
        router.update(endpoints, failing)

    # Loads

    @property
    def reported(self) -> set[ReplicaSetKey]:
        """The replica sets in use whose callers report their load."""
        return {key for key in list(self.routers) if key in self._snapshots and self._snapshots[key].reported}

    @property
    def waiting(self) -> int:
        return sum(router.waiting for router in self.ingress_routers.values())

    @property
    def ongoing(self) -> int:
        return sum(router.ongoing for router in self.ingress_routers.values())

    @property
    def queues(self) -> dict[str, int]:
        """The number of waiting requests, by the name of the ingress. Thread-safe."""
        return {key.name: router.waiting for key, router in self.ingress_routers.items()}

    @property
    def reached(self) -> dict[str, str]:
        """The limits of full queues, by the name of the ingress. Thread-safe."""
        return {key.name: router.reached for key, router in self.ingress_routers.items() if router.reached}

    def expire(self, now: float) -> None:
        """Fail the requests that have waited too long."""
        for router in self.routers.values():
            router.expire(now)

    def close(self) -> None:
        """Close every router. Their waiters fail."""
        for router in (*self.routers.values(), *self.unpublished.values()):
            router.close()


def endpoint(replica: PublishedReplica, node: NodeId) -> Endpoint | None:
    """Return a published replica as a caller on this node reaches it. None: it does not.

    On the same node, the address is the replica's Unix socket, unless its file is not accessible (another container or
    user). The name of the file contains the id of the replica, so no other replica listens there.
    """
    address, remote = replica.address, replica.remote_address
    is_socket = address.startswith("unix:")
    if replica.node != node or (remote and is_socket and not os.access(address.removeprefix("unix:"), os.W_OK)):
        if remote is None:
            return None
        address = remote
    running = None if replica.running is None else frozenset(replica.running)
    return Endpoint(
        replica.id, address, replica.max_ongoing_requests, replica.max_open_streams, replica.unresponsive, running
    )
