"""Computes the target of an autoscaled deployment from the load that its callers report.

The *load* is the number of waiting and ongoing requests, plus open WebSockets and streams, each of which counts as a
fixed share of a request. Each caller reports its own load. A report counts until the next report of the same caller,
or until `FORGOTTEN_S` after it was taken, so the load of a caller that has died is dropped. At every moment, the load
of the deployment is the sum over all callers.

* The autoscaler computes in ticks of `TICK_S`. All periods and delays are counted in ticks.
* The *average* is that of the load over the last `look_back_period_s`. It depends on how long a load lasted, and not on
  how often it was reported. Before the first report it is 0.
* The number of *needed* replicas is `average / target_ongoing_requests`, rounded up, within `min_replicas` and
  `max_replicas`. It is at least 1 while there is any load.
* The target rises to the lowest number that was needed within the last `upscale_delay_s`. It falls to the highest
  number that was needed within the last `downscale_delay_s`. Otherwise it does not change, so a constant load leads to
  a constant target.
* A scaling factor limits a change of the target to that share of the difference between the needed number and the
  target of one delay ago, but to no less than one replica.
* A target of 0 becomes 1 as soon as there is any load, without waiting for the tick. A target becomes 0 only from 1,
  after no replica was needed and the target was 1 throughout `downscale_to_zero_delay_s`.
* An unknown load does not lower the target. At the beginning, `max_replicas` counts as needed for scaling down until
  every caller has had `FORGOTTEN_S` to report and a complete look-back period has passed after that. The same holds
  again after a call that is more than `AWAY_S` late.

A call computes all ticks since the previous call, so the result does not depend on how often `decide` is called, as
long as it is called when it is due.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, floor, fsum, inf
from typing import Literal

from app_toolkit.config.models import AutoscalingConfig

TICK_S = 0.25
"""Seconds between two computations of the target."""

FORGOTTEN_S = 10.0
"""Seconds for which a report counts after it was taken. A caller with a load reports several times in this time."""

AWAY_S = 5.0
"""Seconds after `due`. A later call means that the controller did not run, so it may have missed reports."""


@dataclass(frozen=True, slots=True)
class Report:
    """The load of one deployment in one caller. Each request is in the report of one caller only."""

    source: str
    at: float
    """When the report was taken, on the clock of the autoscaler. Of two reports of a caller, the later one counts."""
    waiting: int
    ongoing: int
    websockets: int = 0
    """The number of open WebSockets."""
    streams: int = 0
    """The number of open streams."""


@dataclass(frozen=True, slots=True)
class Decision:
    target: int
    due: float | None
    """When the target may change next without another report. Call `decide` again by then. None: it cannot change."""
    load: float
    """The present load, in requests."""
    average: float
    needed: int
    """The number of replicas that are needed, regardless of the delays."""


Reason = Literal["load", "min_replicas", "max_replicas", "upscale_delay", "downscale_delay"]


def reason(target: int, needed: int, min_replicas: int, max_replicas: int) -> Reason:
    """Return why the target is what it is. `needed`: the number of replicas that are needed, within the bounds."""
    if needed != target:
        return "upscale_delay" if needed > target else "downscale_delay"
    if target == max_replicas != min_replicas:
        return "max_replicas"
    return "min_replicas" if target == min_replicas else "load"


class Autoscaler:
    """The autoscaler of one deployment. `now` is in seconds; an earlier `now` than before counts as the same time.

    It keeps the load of each tick within the look-back period, and nothing that must be stored. For another config,
    create another autoscaler with the target of the previous one.
    """

    def __init__(
        self, config: AutoscalingConfig, target: int, now: float, websocket: float = 0.0, stream: float = 0.0
    ) -> None:
        """Start with the present number of desired replicas as `target`, brought within the bounds of the config.

        `websocket` and `stream`: the number of requests as which an open WebSocket or stream counts.
        """
        self.config = config
        self.shares = websocket, stream
        self._now = now
        self._tick = floor(now / TICK_S)
        """The last tick. Tick 0 is at time 0. As `TICK_S` is a power of two, conversions between both are exact."""
        self._target = min(max(target, config.min_replicas), config.max_replicas)
        self._reports: dict[str, tuple[float, float]] = {}
        """The last report of each caller: when it was taken, and its load."""
        self._load = 0.0
        self._correction = 0.0
        """What to add to the present load for the average since the last tick; 0: the load has not changed since."""
        self._up, self._down = _ticks(config.upscale_delay_s), _ticks(config.downscale_delay_s)
        to_zero = config.downscale_to_zero_delay_s
        self._to_zero = self._down if to_zero is None else _ticks(to_zero)
        ticks = max(_ticks(config.look_back_period_s), 1)
        self._loads = deque([0.0] * ticks, ticks)
        self._least = _Least(self._up, config.min_replicas)
        self._most = _Least(self._down, -config.max_replicas)  # the numbers are negated to find their maximum
        self._before_up, self._before_down = _Past(self._up, self._target), _Past(self._down, self._target)
        self._idle_since: int | None = None
        """The tick since which the last replica is not needed; None: it is needed."""
        self._seen_at: float | None = None
        """When all callers have had time to report, and a look-back period has passed after that; None: in the past."""
        self._restart_observation()

    def add_report(self, report: Report, now: float) -> None:
        """Take a report. Ignore it if it is too old, or older than the last one of the same caller."""
        self._advance_to(now)
        taken_at = min(report.at, self._now)
        latest, _ = self._reports.get(report.source, (-inf, 0.0))
        if taken_at < latest or taken_at + FORGOTTEN_S <= self._now:
            return
        websocket, stream = self.shares
        load = report.waiting + report.ongoing + report.websockets * websocket + report.streams * stream
        self._reports[report.source] = taken_at, load
        self._sum_up()

    def forget(self, source: str, now: float) -> None:
        """Remove the load of a caller that has ended."""
        self._advance_to(now)
        if self._reports.pop(source, None) is not None:
            self._sum_up()

    def decide(self, now: float) -> Decision:
        """Return the decision for this time."""
        self._advance_to(now)
        return Decision(self._target, self._due(), self._load, self._average(), self._needed())

    def _sum_up(self) -> None:
        """Set the load from now on. Remove expired reports without a load, for which no tick is computed."""
        then = self._now - FORGOTTEN_S
        self._reports = {source: report for source, report in self._reports.items() if report[1] or report[0] > then}
        load = fsum(load for _, load in self._reports.values())
        self._correction += (self._load - load) * (self._now / TICK_S - self._tick)
        self._load = load
        if load:
            self._target = max(self._target, 1)

    def _average(self) -> float:
        return fsum(self._loads) / len(self._loads)

    def _needed(self) -> int:
        needed = max(ceil(_rounded(self._average() / self.config.target_ongoing_requests)), 1 if self._load else 0)
        return min(max(needed, self.config.min_replicas), self.config.max_replicas)

    def _restart_observation(self) -> None:
        """Scale nothing down until all callers have had time to report, and the window contains only their reports."""
        self._seen_at = self._now + FORGOTTEN_S + self.config.look_back_period_s

    # Time

    def _due(self) -> float | None:
        tick = self._next_change()
        return None if tick is None else tick * TICK_S

    def _advance_to(self, now: float) -> None:
        """Compute the ticks until `now`. After a long gap, restart the observation."""
        if now <= self._now:
            return
        due, self._now = self._due(), now
        if due is not None and now - due > AWAY_S:
            self._reports = {source: (now, load) for source, (_, load) in self._reports.items()}
            self._restart_observation()
        while (tick := self._next_change()) is not None and tick * TICK_S <= now:
            self._tick = tick
            self._compute()
        self._tick = floor(now / TICK_S)

    def _next_change(self) -> int | None:
        """Return the next tick at which anything may change without another report; None: there is none."""
        if self._correction or not min(self._loads) == max(self._loads) == self._load:
            return self._tick + 1
        if self._target != self._before_up.number:  # a load raised it, and has ended at the same time
            return self._tick + 1
        times = [taken_at + FORGOTTEN_S for taken_at, load in self._reports.values() if load]
        if self._seen_at is not None:
            times.append(self._seen_at)
        ticks = [ceil(at / TICK_S) for at in times]
        pasts = (self._least, self._most, self._before_up, self._before_down)
        ticks += [past.changes_at for past in pasts if past.changes_at is not None]
        if self._idle_since is not None:
            ticks.append(self._idle_since + self._to_zero)
        return max(min(ticks), self._tick + 1) if ticks else None

    def _compute(self) -> None:
        """Compute the target at a tick."""
        self._loads.append(self._load + self._correction)
        self._correction = 0.0
        now = self._tick * TICK_S
        self._reports = {source: report for source, report in self._reports.items() if report[0] + FORGOTTEN_S > now}
        self._load = fsum(load for _, load in self._reports.values())
        if self._seen_at is not None and self._seen_at <= now:
            self._seen_at = None
        needed = self._needed()
        up = self._least.put(needed, self._tick)
        down = -self._most.put(-(self.config.max_replicas if self._seen_at is not None else needed), self._tick)
        began = self._before_up.read(self._tick)
        if up > began:
            up = began + ceil(_rounded(self.config.upscaling_factor * (up - began)))
        began = self._before_down.read(self._tick)
        if down < began:
            down = began - max(floor(_rounded(self.config.downscaling_factor * (began - down))), 1)
        # The lowest needed number is never above the highest, so the order of min and max does not matter.
        target = min(max(self._target, up), max(down, 1))
        if target != 1 or needed or self._seen_at is not None:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._tick
        if self._idle_since is not None and self._idle_since + self._to_zero <= self._tick:
            target, self._idle_since = 0, None
        self._target = max(target, 1) if self._load else target
        self._before_up.put(self._target, self._tick)
        self._before_down.put(self._target, self._tick)


class _Past:
    """The value of a number `span` ticks ago."""

    def __init__(self, span: int, number: int) -> None:
        self._span = span
        self.number = number
        self._past: deque[tuple[int, int]] = deque()
        """The earlier values, oldest first, each with the tick at which the next one followed."""

    @property
    def changes_at(self) -> int | None:
        return self._past[0][1] + self._span if self._past else None

    def put(self, number: int, tick: int) -> int:
        """Set the present value, and return that of `span` ticks ago."""
        if number != self.number:
            self._past.append((self.number, tick))
            self.number = number
        return self.read(tick)

    def read(self, tick: int) -> int:
        while self._past and self._past[0][1] + self._span <= tick:
            self._past.popleft()
        return self._past[0][0] if self._past else self.number


class _Least(_Past):
    """The lowest value of a number within the last `span` ticks."""

    def put(self, number: int, tick: int) -> int:
        while self._past and self._past[-1][0] >= number:
            self._past.pop()  # the new number is not higher, and stays within the span for longer
        if number > self.number:
            self._past.append((self.number, tick))
        self.number = number
        return self.read(tick)


def _ticks(seconds: float) -> int:
    return ceil(_rounded(seconds / TICK_S))


def _rounded(number: float) -> float:
    """Return a number without the error of binary fractions: 33 / 0.3 needs 110 replicas, and not 111."""
    return round(number, 6)
