"""Decides which fault a request gets on purpose: the one that its headers name, or one of the option, by chance."""

import re
from collections.abc import Callable
from typing import NamedTuple

from app_toolkit.config.models import Faults
from app_toolkit.errors import BadRequest

DELAY_FIELD = b"x-fault-delay-ms"
ABORT_FIELD = b"x-fault-abort-status"
"""The field names in lowercase."""

LONGEST_MS = 86_400_000
DELAY_GRAMMAR = re.compile(rb"\d{1,8}")
STATUS_GRAMMAR = re.compile(rb"[45]\d\d")


class Fault(NamedTuple):
    """A request is delayed first. Then it is aborted, or goes on."""

    delay_s: float = 0.0
    status: int | None = None
    """The status of the response; None: the request goes on."""


def fault_of(faults: Faults, delay: bytes | None, abort: bytes | None, draw: Callable[[], float]) -> Fault:
    """Return the fault of one request.

    Parameters:
        faults: The option of the ingress.
        delay: The value of `X-Fault-Delay-Ms`, which counts if the option allows it. None: the request has none.
        abort: The same for `X-Fault-Abort-Status`.
        draw: Returns a random number, at least 0 and below 1. It is called for the delay first, then for the abort.

    Raises:
        BadRequest: A header that counts has an invalid value.
    """
    delayed = 100 * draw() < faults.delay_percent
    aborted = 100 * draw() < faults.abort_percent
    delay_s = faults.delay_s or 0.0 if delayed else 0.0
    status = faults.abort_status if aborted else None
    if faults.headers and delay is not None:
        delay_s = _delay_ms(delay.strip(b" \t")) / 1_000
    if faults.headers and abort is not None:
        status = _status(abort.strip(b" \t"))
    return Fault(delay_s, status)


def _delay_ms(value: bytes) -> int:
    if DELAY_GRAMMAR.fullmatch(value) and int(value) <= LONGEST_MS:
        return int(value)
    raise BadRequest(f"X-Fault-Delay-Ms is {_shown(value)}, it must be a number of milliseconds up to {LONGEST_MS:,}")


def _status(value: bytes) -> int:
    if STATUS_GRAMMAR.fullmatch(value):
        return int(value)
    raise BadRequest(f"X-Fault-Abort-Status is {_shown(value)}, it must be a status from 400 to 599")


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("latin-1"))
