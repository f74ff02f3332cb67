"""What an API key may still use, as fields of a response that the SDKs of OpenAI and Anthropic know."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

ALLOWANCES = "app_toolkit.chat.allowances"
"""The entry of the scope with the `Allowances` of the key of a request."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of one limit."""

    limit: int
    remaining: int
    reset_s: float
    """Seconds until all of the limit is left again, if nothing is used meanwhile."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """What is left of the limits of a key. None: there is no such limit."""

    requests: Allowance | None = None
    """Of `max_per_minute`."""
    tokens: Allowance | None = None
    """Of `max_tokens_per_day`."""

    def named(self) -> Iterator[tuple[str, Allowance]]:
        """Yield the limits that there are, by the names that they have in the fields."""
        for name, allowance in (("requests", self.requests), ("tokens", self.tokens)):
            if allowance is not None:
                yield name, allowance


def openai_fields(allowances: Allowances, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the fields `x-ratelimit-*`."""
    for name, allowance in allowances.named():
        yield f"x-ratelimit-limit-{name}", str(allowance.limit)
        yield f"x-ratelimit-remaining-{name}", str(allowance.remaining)
        yield f"x-ratelimit-reset-{name}", duration(allowance.reset_s)


def anthropic_fields(allowances: Allowances, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the fields `anthropic-ratelimit-*`."""
    for name, allowance in allowances.named():
        reset = (now + timedelta(seconds=math.ceil(allowance.reset_s))).replace(microsecond=0).astimezone(UTC)
        yield f"anthropic-ratelimit-{name}-limit", str(allowance.limit)
        yield f"anthropic-ratelimit-{name}-remaining", str(allowance.remaining)
        yield f"anthropic-ratelimit-{name}-reset", reset.isoformat().replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it, such as `6m0s`, rounded up to seconds."""
    whole = math.ceil(seconds)
    hours, minutes = whole // 3_600, whole // 60 % 60
    text = f"{whole % 60}s"
    if whole >= 60:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
