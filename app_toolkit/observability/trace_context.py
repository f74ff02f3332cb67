"""Reads and writes the two fields of W3C Trace Context, to propagate the trace of a request."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from app_toolkit.types import Header

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
"""Both field names are in lowercase."""

LONGEST_STATE = 512
"""The maximum number of characters of `tracestate` that are propagated, as the standard requires. A longer one is left
out."""

MOST_MEMBERS = 32
"""The maximum number of members of a `tracestate`, as in the standard."""

_IDS = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
PARENT = re.compile(rb"00" + _IDS + rb"|(?!00|ff)[0-9a-f]{2}" + _IDS + rb"(?:-[!-~]{0,72})?")
"""Later versions may add text after the flags. It is propagated, up to 128 characters in all."""

_FLAGS = slice(53, 55)
"""The place of the flags, which is the same in all versions."""

MEMBER = re.compile(rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


def trace_of(fields: Iterable[Header]) -> str | None:
    """Return the trace in the format that calls carry: `traceparent`, then a space and `tracestate` if there is one.

    Returns None if `traceparent` is missing, malformed or repeated. A malformed `tracestate` is left out.
    """
    parents, states = [], []
    for name, value in fields:
        if name == TRACEPARENT:
            parents.append(value.strip())
        elif name == TRACESTATE:
            states.append(value)
    if len(parents) != 1 or PARENT.fullmatch(parents[0]) is None:
        return None
    members = [member.strip(b" \t") for member in b",".join(states).split(b",")]
    members = [member for member in members if member]
    state = b",".join(members)
    well = 0 < len(members) <= MOST_MEMBERS and len(state) <= LONGEST_STATE and all(map(MEMBER.fullmatch, members))
    return (parents[0] + b" " + state if well else parents[0]).decode("ascii")


class Trace(NamedTuple):
    """The place of a request or a call in its trace. Spans are named by their IDs; 0: there is none."""

    trace_id: int
    parent: int
    """The span of the client, or of the code that made the call."""
    span: int
    """The span of the request or the call."""
    attempt: int
    """The span of its last attempt, in which the replica runs it. All attempts forward this one, because nobody knows
    before which one is the last."""
    is_sampled: bool
    state: str = ""
    """The value of `tracestate`."""

    @property
    def forwarded(self) -> str:
        """The trace that the replica gets, in the format of `trace_of`."""
        return formatted(self.trace_id, self.attempt, self.is_sampled, self.state)


def formatted(trace_id: int, span: int, is_sampled: bool, state: str = "") -> str:
    """Return a trace in the format of `trace_of`."""
    parent = f"00-{trace_id:032x}-{span:016x}-{int(is_sampled):02x}"
    return f"{parent} {state}" if state else parent


def is_sampled(trace: str) -> bool:
    """Return whether a trace in the format of `trace_of` is sampled."""
    return bool(int(trace[_FLAGS], 16) & 1)


def parsed(trace: str) -> tuple[int, int, bool, str]:
    """Return the trace ID, the span, whether it is sampled, and the state of a trace in the format of `trace_of`."""
    parent, _, state = trace.partition(" ")
    _, trace_id, span, *_ = parent.split("-", 3)
    return int(trace_id, 16), int(span, 16), is_sampled(trace), state
