"""The filter that delays and aborts requests on purpose, as the option `faults` of their ingress says."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from app_toolkit.errors import FaultInjected
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters.fault_choice import ABORT_FIELD, DELAY_FIELD, fault_of
from app_toolkit.observability.metrics import DEPLOYMENT, Sample, declare

FAULTS = declare(
    "app_toolkit_faults_injected_total",
    "counter",
    "Faults that requests and calls got on purpose, by the option `faults`: `delay` or `abort`.",
    (*DEPLOYMENT, "kind"),
    "all",
)


class Delay(NamedTuple):
    """A request that is delayed."""

    until: float
    abort: asyncio.TimerHandle | None
    """Aborts the request afterwards. None: the request goes on."""


class FaultInjection:
    """Decides once for each request, before its first attempt. A copy for a mirror has no faults.

    `draw`: returns a random number, at least 0 and below 1.
    """

    option = "faults"

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        #: The faults by ingress and kind.
        self._counts: Counter[tuple[str, str]] = Counter()

    def request(self, exchange: Exchange) -> None:
        faults = exchange.dispatcher.router.policy.faults
        assert faults is not None, "the ingress has the option"
        delays, aborts = exchange.request.values(DELAY_FIELD), exchange.request.values(ABORT_FIELD)
        fault = fault_of(faults, delays[0] if delays else None, aborts[0] if aborts else None, self._draw)
        if fault.delay_s:
            self._count(exchange, "delay")
            abort = None
            if fault.status is not None:
                loop = asyncio.get_running_loop()
                abort = loop.call_later(fault.delay_s, self._abort, exchange, fault.status)
            exchange.marks[self] = Delay(exchange.plane.clock() + fault.delay_s, abort)
        elif fault.status is not None:
            raise self._aborted(exchange, fault.status)

    def waits(self, exchange: Exchange) -> float:
        delay: Delay | None = exchange.marks.get(self)
        if delay is None:
            return 0.0
        return max(0.0, delay.until - exchange.plane.clock()) if delay.abort is None else math.inf

    def ended(self, exchange: Exchange, status: int, outcome: str) -> None:
        delay: Delay | None = exchange.marks.get(self)
        if delay is not None and delay.abort is not None:
            delay.abort.cancel()

    def samples(self) -> Iterator[Sample]:
        for labels, count in list(self._counts.items()):
            yield Sample(FAULTS, labels, [count])

    def _abort(self, exchange: Exchange, status: int) -> None:
        exchange.fail(self._aborted(exchange, status))

    def _aborted(self, exchange: Exchange, status: int) -> FaultInjected:
        self._count(exchange, "abort")
        return FaultInjected(f"the option faults of {exchange.ingress_name} has aborted this request", status)

    def _count(self, exchange: Exchange, kind: str) -> None:
        self._counts[exchange.ingress_name, kind] += 1
