"""The controller dies, or is stopped: what runs goes on, and what was under way is completed."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.chaos.client import Done, latency_ms, open_loop
from benchmarks.chaos.ledger import executed_twice
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import GONE_S, RESTORED_S, Death, capacity_of, counted, killed, lost, ratio, unhurt
from benchmarks.chaos.system import Look, System, Watch, seconds_until
from benchmarks.chaos.traffic import PROPER, Traffic, ends, traffic
from benchmarks.chaos.updates import BAD, CALM_S, GOOD, WANTED, Step, Update, make, replaced, taken, versions

LATER = "later"
"""The application that is deployed afterwards."""

REACHED_S = 60.0
"""How long one waits for the point at which the controller is struck."""

BACK_S = 10.0


@dataclass(frozen=True, slots=True)
class Blow:
    """What becomes of the controller in an update, and when."""

    when: Callable[[Look], bool]
    stopped_s: float = 0.0
    """For so long; 0: it is killed."""
    with_a_replica: bool = False


def a_new_one_starts(look: Look) -> bool:
    return look.replicas("starting", new=True) > 0


def a_new_one_serves(look: Look) -> bool:
    return look.replicas("running", new=True) > 0 and look.replicas("running", new=False) > 0


def an_old_one_drains(look: Look) -> bool:
    return look.replicas("draining", new=False) > 0


def one_has_failed(look: Look) -> bool:
    return any(BAD[0].fails in (group["last_error"] or "") for group in look.status["deployments"])


def it_is_taken_back(look: Look) -> bool:
    return bool(look.status["status"] == "rolled_back")


@dataclass(frozen=True, slots=True)
class Struck:
    """What was done, and what came of it."""

    step: Step
    death: Death | None
    """Of a replica, where one was killed."""
    needed: int
    """How many replicas the update had to start."""
    began: float
    """When the controller was killed, or woken."""
    back: float
    """When a controller answered."""
    same: bool
    """Whether that is the process that was struck."""


async def the_controller_is_struck(system: System, short: bool) -> list[Row]:
    timeline: Sequence[tuple[Update, Blow]] = (
        (
            (GOOD[0], Blow(a_new_one_starts, with_a_replica=True)),
            (GOOD[1], Blow(an_old_one_drains, stopped_s=6)),
        )
        if short
        else (
            (GOOD[0], Blow(a_new_one_starts)),
            (GOOD[1], Blow(a_new_one_serves, with_a_replica=True)),
            (GOOD[2], Blow(an_old_one_drains, stopped_s=40)),
            (BAD[0], Blow(one_has_failed)),
            (BAD[1], Blow(it_is_taken_back)),
            (BAD[2], Blow(a_new_one_starts)),
        )
    )
    async with versions(system) as app:
        before = await asyncio.to_thread(system.processes)
        async with Watch(app) as watch, traffic(app, short) as found:
            struck = [await _struck(app, watch, update, blow) for update, blow in timeline]
            await asyncio.sleep(CALM_S)
        after = await asyncio.to_thread(system.processes)
        forgotten = await seconds_until(lambda: not _forgotten(app, watch), GONE_S)
        reached = await _reached_later(system)
        written = app.ledger.of(done.id for done in found.posts)
    steps = [each.step for each in struck]
    stopped = [each for each, (_, blow) in zip(struck, timeline, strict=True) if blow.stopped_s]
    return [
        lost("GET", found.gets),
        *_only_hurt(found, [each.death for each in struck if each.death is not None]),
        Row("POST that was executed twice", executed_twice(written.values()), 0),
        *taken(steps),
        *replaced(found, steps),
        Row(
            "replicas that an update started beyond those that it had to",
            max(_started(each, watch.looks) - each.needed for each in struck if not each.step.update.fails),
            0,
        ),
        Row("until there was no replica that no controller knows", forgotten, GONE_S, "s"),
        Row("replicas of another application, and proxies, that are not those of before", _changed(before, after), 0),
        Row(
            "until a controller answered again, the slowest",
            max(each.back - each.began for each in struck),
            BACK_S,
            "s",
            clocked=True,
        ),
        Row(
            "of those that were stopped, controllers that went on when they were woken",
            sum(each.same for each in stopped),
            len(stopped),
            at_least=True,
            saw="Ray starts no other while the process is there",
        ),
        lost("GET of an application that was deployed later, each over a connection of its own", reached),
    ]


async def _struck(app: System, watch: Watch, update: Update, blow: Blow) -> Struck:
    controller = await asyncio.to_thread(app.controller)
    revision = (await asyncio.to_thread(app.status))["revision"]
    async with asyncio.TaskGroup() as group:
        making = group.create_task(make(app, watch, update))
        reached = await watch.until(lambda look: look.status["revision"] > revision and blow.when(look), REACHED_S)
        assert math.isfinite(reached), f"{update.version}: it never came about that {blow.when.__name__}"
        death = None
        if blow.with_a_replica:
            death = group.create_task(killed(max((await asyncio.to_thread(app.replicas, "app")).values())))
            await asyncio.sleep(0)
        if blow.stopped_s:
            os.kill(controller, signal.SIGSTOP)
            try:
                await asyncio.sleep(blow.stopped_s)
            finally:
                os.kill(controller, signal.SIGCONT)
        else:
            os.kill(controller, signal.SIGKILL)
        began = time.monotonic()
        await asyncio.to_thread(app.status)
        back = time.monotonic()
    same = await asyncio.to_thread(app.controller) == controller
    needed = 2 * WANTED + blow.with_a_replica
    return Struck(making.result(), None if death is None else death.result(), needed, began, back, same)


def _only_hurt(found: Traffic, deaths: Sequence[Death]) -> list[Row]:
    """Nothing is lost but what the replica had that was killed."""
    cut = [dialogue for dialogue in found.dialogues if dialogue.closed not in PROPER]
    return [
        Row(
            f"{what} that failed and were not under way when a replica died",
            len(unhurt(kind, deaths)),
            0,
            saw=counted(kind),
        )
        for what, kind in (
            ("POST", found.posts),
            ("streams", found.streams),
            ("messages over WebSockets", found.messages),
        )
    ] + [
        Row(
            "WebSockets that were cut and not open when a replica died",
            sum(not any(death.meets(each.opened, each.ended) for death in deaths) for each in cut),
            0,
            saw=ends(found),
        )
    ]


def _started(struck: Struck, looks: Sequence[Look]) -> int:
    """How many replicas of its own version an update has ever started.

    One that was to start as the controller died may never have come to be: the next controller does not know it then.
    """
    seen = struck.step.within(looks)
    revisions = {group["name"]: group["revision"] for group in seen[-1].status["deployments"]}
    return len(
        {
            replica["id"]
            for look in seen
            for group in look.status["deployments"]
            for replica in group["replicas"]
            if replica["revision"] == revisions[group["name"]]
            and (replica["phase"] != "starting" or look.at > struck.back)
        }
    )


def _forgotten(app: System, watch: Watch) -> list[str]:
    """Replicas that were there once, that live, and of which nothing is told any more."""
    seen = {id for look in watch.looks for id in _ids(look)}
    return app.living(seen - _ids(app.look()))


def _ids(look: Look) -> set[str]:
    return {replica["id"] for group in look.status["deployments"] for replica in group["replicas"]}


def _changed(before: dict[str, int], after: dict[str, int]) -> int:
    return len(before.items() ^ after.items())


async def _reached_later(system: System) -> list[Done]:
    """GET of an application that is new, over so many connections that no proxy is left out."""
    async with system.deployed(LATER, "one") as later:
        found = []
        for _ in range(40):
            async with later.client() as client:
                found.append(await client.get())
        return found


async def the_controller_dies(system: System, short: bool) -> list[Row]:
    kills, every_s = (1, 5.0) if short else (3, 20.0)
    back: list[float] = []

    async def kill() -> None:
        for _ in range(kills):
            began = time.monotonic()
            os.kill(await asyncio.to_thread(system.controller), signal.SIGKILL)
            back.append(await seconds_until(system.is_whole, 30))
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))

    before = await asyncio.to_thread(system.processes)
    async with system.client() as client:
        rate = 0.3 * await capacity_of(client, short)
        usual = await open_loop(client.get, rate, 2 if short else 20)
        found, _ = await asyncio.gather(open_loop(client.get, rate, kills * every_s), kill())
    after = await asyncio.to_thread(system.processes)
    return [
        lost("GET", found),
        Row("GET: p99, of the one before", ratio(latency_ms(found, 99), latency_ms(usual, 99)), 2, "×", clocked=True),
        Row("replicas and proxies that are not those of before", _changed(before, after), 0),
        Row("until all was known to be well again, the slowest", max(back), RESTORED_S, "s", clocked=True),
    ]
