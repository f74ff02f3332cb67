"""Computes the target of an autoscaled deployment from the load that its callers report.

The *load* is the number of waiting and ongoing requests, plus open WebSockets and streams, each of which counts as a
fixed share of a request. Each caller reports its own load. A report counts until the next report of the same caller,
or until `FORGOTTEN_S` after it was taken, so the load of a caller that has died is dropped. At every moment, the load
of the deployment is the sum over all callers.

* The *average* is the integral of the load over the last `look_back_period_s`, divided by that period. It depends on
  how long a load lasted, and not on how often it was reported. Before the first report it is 0.
* The number of *needed* replicas is `average / target_ongoing_requests`, rounded up, within `min_replicas` and
  `max_replicas`. It is at least 1 while there is any load.
* The target rises to the lowest number that was needed within the last `upscale_delay_s`. It falls to the highest
  number that was needed within the last `downscale_delay_s`. Otherwise it does not change, so a constant load leads to
  a constant target.
* A scaling factor limits a change of the target to that share of the difference between the needed number and the
  target of one delay ago, but to no less than one replica.
* A target of 0 becomes 1 as soon as there is any load. A target becomes 0 only from 1, after no replica was needed and
  the target was 1 throughout `downscale_to_zero_delay_s`.
* An unknown load does not lower the target. At the beginning, `max_replicas` counts as needed for scaling down until
  every caller has had `FORGOTTEN_S` to report and a complete look-back period has passed after that. The same holds
  again after a call that is more than `AWAY_S` late.

These rules hold at every moment and not only when a method is called: a call applies all changes since the previous
call, each at its own time. The result therefore does not depend on how often `decide` is called, as long as it is
called when it is due. Time is counted in whole microseconds and the load in whole parts of a request. Sums are
therefore exact, and a load that has left the look-back period leaves no rounding error.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, lcm

from app_toolkit.config.models import AutoscalingConfig

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


class Autoscaler:
    """The autoscaler of one deployment. `now` is in seconds; an earlier `now` than before counts as the same time.

    It keeps the load within the look-back period, and nothing that must be stored. For another config, create another
    autoscaler with the target of the previous one.
    """

    def __init__(
        self,
        config: AutoscalingConfig,
        target: int,
        now: float,
        websocket: Fraction = Fraction(0),
        stream: Fraction = Fraction(0),
    ) -> None:
        """Start with the present number of desired replicas as `target`, brought within the bounds of the config.

        `websocket` and `stream`: the number of requests as which an open WebSocket or stream counts.
        """
        self.config = config
        self.shares = websocket, stream
        #: The load is counted in parts of a request: the number of parts in a request, a WebSocket and a stream.
        self._parts_of = lcm(websocket.denominator, stream.denominator)
        self._websocket, self._stream = int(websocket * self._parts_of), int(stream * self._parts_of)
        each = Fraction(str(config.target_ongoing_requests))  # the decimal number as written: 0.3 is exactly 3/10
        self._now = _microseconds(now)
        self._target = min(max(target, config.min_replicas), config.max_replicas)
        #: The last report of each caller: when it was taken, and its load.
        self._reports: dict[str, tuple[int, int]] = {}
        #: No report expires before this time; None: there is no report.
        self._forget_at: int | None = None
        self._window = _Window(_microseconds(config.look_back_period_s), self._now)
        #: Areas of the window are load times time. `_request` is the area of an average of one request. Areas times
        #: `_times` can be compared with `_each`, the load that one replica is meant to have, without fractions.
        self._request = self._parts_of * self._window.length
        self._each, self._times = each.numerator * self._request, each.denominator
        self._up, self._down = _microseconds(config.upscale_delay_s), _microseconds(config.downscale_delay_s)
        to_zero = config.downscale_to_zero_delay_s
        self._to_zero = self._down if to_zero is None else _microseconds(to_zero)
        self._up_factor = Fraction(str(config.upscaling_factor))
        self._down_factor = Fraction(str(config.downscaling_factor))
        self._least = _Least(self._up, config.min_replicas)
        self._most = _Least(self._down, -config.max_replicas)  # the numbers are negated to find their maximum
        # Without a factor, the change does not depend on the target of one delay ago.
        self._before_up = _Past(self._up if self._up_factor < 1 else 0, self._target)
        self._before_down = _Past(self._down if self._down_factor < 1 else 0, self._target)
        self._idle_since: int | None = None
        self._seen_at: int | None = None
        self._restart_observation(self._now)
        self._decide()

    def hear(self, report: Report, now: float) -> None:
        """Take a report. Ignore it if it is too old or not newer than the last one of the same caller."""
        self._advance_to(now)
        taken, load = min(_microseconds(report.at), self._now), self._parts(report)
        known, before = self._reports.get(report.source, (taken - 1, 0))
        forget_at = taken + _FORGOTTEN
        if taken <= known or forget_at <= self._now:
            return
        self._reports[report.source] = taken, load
        self._forget_at = forget_at if self._forget_at is None else min(self._forget_at, forget_at)
        self._window.put(self._window.load + load - before)
        self._decide()

    def forget(self, source: str, now: float) -> None:
        """Remove the load of a caller that has ended."""
        self._advance_to(now)
        if self._reports.pop(source, None) is not None:
            self._window.put(sum(load for _, load in self._reports.values()))
            self._decide()

    def decide(self, now: float) -> Decision:
        """Return the decision for this time."""
        self._advance_to(now)
        due = self._due()
        return Decision(
            target=self._target,
            due=None if due is None else due / _SECOND,
            load=self._window.load / self._parts_of,
            average=self._window.area / self._request,
            needed=self._needed(),
        )

    def _parts(self, report: Report) -> int:
        requests = report.waiting + report.ongoing
        return requests * self._parts_of + report.websockets * self._websocket + report.streams * self._stream

    def _advance_to(self, now: float) -> None:
        """Apply the changes until `now`. After a long gap, restart the observation."""
        here = _microseconds(now)
        if here <= self._now:
            return
        due = self._due()
        if due is not None and here - due > _AWAY:
            if self._forget_at is not None:
                self._forget_at = here + _FORGOTTEN
            self._restart_observation(here)
            self._decide()
        while (then := min(self._changes(), default=None)) is not None and then <= here:
            self._pass(then)
        self._move(here)

    def _restart_observation(self, now: int) -> None:
        """Scale nothing down until all callers have had time to report, and the window contains only their reports."""
        self._seen_at = now + _FORGOTTEN + self._window.length

    def _changes(self) -> Iterator[int]:
        """Yield the times at which the state changes without another report."""
        yield from self._target_changes_at()
        yield from self._needed_changes_at()

    def _target_changes_at(self) -> Iterator[int]:
        """Yield the times at which the target itself may change."""
        for past in (self._least, self._most, self._before_up, self._before_down):
            if past.changes_at is not None:
                yield past.changes_at
        if self._idle_since is not None:
            yield self._idle_since + self._to_zero
        if self._forget_at is not None:
            yield self._forget_at

    def _needed_changes_at(self) -> Iterator[int]:
        """Yield the times at which the needed number may change. The target may change one delay later."""
        if self._seen_at is not None:
            yield self._seen_at
        if self._window.bends_at is not None:
            yield self._window.bends_at
        crosses_at = self._crosses_at()
        if crosses_at is not None:
            yield crosses_at

    def _due(self) -> int | None:
        soonest = min(self._up, self._down, self._to_zero)
        return min([*self._target_changes_at(), *(bend + soonest for bend in self._needed_changes_at())], default=None)

    def _move(self, now: int) -> None:
        """Advance to a time until which only the average changes, and does so linearly."""
        self._window.move(now)
        self._now = now

    def _pass(self, now: int) -> None:
        """Advance to the next time at which the state changes, and decide."""
        self._move(now)
        if self._forget_at is not None and self._forget_at <= now:
            self._reports = {source: report for source, report in self._reports.items() if report[0] + _FORGOTTEN > now}
            self._forget_at = min((taken + _FORGOTTEN for taken, _ in self._reports.values()), default=None)
            self._window.put(sum(load for _, load in self._reports.values()))
        if self._seen_at is not None and self._seen_at <= now:
            self._seen_at = None
        self._decide()

    def _decide(self) -> None:
        now, needed = self._now, self._needed()
        self._least.put(needed, now)
        self._most.put(-(self.config.max_replicas if self._seen_at is not None else needed), now)
        up, down = self._least.read(now), -self._most.read(now)
        began = self._before_up.read(now)
        if up > began:
            up = began + ceil(self._up_factor * (up - began))
        began = self._before_down.read(now)
        if down < began:
            down = began - max(floor(self._down_factor * (began - down)), 1)
        # The lowest needed number is never above the highest, so the order of min and max does not matter.
        target = min(max(self._target, up), max(down, 1))
        idle = target == 1 and needed == 0 and self._seen_at is None
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self._idle_since is not None and self._idle_since + self._to_zero <= now:
            target, self._idle_since = 0, None
        if self._window.load:
            target = max(target, 1)
        self._target = target
        self._before_up.put(target, now)
        self._before_down.put(target, now)

    def _needed(self) -> int:
        needed = max(self._whole(), 1 if self._window.load else 0)
        return min(max(needed, self.config.min_replicas), self.config.max_replicas)

    def _whole(self) -> int:
        """Return the number of replicas for the average alone, rounded up."""
        return -(-self._window.area * self._times // self._each)

    def _crosses_at(self) -> int | None:
        """Return when the needed number changes if the average continues to change at the same rate; None: never."""
        slope = self._window.slope * self._times
        if slope > 0:
            number = max(self._whole(), self.config.min_replicas)  # enough until one microsecond before the result
            if number < self.config.max_replicas:
                return self._now + (number * self._each - self._window.area * self._times) // slope + 1
        elif slope < 0:
            number = min(self._whole(), self.config.max_replicas) - 1  # enough from the result on
            if number >= self.config.min_replicas:
                return self._now - (number * self._each - self._window.area * self._times) // -slope
        return None


@dataclass(slots=True)
class _Window:
    """The load of the last `length` microseconds as an area: parts of a request times microseconds."""

    length: int
    now: int
    load: int = 0
    area: int = 0
    #: The changes of the load within the window, oldest first: when, and by how much.
    steps: deque[tuple[int, int]] = field(default_factory=deque)
    left: int = 0
    """The load at the beginning of the window."""

    @property
    def slope(self) -> int:
        return self.load - self.left

    @property
    def bends_at(self) -> int | None:
        """When the oldest change leaves the window; None: there is no change."""
        return self.steps[0][0] + self.length if self.steps else None

    def put(self, load: int) -> None:
        """Set the load from now on."""
        change = load - self.load
        if self.steps and self.steps[-1][0] == self.now:
            change += self.steps.pop()[1]
        if change:
            self.steps.append((self.now, change))
        self.load = load

    def move(self, now: int) -> None:
        """Advance to a time that is not after `bends_at`."""
        self.area += self.slope * (now - self.now)
        self.now = now
        while self.steps and self.steps[0][0] + self.length <= now:
            self.left += self.steps.popleft()[1]


class _Past:
    """The value of a number `span` microseconds ago."""

    def __init__(self, span: int, number: int) -> None:
        self._span = span
        self._number = number
        #: The earlier values, oldest first, and until when each was valid.
        self._past: deque[tuple[int, int]] = deque()

    @property
    def changes_at(self) -> int | None:
        return self._past[0][1] + self._span if self._past else None

    def put(self, number: int, now: int) -> None:
        if number != self._number and self._span:
            self._past.append((self._number, now))
        self._number = number

    def read(self, now: int) -> int:
        while self._past and self._past[0][1] + self._span <= now:
            self._past.popleft()
        return self._past[0][0] if self._past else self._number


class _Least(_Past):
    """The lowest value of a number within the last `span` microseconds."""

    def put(self, number: int, now: int) -> None:
        super().put(number, now)
        while self._past and self._past[-1][0] >= number:
            self._past.pop()  # the new number is not higher, and stays within the span for longer


_SECOND = 1_000_000
_FORGOTTEN = round(FORGOTTEN_S * _SECOND)
_AWAY = round(AWAY_S * _SECOND)


def _microseconds(seconds: float) -> int:
    return round(seconds * _SECOND)
