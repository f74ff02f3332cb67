"""Pinned: a request goes to the only replica that knows its session (`exchange.session_pins`), and waits for that."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.interface import Placement, Replicas
from app_toolkit.exchange.preference import Preference
from app_toolkit.types import ReplicaId


class Pinned:
    """Allows only the replica of the session, as long as that exists, even if it has failed for the request."""

    def __init__(self, replicas: Replicas, otherwise: Placement) -> None:
        """`otherwise`: places the requests whose replica is gone, by what else they prefer."""
        self._replicas = replicas
        self._otherwise = otherwise

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        home = self._replicas.with_session(preference.session)
        if home is not None:
            has_room = home.has_room if free is None else home in free
            return Choice(home, "kept", holds_key=True) if has_room else None
        choice = self._otherwise.rank(replace(preference, session=""), avoid, free, since)
        return None if choice is None else replace(choice, outcome="gone")
