"""A canary release while processes are killed in each of its steps: no idempotent request is lost."""

import asyncio
from collections.abc import Mapping
from typing import Any

from benchmarks.chaos.client import RESET, TRUNCATED, Done, open_loop
from benchmarks.chaos.ledger import executed_twice
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import Death, capacity_of, counted, killed, lost, unhurt
from benchmarks.chaos.system import System, seconds_until
from benchmarks.chaos.traffic import POSTS, SHORT_RATE
from benchmarks.chaos.updates import CALM_S, FIRST

RELEASED = "released"
"""The application of the release."""
CANDIDATE = 2
"""The number of the revision that is released."""

STEPS = (10, 50, 100)
EVERY_S = 6.0
SETTLES_S = 1.0
"""Seconds from the beginning of a step to the first kill in it."""
TRIES = 3
"""How often a client sends a GET whose connection is lost."""
REACHED_S = 90.0
"""How long to wait for each step, and for the end. A step begins again when the controller is killed in it."""


async def a_canary_release_is_struck(system: System, short: bool) -> list[Row]:
    deaths: list[Death] = []
    steps = STEPS[-2:] if short else STEPS
    async with system.deployed(RELEASED, FIRST) as app:
        said = await system.deploy(RELEASED, "two", "--traffic", "0", "--wait")
        assert said.code == 0, said.output
        async with app.client() as client, app.client() as writer:
            rate = min(await capacity_of(client, short) / 5, 100 if not short else SHORT_RATE)
            over = asyncio.Event()

            async def get(due: float) -> Done:
                """Send a GET, and again on a new connection if its connection was lost, which RFC 9110 allows."""
                done = await client.get(due)
                for _ in range(TRIES - 1):
                    if done.outcome in (RESET, TRUNCATED):
                        async with app.client() as other:
                            done = await other.get(due)
                return done

            async with asyncio.TaskGroup() as group:
                gets = group.create_task(open_loop(get, rate, float("inf"), over))
                posts = group.create_task(open_loop(writer.post, POSTS, float("inf"), over))
                try:
                    options = ("--steps", ",".join(map(str, steps)), "--every", f"{EVERY_S:g}s")
                    guards = ("--guard", "error_rate<20%", "--guard", "p95<5s", "--min-requests", "20")
                    said = await system.command("rollout", RELEASED, *options, *guards)
                    assert said.code == 0, said.output
                    for number in range(1, len(steps) + 1):
                        await seconds_until(lambda number=number: _release(app)["step"] >= number, REACHED_S)  # type: ignore[misc]
                        deaths += await _strike(app)
                    await seconds_until(lambda: _release(app)["outcome"] is not None, REACHED_S)
                    release = await asyncio.to_thread(_release, app)
                    promoted_s = await seconds_until(lambda: _is_alone(app), REACHED_S)
                    await asyncio.sleep(CALM_S)
                finally:
                    over.set()
        written = app.ledger.of(done.id for done in posts.result())
    newest = [done.version for done in gets.result() if done.sent > deaths[-1].ended + promoted_s]
    return [
        lost("GET", gets.result()),
        Row("processes that were killed", len(deaths), 4 * len(steps), at_least=True),
        Row(
            "the release passed all steps and was promoted",
            release["outcome"] == "promoted",
            1,
            at_least=True,
            saw=f"{release['outcome']} in step {release['step']}: {release['why']}",
        ),
        Row(
            "POST: failed although not in flight when a process was killed",
            len(unhurt(posts.result(), deaths)),
            0,
            saw=counted(posts.result()),
        ),
        Row("POST: executed more than once", executed_twice(written.values()), 0),
        Row("time from the end of the release until only the new revision ran", promoted_s, REACHED_S, "s"),
        Row("responses that mix two revisions", sum(_is_mixed(done.version) for done in gets.result()), 0),
        Row("responses of the old revision after that", sum("one" in version for version in newest), 0),
    ]


async def _strike(app: System) -> list[Death]:
    """Kill a replica of each revision, one of two proxies, and the controller."""
    await asyncio.sleep(SETTLES_S)
    deaths = []
    for revision in (CANDIDATE, None):
        deaths.append(await killed(min((await asyncio.to_thread(app.replicas, "app", revision)).values())))
    deaths.append(await killed(min((await asyncio.to_thread(app.proxies)).values())))
    deaths.append(await killed(await asyncio.to_thread(app.controller)))
    await seconds_until(lambda: len(app.proxies()) == 2, REACHED_S)
    return deaths


def _release(app: System) -> Mapping[str, Any]:
    found: Mapping[str, Any] = app.status()["canary"]
    return found


def _is_alone(app: System) -> bool:
    """Whether the main revision has taken over all requests."""
    status = app.status()
    return status["status"] == "healthy" and all(each["is_removed"] for each in status["traffic"][1:])


def _is_mixed(version: str) -> bool:
    return len(set(version.split("/"))) > 1
