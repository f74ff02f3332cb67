"""The controller is killed or stopped: running replicas continue to serve, and updates in progress complete."""

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
from benchmarks.chaos.updates import BAD, CALM_S, GOOD, REPLICAS, Step, Update, make, replaced, taken, versions

LATER = "later"
"""The application that is deployed after the updates."""

REACHED_S = 60.0
"""How long to wait for the point of an update at which the controller is killed or stopped."""

BACK_S = 10.0
"""Maximum time in seconds until a controller responds again."""


@dataclass(frozen=True, slots=True)
class Blow:
    """What happens to the controller during an update, and when."""

    when: Callable[[Look], bool]
    stopped_s: float = 0.0
    """How long SIGSTOP stops the controller. 0: SIGKILL ends it."""
    with_a_replica: bool = False


def a_new_one_starts(look: Look) -> bool:
    return look.replicas("starting", new=True) > 0


def a_new_one_serves(look: Look) -> bool:
    return look.replicas("running", new=True) > 0 and look.replicas("running", new=False) > 0


def an_old_one_drains(look: Look) -> bool:
    return look.replicas("draining", new=False) > 0


def one_has_failed(look: Look) -> bool:
    return any(BAD[0].fails in (replica_set["last_error"] or "") for replica_set in look.status["deployments"])


def it_is_taken_back(look: Look) -> bool:
    return bool(look.status["status"] == "rolled_back")


@dataclass(frozen=True, slots=True)
class Struck:
    """An update during which the controller was killed or stopped."""

    step: Step
    death: Death | None
    """When a replica was killed, too. None: no replica was killed."""
    needed: int
    """The number of replicas that the update had to start."""
    began: float
    """When the controller was killed, or continued with SIGCONT."""
    back: float
    """When a controller responded again."""
    same: bool
    """Whether the same controller process responded."""


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
        Row("POST: executed more than once", executed_twice(written.values()), 0),
        *taken(steps),
        *replaced(found, steps),
        Row(
            "maximum number of unneeded replicas that an update started",
            max(_started(each, watch.looks) - each.needed for each in struck if not each.step.update.fails),
            0,
        ),
        Row("time until no replica ran that the controller did not know", forgotten, GONE_S, "s"),
        Row(
            "processes of proxies and of another application's replicas that started or ended",
            _changed(before, after),
            0,
        ),
        Row(
            "maximum time until a controller responded again",
            max(each.back - each.began for each in struck),
            BACK_S,
            "s",
            clocked=True,
        ),
        Row(
            "stopped controllers that continued after SIGCONT",
            sum(each.same for each in stopped),
            len(stopped),
            at_least=True,
            saw="an engine starts no other controller while the process exists",
        ),
        lost("GET of an application deployed afterwards, each over a new connection", reached),
    ]


async def _struck(app: System, watch: Watch, update: Update, blow: Blow) -> Struck:
    controller = await asyncio.to_thread(app.controller)
    revision = (await asyncio.to_thread(app.status))["revision"]
    async with asyncio.TaskGroup() as group:
        making = group.create_task(make(app, watch, update))
        reached = await watch.until(lambda look: look.status["revision"] > revision and blow.when(look), REACHED_S)
        assert math.isfinite(reached), f"{update.version}: the condition {blow.when.__name__} was never met"
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
    needed = 2 * REPLICAS + blow.with_a_replica
    return Struck(making.result(), None if death is None else death.result(), needed, began, back, same)


def _only_hurt(found: Traffic, deaths: Sequence[Death]) -> list[Row]:
    """Check that only requests and WebSockets of killed replicas failed."""
    cut = [dialogue for dialogue in found.dialogues if dialogue.closed not in PROPER]
    return [
        Row(
            f"{what}: failed although not in flight when a replica was killed",
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
            "WebSockets: closed abnormally although not open when a replica was killed",
            sum(not any(death.meets(each.opened, each.ended) for death in deaths) for each in cut),
            0,
            saw=ends(found),
        )
    ]


def _started(struck: Struck, looks: Sequence[Look]) -> int:
    """Return how many replicas of its own version an update has started.

    A replica that was starting when the controller was killed may never have been created. It counts only if the next
    controller knows it.
    """
    seen = struck.step.within(looks)
    template_hashes = {
        replica_set["name"]: replica_set["template_hash"] for replica_set in seen[-1].status["deployments"]
    }
    return len(
        {
            replica["id"]
            for look in seen
            for replica_set in look.status["deployments"]
            for replica in replica_set["replicas"]
            if replica["template_hash"] == template_hashes[replica_set["name"]]
            and (replica["phase"] != "starting" or look.at > struck.back)
        }
    )


def _forgotten(app: System, watch: Watch) -> list[str]:
    """Return the replicas that are still alive but no longer in the status."""
    seen = {id for look in watch.looks for id in _ids(look)}
    return app.living(seen - _ids(app.look()))


def _ids(look: Look) -> set[str]:
    return {replica["id"] for replica_set in look.status["deployments"] for replica in replica_set["replicas"]}


def _changed(before: dict[str, int], after: dict[str, int]) -> int:
    return len(before.items() ^ after.items())


async def _reached_later(system: System) -> list[Done]:
    """Send GET requests to a new application, over so many connections that every proxy receives some."""
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
        Row(
            "GET: p99 latency relative to the baseline",
            ratio(latency_ms(found, 99), latency_ms(usual, 99)),
            2,
            "×",
            clocked=True,
        ),
        Row("replica and proxy processes that started or ended", _changed(before, after), 0),
        Row("maximum time until the status was healthy again", max(back), RESTORED_S, "s", clocked=True),
    ]
