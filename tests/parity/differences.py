"""What may differ between bare uvicorn and the toolkit, and why. All else is compared, header by header."""

import re

from .client import Observation

# Header → why it may be there: left out of both observations, also where an app shows what it got.
ADDED = {"x-request-id": "every request that came through a proxy has an id, in both directions"}

# Headers that tell the present time, which differs from one request to the next.
CLOCK = {"date", "set-cookie"}
NOW = re.compile(r"\w{3}, \d\d \w{3} 20\d\d \d\d:\d\d:\d\d GMT")

# Header → why the order within its value may differ.
SET = {"allow": "Starlette writes out a Python set, whose order changes from process to process"}


def comparable(observation: Observation, port: int) -> Observation:
    """The observation without what may differ."""
    match observation:
        case dict():
            return {key: comparable(value, port) for key, value in observation.items()}
        case [str(name), str(value)] if name in CLOCK:
            return [name, NOW.sub("a date", value)]
        case [str(name), str(value)] if name in SET:
            return [name, sorted(value.split(", "))]
        case list():
            return [comparable(each, port) for each in observation if not _added(each)]
        case str():
            return observation.replace(f":{port}", ":PORT")  # each server listens on a port of its own
    return observation


def _added(each: Observation) -> bool:
    match each:
        case [str(name), *_]:
            return name in ADDED
    return False
