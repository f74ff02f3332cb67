"""Decides how a canary release goes on: when the new revision gets a larger share of the requests, and when none.

`canary_releases.py` collects the requests of all releases, and asks for the decisions.

A release has steps, which are shares, and guards, which limit the error rate and the latency of the *candidate*. They
compare it with limits, or with the main revision in the same step, the *baseline*. The release looks at the guards
whenever statistics arrive, so a test with a fixed sample size would raise false alarms: each look is another chance for
one. Each guard therefore is a sequential test, which may be read at any time.

Every guard counts *bad* requests of the candidate out of some number, whose probability must not exceed a limit. The
evidence against this is the likelihood ratio of a mixture of higher probabilities. While the limit holds, it is a
nonnegative supermartingale that starts at 1, so by Ville's inequality it ever reaches 1/α with a probability of at most
α. The release returns to 0 when it does.

Ville, "Étude critique de la notion de collectif", 1939. The mixture is that of Robbins, "Statistical Methods Related to
the Law of the Iterated Logarithm", The Annals of Mathematical Statistics 41(5), 1970. Continuous looks at experiments
follow Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, Nonparametric, Nonasymptotic Confidence Sequences", The
Annals of Statistics 49(2), 2021, and Johari, Koomen, Pekelis and Walsh, "Always Valid Inference: Continuous Monitoring
of A/B Tests", Operations Research 70(3), 2022.

Design: docs/design/rollout-and-traffic.md
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, floor, isfinite, log, log1p, sqrt
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from app_toolkit.config.models import Model
from app_toolkit.contract.compared import LEAST_S, Requests
from app_toolkit.errors import ConfigError

STEPS = (1.0, 5.0, 25.0, 50.0, 100.0)
EVERY = "5m"
GUARDS = ("error_rate<1%",)
MIN_REQUESTS = 100

ALPHA = 0.05
"""The highest probability with which a release returns although the candidate stays within all of its limits. The
guards of all steps share it."""

ALTERNATIVES = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""The odds of a bad request that the mixture tests, as multiples of the odds at the limit. All have the same weight."""

LEAST_RATE = 0.001
"""The error rate that a guard of a multiple always allows. Without it, a release would return after two errors if the
baseline has none. A single lost replica can cause as many."""

BASELINE_Z = 3.0
"""The number of standard errors by which the baseline's quantile is raised before the candidate is tested against it,
because it is an estimate. It tends to the quantile as the baseline gets requests."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

_GUARD = re.compile(r"\s*([a-z_0-9]+)\s*<\s*([0-9.]+)\s*(%|x|ms|s)\s*")
_DURATION = re.compile(r"\s*([0-9.]+)\s*(s|m|h)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


# Guards


class Guard(Model):
    """A limit of the error rate or of a quantile of the latency."""

    metric: Literal["error_rate", "p50", "p90", "p95", "p99"]
    limit: Annotated[float, Field(gt=0, description="a share, seconds, or a multiple of the baseline's value")]
    relative: Annotated[bool, Field(description="whether the limit is a multiple of the baseline's value")] = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `error_rate<1%`, `error_rate<2x`, `p95<300ms`, `p95<0.3s` or `p95<1.2x`. Raises `ConfigError`."""
        match = _GUARD.fullmatch(text)
        number = _number(match[2]) if match else None
        if match is None or number is None or match[1] not in ("error_rate", *QUANTILES):
            raise ConfigError(
                f"the guard {text!r} should be error_rate<1%, error_rate<2x, or p50, p90, p95 or p99 with a time or a "
                "multiple, such as p95<300ms or p95<1.2x"
            )
        metric: Any = match[1]
        unit = match[3]
        if unit == "x":
            if number < 1:
                raise ConfigError(f"the guard {text!r} asks for less than the baseline has; its limit is at least 1x")
            return cls(metric=metric, limit=number, relative=True)
        if (unit == "%") != (metric == "error_rate"):
            units = "% or x" if metric == "error_rate" else "ms, s or x"
            raise ConfigError(f"the limit of the guard {text!r} should have the unit {units}")
        limit = {"%": number / 100, "ms": number / 1000, "s": number}[unit]
        if limit <= 0 or (unit == "%" and limit >= 1):
            between = "above 0 % and below 100 %" if unit == "%" else "above 0"
            raise ConfigError(f"the limit of the guard {text!r} should be {between}")
        return cls(metric=metric, limit=limit)

    def __str__(self) -> str:
        if self.relative:
            return f"{self.metric}<{self.limit:g}x"
        if self.metric == "error_rate":
            return f"{self.metric}<{100 * self.limit:g}%"
        return f"{self.metric}<{_time(self.limit)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the requests of one step say about one guard."""

    evidence: float
    """The logarithm of the evidence that the candidate exceeds the limit. It is 0 without any request."""
    is_within: bool
    """Whether the candidate's present value is within the limit."""
    text: str


