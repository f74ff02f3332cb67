"""Routing: applications by their prefix, their route tables, and one router per ingress."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app_toolkit.config.models import Policy
from app_toolkit.core.attempts import Result
from app_toolkit.core.routes import RouteTable, Row, strip_prefix
from app_toolkit.errors import NoReplica, NotFound
from app_toolkit.interfaces import REPLICAS, ROUTES, Endpoint, Snapshot, Version
from app_toolkit.transport.pool import Pool
from app_toolkit.transport.published import Published
from app_toolkit.types import NodeId, ReplicaId

log = logging.getLogger("app_toolkit.proxy")


Failed = Callable[[Exception], None]


class RoutePermit(Protocol):
    """The right to run one request at one replica."""

    @property
    def endpoint(self) -> Endpoint: ...

    kept: bool
    request: str

    def redeem(self) -> bool: ...


class IngressRouter(Protocol):
    """The router interface that the proxy uses. Permits and waiters are returned to the router that created them."""

    policy: Policy

    def try_acquire(
        self, avoid: Collection[ReplicaId], prefer: ReplicaId | None, streamed: bool, stays: bool
    ) -> RoutePermit | None: ...

    def wait(
        self, granted: Callable[[Any], None], since: float, *, avoid: Collection[ReplicaId], again: bool, failed: Failed
    ) -> Any: ...

    def leave(self, waiter: Any) -> None: ...

    def open(self, permit: Any) -> None: ...

    def release(self, permit: Any) -> None: ...

    def ended(self, permit: Any, result: Result) -> None: ...

    def expire(self, now: float) -> object: ...

    def waited_too_long(self) -> Exception: ...

    def update(self, endpoints: Iterable[Endpoint], failing: str | None) -> object: ...

    def close(self) -> object: ...

    @property
    def waiting(self) -> int: ...

    @property
    def ongoing(self) -> int: ...

    @property
    def reached(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RoutedApplication:
    """One application, as published by the controller."""

    name: str
    prefix: str
    default: str
    rows: tuple[Row, ...]
    table: RouteTable


class Routes:
    """Finds the ingress that owns a request, and holds the router of each ingress.

    * Snapshots may arrive in any order and repeatedly. A snapshot that is not newer than the last one is ignored.
    * An ingress with routes and without replicas has a router, too, so its requests wait.
    * A router is kept while a route or a replica set names its ingress. Then it is closed, and its waiters fail.
    """

    def __init__(
        self,
        new_router: Callable[[str], IngressRouter],
        pool: Pool,
        node: NodeId = NodeId(""),
    ) -> None:
        self.applications: tuple[RoutedApplication, ...] = ()
        self.ready = False
        self.routers: dict[str, IngressRouter] = {}
        self._new_router = new_router
        self._versions: dict[str, Version] = {}
        self._published = Published(pool, node)

    def find(self, kind: str, method: str, path: str) -> str:
        """Return the name of the owning ingress, a key of `routers`.

        Raises:
            NotFound: No application owns the path.
            NoReplica: No routes have been published yet.
        """
        if not self.ready:
            raise NoReplica("this proxy has no routes yet")
        for application in self.applications:
            below = strip_prefix(application.prefix, path)
            if below is not None:
                owner = application.table.owner("websocket" if kind == "websocket" else "http", method, below)
                if owner is None:
                    raise NotFound(f"no deployment of application {application.name!r} serves {path[:200]!r}")
                return f"{application.name}/{owner}"
        raise NotFound(f"no application has a route prefix that matches {path[:200]!r}")

    def update(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Apply new snapshots, replica sets before routes, so that a new route has its replicas at once."""
        for key in sorted(snapshots):
            snapshot = snapshots[key]
            seen = self._versions.get(key)
            if seen is not None and snapshot.version <= seen:
                continue
            if key == ROUTES:
                self._take_routes(snapshot.value)
            elif key.startswith(REPLICAS):
                self._take_replicas(key.removeprefix(REPLICAS), snapshot.value)
            self._versions[key] = snapshot.version
        self._close_unnamed()

    def expire(self, now: float) -> None:
        """Fail the requests that have waited too long."""
        for router in self.routers.values():
            router.expire(now)

    @property
    def versions(self) -> dict[str, Version]:
        """The versions of the last snapshots, by key."""
        return dict(self._versions)

    @property
    def waiting(self) -> int:
        return sum(router.waiting for router in self.routers.values())

    @property
    def queues(self) -> dict[str, int]:
        """The number of waiting requests, by ingress. Thread-safe."""
        return {name: router.waiting for name, router in list(self.routers.items())}

    @property
    def reached(self) -> dict[str, str]:
        """The limits of full queues, by ingress. Thread-safe."""
        return {name: router.reached for name, router in list(self.routers.items()) if router.reached}

    @property
    def ongoing(self) -> int:
        return sum(router.ongoing for router in self.routers.values())

    def loads(self) -> Mapping[str, tuple[int, int]]:
        """Return the numbers of waiting and ongoing requests of each ingress whose callers report their load."""
        reported = self._published.reported & self.routers.keys()
        return {name: (self.routers[name].waiting, self.routers[name].ongoing) for name in reported}

    def _take_routes(self, value: Mapping[str, Any] | None) -> None:
        applications = []
        for published in (value or {}).get("applications", ()):
            rows = tuple(
                (kind, pattern, methods, path, owner) for kind, pattern, methods, path, owner in published["routes"]
            )
            table = RouteTable(published["default"], rows)
            applications.append(
                RoutedApplication(published["name"], published["prefix"], published["default"], rows, table)
            )
        as_before = (value or {}).get("as_before", ())
        applications += [application for application in self.applications if application.name in as_before]
        applications.sort(key=lambda application: len(application.prefix), reverse=True)
        self.applications = tuple(applications)
        self.ready = self.ready or value is not None
        for name in self._named_by_routes():
            self._router(name)

    def _take_replicas(self, name: str, value: Mapping[str, Any] | None) -> None:
        endpoints = self._published.take(name, value)
        if value is not None:
            self._router(name).policy = Policy(**value["policy"])
        if name in self.routers:
            self.routers[name].update(endpoints, self._published.failing.get(name))

    def _router(self, name: str) -> IngressRouter:
        router = self.routers.get(name)
        if router is None:
            router = self.routers[name] = self._new_router(name)
        return router

    def _named_by_routes(self) -> set[str]:
        """Return every ingress that `find` may return. Each has a router, which `_close_unnamed` keeps."""
        return {
            f"{application.name}/{owner}"
            for application in self.applications
            for owner in (application.default, *(row[4] for row in application.rows))
            if owner is not None
        }

    def _close_unnamed(self) -> None:
        for name in self.routers.keys() - self._named_by_routes() - self._published.names:
            self.routers.pop(name).close()
