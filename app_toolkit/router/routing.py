"""The routing policies of classes: the built-in one, and functions of users that are imported by their path."""

import inspect
import logging
import time
from collections.abc import Callable, Collection, Sequence
from math import inf
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Protocol, cast

from app_toolkit.core.affinity import (
    Outcome,
    Prefixes,
    Routed,
    RoutedCall,
    RoutedReplica,
    keeps_prefix,
    most_preferred,
    prefixes,
)
from app_toolkit.core.methods import MANY
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Call
from app_toolkit.transport.calls import EncodedValue
from app_toolkit.types import ReplicaId

logger = logging.getLogger("app_toolkit.router")

WARN_S = 60.0
"""Seconds between two warnings about the policy of one deployment."""

PolicyFunction = Callable[[RoutedCall, Sequence[RoutedReplica]], Sequence[str]]
"""A routing policy of a user. It returns the ids of the replicas that the call prefers, the most preferred first."""


class RoutingPolicy(Protocol):
    """The routing policy of one deployment in one client process."""

    def routed(self, call: Call) -> Routed | None:
        """Begin to route a call. None: the policy has no preference, whatever the replicas are."""


def import_policy(path: str) -> PolicyFunction:
    """Import the function of a user's policy.

    Raises:
        ConfigError: The module cannot be imported, or it has no such function.
    """
    try:
        found = resolve_name(path)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise ConfigError(
            f"the routing policy {path!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(f"the routing policy {path!r} is not a `def` function: {found!r}")
    return cast(PolicyFunction, found)


def routing_policy(option: str, deployment: str) -> RoutingPolicy:
    """Create the policy that the option `routing_policy` names. If it cannot be imported, log a warning."""
    if option == "prefix":
        return PrefixPolicy(deployment)
    try:
        return UserPolicy(import_policy(option), option, deployment)
    except ConfigError as error:
        logger.warning("calls of %s are routed as without a policy: %s", deployment, error)
        return NoPolicy()


class NoPolicy:
    """Prefers no replica."""

    def routed(self, call: Call) -> None:
        return None


class PrefixPolicy:
    """Prefers the replica that has served the longest known prefix of the first argument.

    A conversation of which this caller knows no prefix prefers a replica by the hash of its first one.
    """

    def __init__(self, deployment: str) -> None:
        self._known = Prefixes()
        self._alarm = _Alarm(deployment)

    def routed(self, call: Call) -> Routed | None:
        first = next(iter(call.args or call.kwargs.values()), None)
        try:
            digests = prefixes(first)
        except Exception as error:  # of an attribute or a `repr` of the user's class
            self._alarm.warn(f"the messages of {call.method} cannot be read: {error!r}")
            return None
        return PrefixRouted(digests, self._known) if digests else None


class PrefixRouted(Routed):
    """A call with a conversation."""

    def __init__(self, digests: Sequence[bytes], known: Prefixes) -> None:
        self._digests = digests
        self._known = known
        #: The replica that has served a prefix, by the last `rank`. None: no prefix is known.
        self._home: ReplicaId | None = None

    def rank(self, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        ids = [ReplicaId(each.id) for each in replicas]
        self._home = self._known.longest(self._digests, ids)
        # Other callers choose the same replica by the hash, and so does this one after a restart.
        home = self._home or most_preferred(self._digests[0].hex(), tuple(ids))
        return [home] if keeps_prefix(home, replicas) else []

    def granted(self, replica: ReplicaId) -> Outcome | None:
        self._known.note(self._digests, replica)
        return _outcome(self._home, replica)


class UserPolicy:
    """Calls the function of a user. If that fails, the call is routed as without a policy."""

    def __init__(self, function: PolicyFunction, path: str, deployment: str) -> None:
        """`path`: the import path of the function, for messages."""
        self._function = function
        self._path = path
        self._alarm = _Alarm(deployment)

    def routed(self, call: Call) -> Routed:
        args, kwargs = call.args, dict(call.kwargs)
        if call.passes_on:
            args = tuple(map(_read, args))
            kwargs = {name: _read(value) for name, value in kwargs.items()}
        return UserRouted(self, RoutedCall(call.method.removesuffix(MANY), args, MappingProxyType(kwargs)))

    def rank(self, call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        try:
            ranked = self._function(call, replicas)
        except Exception as error:
            return self._ignored(f"raised {error!r}")
        if not isinstance(ranked, Sequence) or isinstance(ranked, str):
            return self._ignored(f"returned {ranked!r}, not a list of ids of replicas")
        unknown = _unknown(ranked, replicas)
        return self._ignored(f"returned {unknown}, which is not the id of a replica") if unknown else ranked

    def _ignored(self, why: str) -> Sequence[str]:
        self._alarm.warn(f"{self._path} {why}")
        return []


def _unknown(ranked: Collection[object], replicas: Sequence[RoutedReplica]) -> str:
    ids = {each.id for each in replicas}
    return next((repr(each) for each in ranked if not isinstance(each, str) or each not in ids), "")


def _read(argument: object) -> object:
    return None if isinstance(argument, EncodedValue) else argument


class UserRouted(Routed):
    """A call that the function of a user routes."""

    def __init__(self, policy: UserPolicy, call: RoutedCall) -> None:
        self._policy = policy
        self._call = call
        self._home: str | None = None

    def rank(self, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        ranked = self._policy.rank(self._call, replicas)
        self._home = ranked[0] if ranked else None
        return ranked

    def granted(self, replica: ReplicaId) -> Outcome | None:
        return _outcome(self._home, replica)


def _outcome(home: str | None, replica: ReplicaId) -> Outcome | None:
    if home is None:
        return None
    return "kept" if replica == home else "spilled"


class _Alarm:
    """Warns at most once per `WARN_S` that the policy of a deployment fails."""

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self._warned_at = -inf

    def warn(self, why: str) -> None:
        now = time.monotonic()
        if now - self._warned_at >= WARN_S:
            self._warned_at = now
            logger.warning("calls of %s are routed as without a policy: %s", self._deployment, why)
