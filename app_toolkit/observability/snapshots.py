"""What a process pushes to the admin server: the differences of its counters, and its gauges.

A push is a JSON object. The counters of a process are cumulative, and each push has what they have grown by since the
push before was acknowledged. A push that was not acknowledged is sent again with the same number, and
`operate/aggregate.py` adds each number once. So nothing is lost or counted twice, whichever of the two processes
is replaced; only what a killed process has not pushed yet is lost.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app_toolkit.observability.metrics import DECLARED, DEPLOYMENT, Sample, Source, declare

DROPPED_SERIES = declare(
    "app_toolkit_metrics_dropped_series",
    "gauge",
    "Series of user code that replicas have left out, because a replica has too many.",
    DEPLOYMENT,
    "replicas",
)


PUSH_S = 2.0
"""Seconds between two pushes while the counters of the process change."""

HEARTBEAT_S = 10.0
"""Seconds between two pushes of a process whose counters do not change."""

Component = Literal["proxy", "replica", "controller"]

Numbers = dict[tuple[str, tuple[str, ...]], list[float]]


@dataclass(frozen=True, slots=True)
class UserFamily:
    """A metric of user code. The labels of its samples are names and values in turn."""

    kind: str
    """As `prometheus_client` names it, such as `counter`, `histogram` or `info`."""
    help: str
    bounds: tuple[str, ...] = ()
    """The upper bounds of the buckets of a histogram."""


@dataclass(slots=True)
class UserMetrics:
    """The metrics of user code in one process at one moment."""

    families: dict[str, UserFamily] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    dropped: int = 0
    """Series that were left out."""


class Snapshots:
    """The pushes of one process. Not thread-safe: one thread calls the methods."""

    def __init__(
        self,
        component: Component,
        replica_set: str,
        sources: Iterable[Source],
        background: Iterable[Source] = (),
        user: Callable[[], UserMetrics] | None = None,
        state: Callable[[], Mapping[str, object]] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        inherited: UserMetrics | None = None,
    ) -> None:
        """Create the pushes of one process.

        Parameters:
            component: The kind of the process.
            replica_set: That of the process; empty: it belongs to no deployment.
            sources: The samples whose change is a reason to push.
            background: The samples that are pushed together with others, such as the memory of the process.
            user: Returns the metrics of user code as `UserMetrics`. None: there is no user code.
            state: Returns what only the controller knows: `revisions` and `processes`. None: it is another process.
            heartbeat_s: Seconds between two pushes if nothing changes.
            inherited: The metrics of user code when the process was forked, whose counts are not its own. None: it
                began without any.
        """
        self._identity = {"run": secrets.token_hex(8), "component": component, "replica_set": replica_set}
        self._sources, self._background = tuple(sources), tuple(background)
        self._user, self._state = user, state
        self._heartbeat_s = heartbeat_s
        self._number = 0
        self._acknowledged: Numbers = {} if inherited is None else _split(inherited.samples, inherited.families)[1]
        #: The numbers after the push that is not acknowledged, and its differences. None: there is none.
        self._pending: tuple[Numbers, list[list[Any]]] | None = None
        self._gauges: list[list[Any]] = []
        self._pushed_at = float("-inf")

    def next(self, now: float, *, last: bool = False) -> bytes | None:
        """Return the push that is due at `now`, a time in seconds; None: none is.

        `last`: the process ends, and its gauges with it.
        """
        user = UserMetrics() if self._user is None else self._user()
        own_samples = [sample for source in self._sources for sample in source()]
        if user.dropped:
            own_samples.append(Sample(DROPPED_SERIES, (self._identity["replica_set"],), [user.dropped]))
        gauges, counters = _split(own_samples, user.families)
        changed = self._pending is not None or gauges != self._gauges or self._have_changed(counters)
        user_gauges, user_counters = _split(user.samples, user.families)
        changed = changed or self._have_changed(user_counters)
        if not (changed or last or now - self._pushed_at >= self._heartbeat_s):
            return None
        more_gauges, more_counters = _split(
            [sample for source in self._background for sample in source()], user.families
        )
        if self._pending is None:
            numbers = counters | more_counters | user_counters
            self._pending = (
                numbers,
                [
                    [name, list(labels), grown]
                    for (name, labels), values in numbers.items()
                    if (grown := growth(self._acknowledged.get((name, labels)), values)) is not None
                ],
            )
            self._number += 1
        self._gauges, self._pushed_at = gauges, now
        all_gauges = [] if last else gauges + more_gauges + user_gauges
        named = {sample[0] for sample in (*self._pending[1], *all_gauges)}
        contents: dict[str, object] = {
            **self._identity,
            "number": self._number,
            "ended": last,
            "counters": self._pending[1],
            "gauges": all_gauges,
            "families": {
                name: [family.kind, family.help, family.bounds]
                for name, family in user.families.items()
                if name in named
            },
        }
        if self._state is not None:
            contents |= self._state()
        return json.dumps(contents, separators=(",", ":")).encode()

    def acknowledge(self) -> None:
        """Note that the last push was taken."""
        if self._pending is not None:
            self._acknowledged, self._pending = self._pending[0], None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the last push was taken."""
        return self._pending is None

    def _have_changed(self, counters: Numbers) -> bool:
        return any(self._acknowledged.get(key) != values for key, values in counters.items())


def growth(before: Sequence[float] | None, after: Sequence[float]) -> list[float] | None:
    """Return by how much the numbers of a series have grown; None: not at all.

    If a count is less than before, the series has begun again at zero. The last number of several is a sum of
    observations, which may fall.
    """
    if before is None or len(before) != len(after):
        return list(after)
    if before == after:
        return None
    grown = [now - then for then, now in zip(before, after, strict=True)]
    if min(grown[:-1] or grown) < 0:
        return list(after)
    return grown


def _split(samples: Iterable[Sample], families: Mapping[str, UserFamily]) -> tuple[list[list[Any]], Numbers]:
    """Return the gauges as they are pushed, and the numbers of the counters."""
    gauges: list[list[Any]] = []
    counters: Numbers = {}
    for name, labels, numbers in samples:
        metric = DECLARED.get(name)
        kind = families[name].kind if metric is None else metric.kind
        if kind in ("counter", "histogram", "summary"):
            counters[name, labels] = numbers
        else:
            gauges.append([name, list(labels), numbers[0]])
    return gauges, counters