def examine(guard: Guard, candidate: Requests, baseline: Requests, at_least: int) -> Finding:
    """Return what the requests say about a guard.

    A guard of the latency says nothing before `at_least` requests: the first requests of new processes are slow, for
    example because they connect to databases.
    """
    if guard.metric == "error_rate":
        return _errors(guard, candidate, baseline)
    level = QUANTILES[guard.metric]
    value = candidate.quantile_s(level)
    text = f"the {guard.metric} of the candidate is {_time(value)}"
    enough = candidate.timed >= at_least
    if not guard.relative:
        limit = tested = guard.limit
    else:
        enough = enough and baseline.timed >= at_least
        limit = guard.limit * baseline.quantile_s(level)
        tested = guard.limit * _upper_quantile_s(baseline, level)
        text += f", and that of the baseline {_time(baseline.quantile_s(level))}"
    slow = candidate.slower_than(tested)
    evidence = _evidence(slow, candidate.timed, 1 - level) if enough else 0.0
    return Finding(evidence, value <= limit, text)


def _errors(guard: Guard, candidate: Requests, baseline: Requests) -> Finding:
    text = f"{candidate.errors:,} of {candidate.requests:,} requests of the candidate failed"
    if not guard.relative:
        evidence = _evidence(candidate.errors, candidate.requests, guard.limit)
        return Finding(evidence, candidate.error_rate <= guard.limit, text)
    text += f", and {baseline.errors:,} of {baseline.requests:,} of the baseline"
    # Errors are rare, so they arrive as two Poisson processes. Given that a request failed, it is the candidate's with
    # this probability if both rates have the ratio of the limit. So the unknown rate of the baseline does not matter.
    expected = guard.limit * candidate.requests
    total = expected + baseline.requests
    compared = _evidence(candidate.errors, candidate.errors + baseline.errors, expected / total if total else 1.0)
    alone = _evidence(candidate.errors, candidate.requests, LEAST_RATE)
    # One error never holds a step: a lower rate than one error in the sample cannot be told from none.
    most = max(1.0, expected * baseline.error_rate, LEAST_RATE * candidate.requests)
    return Finding(min(compared, alone), candidate.errors <= most, text)


def _evidence(bad: float, number: float, limit: float) -> float:
    """Return the logarithm of the likelihood ratio of the mixture of `ALTERNATIVES` to the probability `limit`."""
    if limit >= 1 or not number:
        return 0.0
    ratios = []
    for multiple in ALTERNATIVES:
        odds = multiple * limit / (1 - limit)
        ratios.append(bad * log(multiple) - number * (log1p(odds) + log1p(-limit)))
    most = max(ratios)
    return most + log(sum(exp(ratio - most) for ratio in ratios) / len(ratios))


def _upper_quantile_s(baseline: Requests, level: float) -> float:
    """Return an upper bound of the latency at this level, from the order statistics of the baseline."""
    error = sqrt(level * (1 - level) / baseline.timed) if baseline.timed else 1.0
    return baseline.quantile_s(min(level + BASELINE_Z * error, 1.0))


# Releases


