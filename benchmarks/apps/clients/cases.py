"""Runs the cases of one client against a server, one after another, and prints which of them passed.

A module of cases ends with `run(CASES)`. It is started as `python MODULE URL RELAY`: `RELAY` is the address of a relay
to the same server that cuts each connection after some bytes.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.request import urlopen

PATIENCE_S = 30.0
STOP_S = 2.0
"""Within this time after a client has gone, its model must have stopped."""

Case = Callable[[str, str], Awaitable[None]]


class NotServed(Exception):
    """The application does not have the routes of this case."""


def run(cases: Sequence[Case], patience_s: float = PATIENCE_S) -> None:
    """Run the cases and print their verdicts as one JSON document; the name of a function is the name of its case.

    Parameters:
        cases: The cases.
        patience_s: Maximum time of a case in seconds.
    """
    logging.disable()
    print(json.dumps(asyncio.run(_verdicts(cases, patience_s, *sys.argv[1:]))))


async def _verdicts(cases: Sequence[Case], patience_s: float, url: str, relay: str) -> dict[str, str]:
    return {case.__name__.replace("_", " "): await _verdict(case, patience_s, url, relay) for case in cases}


async def _verdict(case: Case, patience_s: float, url: str, relay: str) -> str:
    try:
        async with asyncio.timeout(patience_s):
            await case(url, relay)
    except NotServed:
        return "not served"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "passed"


async def has_route(url: str, path: str) -> None:
    """Raise `NotServed` if the application does not describe this route."""
    if path not in (await _get(f"{url}/openapi.json"))["paths"]:
        raise NotServed


async def until_running(url: str, word: str) -> None:
    """Wait until a response with this word in its prompt runs."""
    await _until(url, word, True)


async def until_stopped(url: str, word: str) -> None:
    """Raise `TimeoutError` if a response with this word in its prompt still runs after `STOP_S`."""
    async with asyncio.timeout(STOP_S):
        await _until(url, word, False)


async def _until(url: str, word: str, runs: bool) -> None:
    while bool(await _get(f"{url}/running?word={word}")) != runs:  # noqa: ASYNC110 - another process has to be asked
        await asyncio.sleep(0.05)


async def refusals(url: str, name: str) -> int:
    """Return how often the model has refused the request with this name."""
    return int(await _get(f"{url}/refused?name={name}"))


async def received(url: str, model: str) -> int:
    """Return how many requests a model has received."""
    return int(await _get(f"{url}/received?by={model}"))


async def _get(address: str) -> Any:
    """Return a document of the application. It needs no package, so an environment has its client only."""

    def read() -> Any:
        with urlopen(address, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    return await asyncio.to_thread(read)
