"""What may differ between bare uvicorn and the toolkit, and why. All else is compared, header by header."""

import re
from collections.abc import Callable, Iterable

from .client import Observation

# Between any two processes

NOW = re.compile(r"\w{3}, \d\d \w{3} 20\d\d \d\d:\d\d:\d\d GMT")
CLOCK = {"date": "tells when the answer was made", "set-cookie": "a deleted cookie expires now"}
SET = {"allow": "Starlette writes out a Python set, whose order changes from process to process"}

# Between FastAPI and the toolkit

ADDED = {"x-request-id": "every request has an id, in both directions"}

# Where a proxy stands between

ANYWHERE = {
    "date": "written by the server, whose place among an app's own fields is its own choice",
    "server": "the same",
    "connection": "speaks of one connection, so each hop writes its own",
}


def without(*names: str) -> Callable[[Observation], Observation]:
    def remove(observation: Observation) -> Observation:
        match observation:
            case dict():
                return {key: remove(value) for key, value in observation.items()}
            case list():
                return [remove(each) for each in observation if not _named(each, names)]
        return observation

    return remove


def only_the_status(observation: Observation) -> Observation:
    return observation["status"]


BY_DESIGN: dict[str, tuple[Callable[[Observation], Observation], str]] = {
    "raw_utf8_in_the_target": (
        only_the_status,
        "what is no HTTP never reaches an app: the proxy refuses it in words of its own",
    ),
    "http_1_0_streamed": (
        without("transfer-encoding"),
        "uvicorn sends chunks to HTTP/1.0 clients, which do not know them; the proxy takes the framing off",
    ),
    "expect_continue_refused": (
        without("connection"),
        "nobody can tell whether the body will still come, so the proxy closes the connection",
    ),
    "ws_fails_before_accepting": (
        without("content-type", "content-length"),
        "the replica answers for an app that failed, in uvicorn's words and with its fields in another order",
    ),
    "other_sse_step_by_step": (
        without("connection"),
        "sse-starlette writes `Connection: keep-alive`, which speaks of the connection to the proxy",
    ),
}
"""Probe → what of it is not compared where a proxy stands between, and why."""


def comparable(name: str, form: str, observation: Observation, port: int) -> Observation:
    """What a probe observed, without what may differ between bare uvicorn and a form."""
    observation = _always(observation, port)
    if form != "control":
        observation = without(*ADDED)(observation)
    if form not in ("control", "embedded"):
        if name in BY_DESIGN:
            observation = BY_DESIGN[name][0](observation)
        observation = _gathered(observation)
    return observation


def _always(observation: Observation, port: int) -> Observation:
    match observation:
        case dict():
            return {key: _always(value, port) for key, value in observation.items()}
        case [str(name), str(value)] if name in CLOCK:
            return [name, NOW.sub("a date", value)]
        case [str(name), str(value)] if name in SET:
            return [name, sorted(value.split(", "))]
        case list():
            return [_always(each, port) for each in observation]
        case str():
            return observation.replace(f":{port}", ":PORT")  # each server listens on a port of its own
    return observation


def _gathered(observation: Observation) -> Observation:
    """The fields whose place does not matter, sorted, behind those whose place does."""
    match observation:
        case dict():
            return {key: _gathered(value) for key, value in observation.items()}
        case list():
            moved = sorted(each for each in observation if _named(each, ANYWHERE))
            return [_gathered(each) for each in observation if not _named(each, ANYWHERE)] + moved
    return observation


def _named(each: Observation, names: Iterable[str]) -> bool:
    match each:
        case [str(name), *_]:
            return name in names
    return False
