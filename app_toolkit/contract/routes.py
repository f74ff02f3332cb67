"""Finds the ingress that owns a request by its kind, method and path.

The application is the one with the longest route prefix that matches the path. The owner is that of the first route of
the application that matches completely, else of the first route that matches except for the method, else the default
ingress. The app in the replica does everything else: 404, 405, redirects and parameters. The routes contain the regular
expressions of the app, so that the table and the app match a path in the same way.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app_toolkit.config.models import CorsSettings, Route
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.targets import Target
from app_toolkit.errors import NotFound

RequestKind = Literal["http", "websocket"]

Match = tuple[str | None, str]
"""The ingress that owns a request, or None if no ingress has its route; and the path template of the route with the
route prefix of the application, which is empty if no route matches."""


class _Entry(NamedTuple):
    position: int
    kind: str
    pattern: re.Pattern[str]
    methods: frozenset[str] | None
    path: str
    match: Match


class _Node:
    """A literal path segment, and the routes whose literal segments end with it."""

    __slots__ = ("below", "entries")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.entries: list[_Entry] = []


class RouteTable:
    """The routes of an application. Finding an owner takes about the same time for ten routes and for a thousand.

    The literal segments at the beginning of the path templates select the few routes that can match. The regular
    expressions of these routes decide, in the order of the app.
    """

    def __init__(self, default: str, routes: Sequence[Route], prefix: str = "/", root_path: str = "") -> None:
        """Create the table.

        Parameters:
            default: The default ingress.
            routes: The routes, in the order of the app.
            prefix: The route prefix of the application, which path templates in a `Match` begin with.
            root_path: The `root_path` of the app. The app finds a route with and without it.
        """
        self.default = default
        self.root_path = root_path
        self._unmatched: Match = default, ""
        self._root = _Node()
        self._owners = {default, *(route.owner for route in routes)}
        #: The matches of the paths without parameters that were requested. Most requests of many apps have such a path.
        self._literal: dict[tuple[str, str, str], Match] = {}
        for position, route in enumerate(routes):
            node = self._root
            for segment in _literal_segments(route.kind, route.path):
                node = node.below.setdefault(segment, _Node())
            allowed = None if route.methods is None else frozenset(route.methods)
            template = route.path if prefix == "/" else prefix + route.path
            match = route.owner, template
            node.entries.append(_Entry(position, route.kind, re.compile(route.pattern), allowed, route.path, match))

    @property
    def owners(self) -> set[str]:
        """Every ingress that `match` can return."""
        return {owner for owner in self._owners if owner is not None}

    def match(self, kind: RequestKind, method: str, path: str) -> Match:
        """Return the owner and the route of a request. Without a route, the default ingress owns it.

        `path` must be decoded and without the route prefix of the application.
        """
        key = kind, method, path
        entries = self._literal.get(key)
        if entries is not None:
            return entries
        path = route_path(self.root_path, path)
        partial: Match | None = None
        for entry in self._candidates(path):
            if entry.kind not in (kind, "both") or entry.pattern.match(path) is None:
                continue
            methods = entry.methods
            if methods is None or kind == "websocket" or method in methods:
                if path == entry.path and methods is not None:  # at most two keys for each route and method
                    self._literal[key] = entry.match
                return entry.match
            if partial is None:
                partial = entry.match
        return self._unmatched if partial is None else partial

    def owner(self, kind: RequestKind, method: str, path: str) -> str | None:
        """Return the owner of a request, as of `match`."""
        return self.default if len(self._owners) == 1 else self.match(kind, method, path)[0]

    def _candidates(self, path: str) -> list[_Entry]:
        node = self._root
        matching = [node.entries] if node.entries else []
        # `$` in the regular expression of a route also matches before a final newline.
        for segment in path.removesuffix("\n").split("/")[1:]:
            below = node.below.get(segment)
            if below is None:
                break
            node = below
            if node.entries:
                matching.append(node.entries)
        if len(matching) == 1:
            return matching[0]
        return sorted((entry for entries in matching for entry in entries), key=lambda entry: entry.position)


@dataclass(frozen=True, slots=True)
class RoutedApplication:
    """The route table of one application, and the route prefix that it applies to."""

    prefix: str
    target: Target
    """The default ingress of this live revision. Its other ingresses have the same name, weight, tag and mirror."""
    routes: tuple[Route, ...] = ()
    compared: bool = False
    """Whether proxies report its requests, because a canary release compares it with another live revision."""
    is_main: bool = True
    """Whether it is the main revision of its application."""
    root_path: str = ""
    """The `root_path` of the app, if its route prefix is `/`. With another one, it is empty."""
    cors: tuple[CorsSettings, ...] = ()
    """The settings of each `CORSMiddleware` of the app, the outermost first."""


Choose = Callable[[Sequence[Target]], Target]
"""Chooses the target of a request, if several live revisions can serve it."""


class RouteLookup:
    """Finds the replica set that serves a request, among those of several applications."""

    def __init__(self, applications: Iterable[RoutedApplication] = ()) -> None:
        self.applications = tuple(sorted(applications, key=lambda application: len(application.prefix), reverse=True))
        #: The live revisions by route prefix, the longest prefix first. Nearly always, there is one for each prefix.
        #: Each has its route table, and its ingresses by their names.
        self._revisions: dict[str, list[tuple[RouteTable, dict[str, Target]]]] = {}
        self._cors: dict[ReplicaSetKey, tuple[CorsSettings, ...]] = {}
        for application in self.applications:
            table = RouteTable(
                application.target.replica_set.deployment, application.routes, application.prefix, application.root_path
            )
            ingresses = {owner: application.target.at(owner) for owner in table.owners}
            self._cors.update((ingress.replica_set, application.cors) for ingress in ingresses.values())
            self._revisions.setdefault(application.prefix, []).append((table, ingresses))
        #: Every replica set that `find` can return.
        self.replica_sets = frozenset(
            ingress.replica_set
            for revisions in self._revisions.values()
            for _, ingresses in revisions
            for ingress in ingresses.values()
        )
        #: The ingresses of the live revisions that get requests.
        self.serving = [
            ingress
            for revisions in self._revisions.values()
            for _, ingresses in revisions
            for _, ingress in sorted(ingresses.items())
            if ingress.weight
        ]
        #: The live revisions whose requests are reported.
        self.compared = frozenset(
            application.target.replica_set.live_revision for application in self.applications if application.compared
        )

    def find(self, kind: RequestKind, method: str, path: str, choose: Choose) -> tuple[ReplicaSetKey, str]:
        """Return the replica set, and the path template of the route, which is empty if no route matches.

        Raises `NotFound` if no application owns the path.

        `choose`: is called only if several live revisions of the application can serve the request.
        """
        for prefix, revisions in self._revisions.items():
            below = path if prefix == "/" else strip_prefix(prefix, path)
            if below is None:
                continue
            able: list[tuple[Target, str]] = []
            for table, ingresses in revisions:
                owner, route = table.match(kind, method, below)
                if owner is not None:
                    able.append((ingresses[owner], route))
            if not able:
                named = next(
                    application.target.replica_set for application in self.applications if application.prefix == prefix
                )
                raise NotFound(f"no deployment of application {named.application!r} serves {path[:200]!r}")
            if len(able) == 1:
                return able[0][0].replica_set, able[0][1]
            chosen = choose([target for target, _ in able])
            return next((target.replica_set, route) for target, route in able if target is chosen)
        raise NotFound(f"no application has a route prefix that matches {path[:200]!r}")

    def cors(self, replica_set: ReplicaSetKey, path: str) -> tuple[CorsSettings, ...]:
        """Return the settings of each `CORSMiddleware` of the app that would respond to a request.

        `replica_set`: the one that serves the request. If it is none of those that `find` can return, the application
        with the longest route prefix that matches the path counts. The path is empty if the head was not read.
        """
        cors = self._cors.get(replica_set)
        if cors is not None:
            return cors
        above = (
            application.cors
            for application in self.applications
            if path and strip_prefix(application.prefix, path) is not None
        )
        return next(above, ())


def strip_prefix(prefix: str, path: str) -> str | None:
    """Return the path without the route prefix of an application; None: the path does not have this prefix.

    The prefix `/` matches every path and is not removed. If the path is equal to the prefix, the result is empty, as
    for a mounted ASGI app.
    """
    if prefix == "/":
        return path
    if path == prefix:
        return ""
    return path[len(prefix) :] if path.startswith(prefix + "/") else None


def route_path(root_path: str, path: str) -> str:
    """Return the path by which an app with this `root_path` finds a route. Starlette has the same rule."""
    if not root_path or not path.startswith(root_path):
        return path
    below = path[len(root_path) :]
    return path if below and not below.startswith("/") else below


def _literal_segments(kind: str, path: str) -> list[str]:
    if kind == "both":
        path += "/{rest}"  # a mount matches all paths below it
    literal, brace, _ = path.partition("{")
    segments = literal.split("/")[1:]
    return segments[:-1] if brace else segments
