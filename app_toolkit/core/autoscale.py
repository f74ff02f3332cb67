"""How many replicas a deployment should have, by what its callers say of its load.

The *load* is the requests that wait or are ongoing, and open WebSockets and streams, each of which is a certain share
of a request.
Each caller reports its own, and a report counts from when it is heard until that caller is heard anew, or until
`FORGOTTEN_S` after it was taken: who died is forgotten. So at every moment the load is one number, the sum over the
callers.

* The *average* is the integral of the load over the last `look_back_period_s`, divided by that period: what counts is
  how long a load lasted, not how often it was reported. Before the first report it is 0.
* *Needed* are `average / target_ongoing_requests` replicas, rounded up, within `min_replicas` and `max_replicas`; at
  least one while there is any load.
* The target rises to the least that was needed within the last `upscale_delay_s`, and falls to the most that was needed
  within the last `downscale_delay_s`. In between it stays: a load that rests has a target that does.
* With a factor, the target goes at most that share of the way that was left one delay ago, but at least one replica.
* Zero is left at once, for one, when there is any load. It is reached from one alone, when none was needed and no more
  than one was wanted throughout `downscale_to_zero_delay_s`.
* What was not seen is not given up. As long as not every caller had `FORGOTTEN_S` to report, and a whole look-back was
  seen after that, `max_replicas` count as needed for whatever would fall. This holds from the beginning on, and anew
  where somebody comes to ask more than `AWAY_S` after it was due.

All of this holds at every moment, not at ticks: what happened between two questions is made up for, each change at its
own moment. So it makes no difference how often it is asked, as long as it is asked when it is due. Time is counted in
whole microseconds and the load in whole parts of a request, so sums are exact, and what has left the look-back is gone.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, lcm

from app_toolkit.config.models import AutoscalingConfig

FORGOTTEN_S = 10.0
"""A report counts for so long after it was taken. Who has a load reports it several times in this time."""

AWAY_S = 5.0
"""Who asks so much later than it was due has heard nobody meanwhile, and does not know whether anybody spoke."""


@dataclass(frozen=True, slots=True)
class Report:
    """The load of one deployment in one caller. Each request is in the report of one caller only."""

    source: str
    at: float
    """When it was taken, by the clock of whoever decides. Of two reports the one that was taken later counts."""
    waiting: int
    ongoing: int
    websockets: int = 0
    """Those that are open."""
    streams: int = 0
    """Those that are open."""


@dataclass(frozen=True, slots=True)
class Decision:
    target: int
    due: float | None
    """When the target could next change if nothing is heard: ask again by then. None: it cannot."""
    load: float
    """In requests."""
    average: float
    needed: int
    """What the target would be if there were no delays."""


class Autoscaler:
    """Decides for one deployment. `now` is in seconds; where it falls, time stands still.

    It keeps what its callers said in the look-back, and nothing that has to outlive it. Another config is
    another autoscaler, which begins with the target of the one before.
    """

    def __init__(
        self,
        config: AutoscalingConfig,
        target: int,
        now: float,
        websocket: Fraction = Fraction(0),
        stream: Fraction = Fraction(0),
    ) -> None:
        """`target` is how many are wanted now; it is brought within the bounds.

        `websocket` and `stream`: as how many requests an open one counts.
        """
        self.config = config
        self.shares = websocket, stream
        #: Parts of a request, in which the load is counted: a request, a WebSocket, a stream.
        self._parts_of = lcm(websocket.denominator, stream.denominator)
        self._websocket, self._stream = int(websocket * self._parts_of), int(stream * self._parts_of)
        each = Fraction(str(config.target_ongoing_requests))  # as it was written: 0.3 is three tenths
        self._now = _microseconds(now)
        self._target = min(max(target, config.min_replicas), config.max_replicas)
        #: When the report of each caller was taken, and its load.
        self._reports: dict[str, tuple[int, int]] = {}
        #: No report is too old before this.
        self._forget_at: int | None = None
        self._window = _Window(_microseconds(config.look_back_period_s), self._now)
        #: The area that is one request, that which one replica is good for, and what areas are multiplied with to
        #: compare them with the latter.
        self._request = self._parts_of * self._window.length
        self._each, self._times = each.numerator * self._request, each.denominator
        self._up, self._down = _microseconds(config.upscale_delay_s), _microseconds(config.downscale_delay_s)
        to_zero = config.downscale_to_zero_delay_s
        self._to_zero = self._down if to_zero is None else _microseconds(to_zero)
        self._up_factor = Fraction(str(config.upscaling_factor))
        self._down_factor = Fraction(str(config.downscaling_factor))
        self._least = _Least(self._up, config.min_replicas)
        self._most = _Least(self._down, -config.max_replicas)  # of what is negative, for the most is wanted
        # Without a factor the whole way is gone, wherever it began.
        self._before_up = _Past(self._up if self._up_factor < 1 else 0, self._target)
        self._before_down = _Past(self._down if self._down_factor < 1 else 0, self._target)
        self._idle_since: int | None = None
        self._seen_at: int | None = None
        self._see_anew(self._now)
        self._decide()

    def hear(self, report: Report, now: float) -> None:
        """A report came. One that was overtaken, is too old or is there already says nothing."""
        self._come(now)
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
        """This caller is gone."""
        self._come(now)
        if self._reports.pop(source, None) is not None:
            self._window.put(sum(load for _, load in self._reports.values()))
            self._decide()

    def decide(self, now: float) -> Decision:
        """What is wanted now."""
        self._come(now)
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

    def _come(self, now: float) -> None:
        here = _microseconds(now)
        if here <= self._now:
            return
        due = self._due()
        if due is not None and here - due > _AWAY:
            if self._forget_at is not None:
                self._forget_at = here + _FORGOTTEN
            self._see_anew(here)
            self._decide()
        while (then := min(self._changes(), default=None)) is not None and then <= here:
            self._pass(then)
        self._move(here)

    def _see_anew(self, now: int) -> None:
        self._seen_at = now + _FORGOTTEN + self._window.length

    def _changes(self) -> Iterator[int]:
        """When something is going to be different, of itself."""
        yield from self._turns()
        yield from self._bends()

    def _turns(self) -> Iterator[int]:
        """When the target itself may change."""
        for past in (self._least, self._most, self._before_up, self._before_down):
            if past.changes_at is not None:
                yield past.changes_at
        if self._idle_since is not None:
            yield self._idle_since + self._to_zero
        if self._forget_at is not None:
            yield self._forget_at

    def _bends(self) -> Iterator[int]:
        """When what is needed may change: a target may, a delay later."""
        if self._seen_at is not None:
            yield self._seen_at
        if self._window.bends_at is not None:
            yield self._window.bends_at
        crosses_at = self._crosses_at()
        if crosses_at is not None:
            yield crosses_at

    def _due(self) -> int | None:
        soonest = min(self._up, self._down, self._to_zero)
        return min([*self._turns(), *(bend + soonest for bend in self._bends())], default=None)

    def _move(self, now: int) -> None:
        """To a moment until which nothing changes of itself but the average, evenly."""
        self._window.move(now)
        self._now = now

    def _pass(self, now: int) -> None:
        """To the next moment at which something does."""
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
        # What was needed least is never above what was needed most, so the order does not matter.
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
        """Replicas for the average alone, rounded up."""
        return -(-self._window.area * self._times // self._each)

    def _crosses_at(self) -> int | None:
        """When another number will be needed, if the average goes on as it does."""
        slope = self._window.slope * self._times
        if slope > 0:
            number = max(self._whole(), self.config.min_replicas)  # the last moment at which so many are enough
            if number < self.config.max_replicas:
                return self._now + (number * self._each - self._window.area * self._times) // slope + 1
        elif slope < 0:
            number = min(self._whole(), self.config.max_replicas) - 1  # the first moment at which so many are
            if number >= self.config.min_replicas:
                return self._now - (number * self._each - self._window.area * self._times) // -slope
        return None


@dataclass(slots=True)
class _Window:
    """The load of the last `length` microseconds: as an area, in parts of a request times microseconds."""

    length: int
    now: int
    load: int = 0
    area: int = 0
    #: When the load changed within the window, and by how much; the oldest is first.
    steps: deque[tuple[int, int]] = field(default_factory=deque)
    left: int = 0
    """The load at the window's beginning."""

    @property
    def slope(self) -> int:
        return self.load - self.left

    @property
    def bends_at(self) -> int | None:
        """When the oldest change leaves the window."""
        return self.steps[0][0] + self.length if self.steps else None

    def put(self, load: int) -> None:
        """The load from now on."""
        change = load - self.load
        if self.steps and self.steps[-1][0] == self.now:
            change += self.steps.pop()[1]
        if change:
            self.steps.append((self.now, change))
        self.load = load

    def move(self, now: int) -> None:
        """To a moment that is not behind the next bend."""
        self.area += self.slope * (now - self.now)
        self.now = now
        while self.steps and self.steps[0][0] + self.length <= now:
            self.left += self.steps.popleft()[1]


class _Past:
    """What a number was `span` microseconds ago."""

    def __init__(self, span: int, number: int) -> None:
        self._span = span
        self._number = number
        #: What it was before, and until when; the oldest is first.
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
    """The least that a number was within the last `span` microseconds."""

    def put(self, number: int, now: int) -> None:
        super().put(number, now)
        while self._past and self._past[-1][0] >= number:
            self._past.pop()  # as long as that was within the span, this is, too


_SECOND = 1_000_000
_FORGOTTEN = round(FORGOTTEN_S * _SECOND)
_AWAY = round(AWAY_S * _SECOND)


def _microseconds(seconds: float) -> int:
    return round(seconds * _SECOND)
