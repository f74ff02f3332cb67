"""User policy: a function of the user ranks the replicas for each call. It is imported by its path in the caller."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from types import MappingProxyType
from typing import cast

from app_toolkit.contract.methods import MANY
from app_toolkit.errors import ConfigError
from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.alarm import PolicyAlarm
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.interface import Placement, Replicas
from app_toolkit.exchange.preference import Preference, RoutedCall
from app_toolkit.interfaces import Call
from app_toolkit.types import ReplicaId
from app_toolkit.wire.calls import EncodedValue


@dataclass(frozen=True, slots=True)
class RoutedReplica:
    """A replica as a routing policy sees it. The numbers are those of this caller; other processes call, too."""

    id: str
    ongoing_requests: int
    """The calls of this caller that run at the replica."""
    open_streams: int
    """The open streams of this caller at the replica, which hold no slots."""
    has_room: bool
    """Whether the call can go to this replica now."""


PolicyFunction = Callable[[RoutedCall, Sequence[RoutedReplica]], Sequence[str]]
"""A routing policy of a user. It returns the ids of the replicas that the call prefers, the most preferred first."""


def import_policy(path: str) -> PolicyFunction:
    """Import the function of a user's policy.

    Raises:
        ConfigError: The module cannot be imported, or it has no such function.
    """
    try:
        function = resolve_name(path)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise ConfigError(
            f"the routing policy {path!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"the routing policy {path!r} is not a `def` function: {function!r}")
    return cast(PolicyFunction, function)


class UserPolicy:
    """Prefers the replicas that the function returns, but does not wait for them.

    The function is called whenever the router can grant a permit, at once or from the queue. If it fails, the call is
    placed as without a policy.
    """

    def __init__(
        self, replicas: Replicas, otherwise: Placement, alarm: PolicyAlarm, function: PolicyFunction, path: str
    ) -> None:
        """`otherwise`: places the calls that prefer no replica with room. `path`: of the function, for messages."""
        self._replicas = replicas
        self._otherwise = otherwise
        self._alarm = alarm
        self._function = function
        self._path = path

    def preference(self, call: Call) -> Preference:
        """Return the preference of a call. It is computed once for all attempts."""
        args, kwargs = call.args, dict(call.kwargs)
        if call.passes_on:
            args = tuple(map(_read, args))
            kwargs = {name: _read(value) for name, value in kwargs.items()}
        return Preference(call=RoutedCall(call.method.removesuffix(MANY), args, MappingProxyType(kwargs)))

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        assert preference.call is not None, "the preference is that of a call"
        usable = self._replicas.usable(avoid, free)
        if not usable:
            return None
        with_room = set(usable)
        loads = ((replica.endpoint.id, *replica.load(), replica in with_room) for replica in self._replicas.all)
        ids = self._call(preference.call, [RoutedReplica(*load) for load in loads])
        ranked = (self._replicas.by_id[ReplicaId(id)] for id in ids)
        first = next((replica for replica in ranked if replica in with_room), None)
        choice = self._otherwise.rank(preference, avoid, usable, since) if first is None else Choice(first)
        if choice is None or not ids:
            return choice
        return replace(choice, outcome="kept" if choice.replica.endpoint.id == ids[0] else "spilled")

    def _call(self, call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        try:
            ids = self._function(call, replicas)
        except Exception as error:
            return self._ignored(f"raised {error!r}")
        if not isinstance(ids, Sequence) or isinstance(ids, str):
            return self._ignored(f"returned {ids!r}, not a list of ids of replicas")
        unknown = _unknown(ids, replicas)
        return self._ignored(f"returned {unknown}, which is not the id of a replica") if unknown else ids

    def _ignored(self, why: str) -> Sequence[str]:
        self._alarm.warn(f"{self._path} {why}")
        return []


def _unknown(ranked: Collection[object], replicas: Sequence[RoutedReplica]) -> str:
    ids = {replica.id for replica in replicas}
    return next((repr(id) for id in ranked if not isinstance(id, str) or id not in ids), "")


def _read(argument: object) -> object:
    return None if isinstance(argument, EncodedValue) else argument