class CanaryPlan(Model):
    """The steps and the guards of a canary release."""

    steps: Annotated[tuple[float, ...], Field(description="the shares in percent, in rising order")]
    every_s: Annotated[float, Field(description="the least number of seconds of a step")]
    guards: tuple[Guard, ...]
    min_requests: Annotated[int, Field(description="the least number of requests of each revision in a step")]

    def begin(self, revision: int) -> "CanaryRelease":
        """Return a release of this candidate that begins."""
        return CanaryRelease(
            revision=revision,
            steps=self.steps,
            every_s=self.every_s,
            guards=self.guards,
            min_requests=self.min_requests,
        )


class CanaryRelease(CanaryPlan):
    """A canary release of one application, and how far it is. Plain data, which the state store keeps."""

    revision: Annotated[int, Field(description="the candidate")]
    step: Annotated[int, Field(description="the index of the present step")] = 0
    paused: bool = False
    outcome: Annotated[
        Literal["promoted", "returned", "aborted"] | None, Field(description="how it has ended; None: it goes on")
    ] = None
    why: Annotated[str, Field(description="why it has ended; empty: it goes on")] = ""
    measured: Annotated[
        tuple[Guard, ...] | None,
        Field(description="the guards of a step in which the baseline gets no requests, with its values before"),
    ] = None

    @property
    def goes_on(self) -> bool:
        return self.outcome is None

    @property
    def share(self) -> float:
        """The share of the requests that the candidate gets in the present step, between 0 and 1."""
        return self.steps[self.step] / 100

    @property
    def threshold(self) -> float:
        """The logarithm of the evidence at which the release returns."""
        return log(len(self.steps) * max(len(self.guards), 1) / ALPHA)

    def but(self, **facts: Any) -> Self:
        return self.model_copy(update=facts)

    def ended(self, outcome: str, why: str) -> Self:
        """Return the release after its end. If it has ended before, nothing changes."""
        return self.but(outcome=outcome, why=why, paused=False) if self.goes_on else self


def plan_release(
    steps: Sequence[float] = STEPS,
    every: str | float = EVERY,
    guards: Iterable[str] = GUARDS,
    min_requests: int = MIN_REQUESTS,
) -> CanaryPlan:
    """Return the plan of a canary release.

    Parameters:
        steps: The shares in percent, in rising order.
        every: The least duration of a step, in seconds, or such as `30s`, `5m` or `1h`.
        guards: See `Guard.parse`.
        min_requests: The least number of requests of each revision in a step.

    Raises `ConfigError` if one of them is invalid.
    """
    shares = tuple(steps)
    text = ", ".join(f"{share:g}" if isinstance(share, int | float) else repr(share) for share in shares)
    if not shares or not all(isinstance(share, int | float) and 0 < share <= 100 for share in shares):
        raise ConfigError(f"the steps {text or 'are missing, and'} should be percentages above 0 and up to 100")
    if any(one >= other for one, other in pairwise(shares)):
        raise ConfigError(f"the steps {text} should rise")
    parsed = tuple(map(Guard.parse, guards))
    if shares[0] == 100 and (relative := next((guard for guard in parsed if guard.relative), None)):
        raise ConfigError(f"the guard {relative} needs a step below 100 %, in which the baseline gets requests")
    if min_requests < 1:
        raise ConfigError(f"the minimum number of requests of a step is {min_requests}; it should be at least 1")
    return CanaryPlan(steps=shares, every_s=duration_s(every), guards=parsed, min_requests=min_requests)


def duration_s(text: str | float) -> float:
    """Return the seconds of a duration such as `30s`, `5m` or `1h`, or of a number. Raises `ConfigError`."""
    seconds: float | None
    if isinstance(text, str):
        match = _DURATION.fullmatch(text)
        number = _number(match[1]) if match else None
        seconds = number * _SECONDS[match[2]] if match and number is not None else None
    else:
        seconds = float(text)
    if seconds is None or not isfinite(seconds) or seconds <= 0:
        raise ConfigError(f"the duration {text!r} should be a time above 0, such as 30s, 5m or 1h")
    return seconds


def read_steps(text: str) -> tuple[float, ...]:
    """Read steps such as `1,5,25,50,100`. Raises `ConfigError`."""
    numbers = [_number(step.strip().removesuffix("%")) for step in text.split(",")]
    if None in numbers:
        raise ConfigError(f"the steps {text!r} should be percentages, such as 1,5,25,50,100")
    return tuple(number for number in numbers if number is not None)


