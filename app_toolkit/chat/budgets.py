"""Decides whether an API key may spend more tokens and money today. A day begins at 00:00 UTC.

Plain data; the caller passes the time in seconds since 1970. A clock that goes back does not begin an earlier day.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from app_toolkit.chat.protocol import UsageEvent
from app_toolkit.chat.rate_limits import KeyLimits, OverLimit

DAY_S = 86_400

NANOS = 1_000_000_000
"""The parts of one unit of money in which costs are added. Integers have no rounding error."""

MAX_TOKENS = 1_000_000_000
"""The highest number of tokens of one response that counts. A model that reports more is wrong."""

MAX_PRICE = 1_000_000.0
"""The highest price of a million tokens."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The price of a million tokens of a model, in any unit of money."""

    input: float
    """Of the prompt."""
    output: float
    """Of the response, with its reasoning."""
    cached: float | None = None
    """Of the part of the prompt that the model had in its cache. None: as `input`."""

    def nanos(self, usage: UsageEvent) -> int:
        """Return what a response costs, in 1/1,000,000,000 of the unit, rounded up."""
        prompt, response = counted(usage.input_tokens), counted(usage.output_tokens)
        cached = min(prompt, counted(usage.cached_tokens))
        cached_price = self.input if self.cached is None else self.cached
        total = (
            Fraction(self.input) * (prompt - cached)
            + Fraction(cached_price) * cached
            + Fraction(self.output) * response
        )
        return math.ceil(total * NANOS / 1_000_000)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a key has spent on one day."""

    day: int
    """The number of days since 1970."""
    tokens: int = 0
    nanos: int = 0

    def at(self, now: float) -> "Spent":
        """Return what is spent on the day of a time: nothing, if it is a later day."""
        day = int(now // DAY_S)
        return Spent(day) if day > self.day else self

    def plus(self, tokens: int, nanos: int) -> "Spent":
        """Return what is spent with a response."""
        return Spent(self.day, self.tokens + tokens, self.nanos + nanos)

    def reset_s(self, now: float) -> float:
        """Return the seconds until the next day begins, and nothing is spent."""
        return max(0.0, (self.day + 1) * DAY_S - now)


def counted(tokens: int) -> int:
    """Return a number of tokens that a model has reported, within the bounds of what counts."""
    return min(max(tokens, 0), MAX_TOKENS)


def tokens_of(usage: UsageEvent) -> int:
    """Return the tokens of a response that count: those of the prompt and of the response."""
    return counted(usage.input_tokens) + counted(usage.output_tokens)


def over_budget(limits: KeyLimits, spent: Spent, now: float) -> OverLimit | None:
    """Return the budget that is used up at a time. None: a request is admitted, whatever it will cost."""
    spent = spent.at(now)
    if limits.max_tokens_per_day is not None and spent.tokens >= limits.max_tokens_per_day:
        return OverLimit("max_tokens_per_day", spent.reset_s(now), spent.tokens)
    if limits.max_cost_per_day is not None and spent.nanos >= Fraction(limits.max_cost_per_day) * NANOS:
        return OverLimit("max_cost_per_day", spent.reset_s(now), spent.nanos / NANOS)
    return None
