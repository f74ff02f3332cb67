"""All placements of one router, and which of them places a request."""

from collections.abc import Collection, Mapping, Sequence
from random import Random

from app_toolkit.errors import ConfigError
from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.alarm import PolicyAlarm
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.hashed import Hashed
from app_toolkit.exchange.placement.holders import Holders
from app_toolkit.exchange.placement.interface import Placement, Replicas
from app_toolkit.exchange.placement.least_loaded import LeastLoaded
from app_toolkit.exchange.placement.near import Near
from app_toolkit.exchange.placement.pinned import Pinned
from app_toolkit.exchange.placement.prefix import Prefix
from app_toolkit.exchange.placement.sticky import Sticky
from app_toolkit.exchange.placement.user_policy import UserPolicy, import_policy
from app_toolkit.exchange.preference import NO_PREFERENCE, Preference, keyed
from app_toolkit.interfaces import Call
from app_toolkit.types import ReplicaId

PREFIX = "prefix"
"""The option `routing_policy` for `Prefix`. Other values are the import paths of functions."""


class Placements:
    """Places each request by the first field of its preference that is set."""

    def __init__(self, deployment: str, rng: Random, near: ReplicaId | None = None) -> None:
        """`deployment`: its name, for warnings. `near`: the replica in this process; None: there is none."""
        self.replicas = Replicas(rng)
        self.holders = Holders(self.replicas)
        self._deployment = deployment
        self._least_loaded = LeastLoaded(self.replicas)
        self._sticky = Sticky(self.replicas, self._least_loaded)
        self._hashed = Hashed(self.replicas)
        self._pinned = Pinned(self.replicas, self)
        self._prefix = Prefix(self.replicas, self._least_loaded, PolicyAlarm(deployment))
        #: Places requests of clients; None: no replica is in this process.
        self._near = None if near is None else Near(self.replicas, near, self._sticky)
        self._user_policy: UserPolicy | None = None
        #: The path of the function that was imported last, or could not be imported.
        self._path = ""

    def update(self, by_id: Mapping[ReplicaId, ReplicaPermits]) -> None:
        """Apply a new replica set."""
        self.replicas.update(by_id)
        self._least_loaded.forget()

    def preference(self, call: Call, routing_policy: str | None) -> Preference:
        """Return the preference of a call, for all of its attempts.

        `routing_policy`: the option of its deployment. If its function cannot be imported, log a warning.
        """
        if call.affinity is not None or routing_policy is None:
            return keyed(call.affinity)
        if routing_policy == PREFIX:
            return self._prefix.preference(call)
        if routing_policy != self._path:
            self._path, self._user_policy = routing_policy, self._import(routing_policy)
        return NO_PREFERENCE if self._user_policy is None else self._user_policy.preference(call)

    def _import(self, path: str) -> UserPolicy | None:
        alarm = PolicyAlarm(self._deployment)
        try:
            return UserPolicy(self.replicas, self._least_loaded, alarm, import_policy(path), path)
        except ConfigError as error:
            alarm.warn(error)
            return None

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        return self.of(preference).rank(preference, avoid, free, since)

    def of(self, preference: Preference) -> Placement:
        """Return the placement of requests with this preference."""
        if preference.session:
            return self._pinned
        if preference.key:
            return self.holders if self.replicas.reporting else self._hashed
        if preference.prefixes:
            return self._prefix
        if preference.call is not None and self._user_policy is not None:
            return self._user_policy
        if self._near is not None:
            return self._near
        return self._least_loaded if preference.replica is None else self._sticky