@dataclass(frozen=True, slots=True)
class Decision:
    """How a release goes on, and why, as a phrase without a period."""

    action: Literal["hold", "advance", "finish", "return"]
    why: str


def decide(
    release: CanaryRelease,
    candidate: Requests,
    baseline: Requests,
    elapsed_s: float,
    *,
    failure: str | None = None,
    waits_for: str | None = None,
    paused_by: str | None = None,
) -> Decision:
    """Return how a release goes on. It may be called at any time.

    Parameters:
        candidate: The candidate's requests in the present step.
        baseline: The main revision's requests in the same step.
        elapsed_s: The seconds since the step began.
        failure: Why the candidate has failed; None: it has not.
        waits_for: What the step waits for, apart from time and requests; None: nothing.
        paused_by: Why a release that is paused cannot be resumed, as a sentence; None: it can.
    """
    if not release.goes_on:
        return Decision("hold", release.why)
    if release.paused:
        return Decision("hold", "it is paused" if paused_by is None else f"it is paused: {paused_by}")
    if failure is not None:
        return Decision("return", f"revision {release.revision} failed: {failure}")
    needed = release.min_requests
    guards = release.guards if release.measured is None else release.measured
    findings = [(guard, examine(guard, candidate, baseline, needed)) for guard in guards]
    for guard, finding in findings:
        if finding.evidence >= release.threshold:
            return Decision("return", f"the guard {guard} does not hold: {finding.text}")
    if waits_for is not None:
        return Decision("hold", f"it waits for {waits_for}")
    if elapsed_s < release.every_s:
        return Decision("hold", f"the step takes at least {_time(release.every_s)}")
    compared = {"candidate": candidate}
    if any(guard.relative for guard in guards):
        compared["baseline"] = baseline
    for whose, seen in compared.items():
        number = _sample(guards, seen)
        if number < needed:
            return Decision("hold", f"it waits for {needed:,} requests of the {whose}, which has had {number:,}")
    for guard, finding in findings:
        if not finding.is_within:
            return Decision("hold", f"it waits until the guard {guard} holds: {finding.text}")
    if release.step + 1 < len(release.steps):
        return Decision("advance", f"the guards hold at {release.steps[release.step]:g} %")
    return Decision("finish", "the guards hold in the last step")


def _sample(guards: Sequence[Guard], seen: Requests) -> int:
    """Return the number of requests that all guards can use."""
    timed = [seen.timed for guard in guards if guard.metric != "error_rate"]
    answered = [seen.requests for guard in guards if guard.metric == "error_rate"]
    return min((*timed, *answered), default=seen.requests)


def next_step(release: CanaryRelease, baseline: Requests) -> CanaryRelease:
    """Return the release in its next step. `baseline`: the main revision's requests in the present step.

    If the next step leaves the baseline no requests, the candidate is compared with those of the present step.
    """
    after = release.but(step=release.step + 1)
    if after.share < 1 or after.measured is not None:
        return after
    return after.but(measured=tuple(_measured(guard, baseline) for guard in after.guards))


def _measured(guard: Guard, baseline: Requests) -> Guard:
    """Return a guard whose limit does not depend on the baseline any more."""
    if not guard.relative:
        return guard
    if guard.metric != "error_rate":
        limit = guard.limit * _upper_quantile_s(baseline, QUANTILES[guard.metric])
        return Guard(metric=guard.metric, limit=max(limit, LEAST_S))
    # An upper bound of the baseline's rate, which is not 0 if there were no errors: the rule of three.
    # Hanley and Lippman-Hand, "If Nothing Goes Wrong, Is Everything All Right?", JAMA 249(13), 1983.
    errors = baseline.errors + 2 * sqrt(baseline.errors) + 3
    rate = guard.limit * errors / max(baseline.requests, 1)
    return Guard(metric=guard.metric, limit=min(max(rate, LEAST_RATE), 0.99))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    minutes = seconds / 60
    return f"{seconds:.4g} s" if minutes < 2 or minutes != floor(minutes) else f"{minutes:g} min"
