"""Updates under traffic: deploy working and failing versions in sequence, and check the responses meanwhile."""

import asyncio
import math
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import pairwise

import psutil

from app_toolkit import DeploymentConfig
from benchmarks.chaos.client import Done
from benchmarks.chaos.report import Row
from benchmarks.chaos.system import Look, Said, System, Watch, seconds_until
from benchmarks.chaos.traffic import PROPER, Traffic, nothing_lost, traffic

VERSIONS = "versions"
"""The application that is updated. It has two deployments with `REPLICAS` replicas each."""
REPLICAS = 2
FIRST = "one"

TAKEN_BACK_S = 60.0
"""How long to wait until no replica of a failing version receives requests."""

LATE_S = 2.0
"""How long after the scale command a stopping replica may still receive requests."""

DRAIN_S = DeploymentConfig.model_fields["graceful_shutdown_timeout_s"].default

CALM_S = 2.0
"""How long the traffic continues after the last update."""


@dataclass(frozen=True, slots=True)
class Update:
    version: str
    fails: str = ""
    """The error that `deploy --wait` must report for this version. Empty: the version works."""


GOOD = (Update("two"), Update("three"), Update("four"))
BAD = (
    Update("raises", "FileNotFoundError: there are no weights of this version"),
    Update("sickens", "RuntimeError: I have a cold"),
    Update("hangs", "it was not ready after 4 s"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """An update that was deployed."""

    update: Update
    said: Said
    settled: float
    """From then on, no response may come from the replaced or failed version: `deploy --wait` ended, or the rollback
    completed."""

    @property
    def is_right(self) -> bool:
        """Whether the command ended with the expected status and output."""
        if not self.update.fails:
            return self.said.code == 0
        return self.said.code == 2 and self.update.fails in " ".join(self.said.output.split())

    def within(self, looks: Iterable[Look]) -> list[Look]:
        """Return the snapshots that were taken during the update."""
        return [look for look in looks if self.said.began <= look.at <= self.settled]


def versions(system: System, *options: str) -> AbstractAsyncContextManager[System]:
    """Deploy the first version of the application with these options, and delete it at the end of the block."""
    return system.deployed(VERSIONS, FIRST, *options)


async def make(system: System, watch: Watch, update: Update) -> Step:
    """Deploy a version, and wait until it runs or the rollback completed."""
    said = await system.deploy(VERSIONS, update.version, "--wait")
    return Step(update, said, await watch.until(_is_taken_back, TAKEN_BACK_S) if update.fails else said.ended)


def _is_taken_back(look: Look) -> bool:
    """Whether no replica of the failed version receives requests. A recovering replica could be of that version."""
    return look.status["status"] == "rolled_back" and all(
        replica_set["status"] == "healthy" and "recovering" not in replica_set["counts"]
        for replica_set in look.status["deployments"]
    )


async def updates(system: System, short: bool) -> list[Row]:
    timeline = GOOD[:1] if short else (*GOOD, *BAD)
    async with versions(system) as app:
        async with Watch(app) as watch, traffic(app, short) as found:
            steps = [await make(app, watch, update) for update in timeline]
            await asyncio.sleep(CALM_S)
        return [
            *nothing_lost(found, app.ledger),
            *taken(steps),
            *replaced(found, steps),
            *paced(steps, watch.looks),
        ]


def taken(steps: Sequence[Step]) -> Iterator[Row]:
    """Check what `deploy --wait` reported."""
    for kind, of_kind in (
        (
            "successful updates that `deploy --wait` reported as complete",
            [step for step in steps if not step.update.fails],
        ),
        (
            "failing updates that `deploy --wait` reported as rolled back, with the reason",
            [step for step in steps if step.update.fails],
        ),
    ):
        if of_kind:
            wrong = [step.update.version for step in of_kind if not step.is_right]
            right = len(of_kind) - len(wrong)
            yield Row(kind, right, len(of_kind), at_least=True, saw=f"not {', '.join(wrong)}" if wrong else "")


def replaced(found: Traffic, steps: Sequence[Step]) -> Iterator[Row]:
    """Check which versions responded, and when."""
    gone = _gone(steps)
    requests = [(done.version, done.sent) for done in (*found.gets, *found.posts, *found.streams)]
    # A WebSocket that was opened before the update may stay open until its replica stops.
    said = [(message.version, dialogue.opened) for dialogue in found.dialogues for message in dialogue.messages]
    yield Row(
        "responses from a version after it was replaced or rolled back",
        sum(_is_of(gone, version, since) for version, since in (*requests, *said)),
        0,
        saw=f"versions that responded: {', '.join(sorted({version for version, _ in (*requests, *said) if version}))}",
    )
    yield has_left(found)
    silence = max(_silences(found.gets, steps), default=0.0)
    yield Row("longest time without a response from the working version during a failing update", silence, 5, "s")


def has_left(found: Traffic) -> Row:
    """Check that replicas with open WebSockets were stopped, so that the other rows about WebSockets are meaningful."""
    left = sum(dialogue.closed in PROPER[1:] for dialogue in found.dialogues)
    return Row("WebSockets that the server closed with 1001 or 1012", left, 1, at_least=True)


def paced(steps: Sequence[Step], looks: Sequence[Look]) -> Iterator[Row]:
    """Check the replicas and durations of updates. They apply only if no process is killed."""
    good = [look for step in steps if not step.update.fails for look in step.within(looks)]
    yield Row(
        "minimum number of running replicas of a deployment during successful updates",
        _fewest(good),
        REPLICAS,
        at_least=True,
    )
    slowest = max((step.said.ended - step.said.began for step in steps if step.update.fails), default=0.0)
    yield Row("maximum time until the rollback of a failing update was reported", slowest, 30, "s", clocked=True)


def _gone(steps: Iterable[Step]) -> dict[str, float]:
    """Return the time by version after which it may not respond."""
    gone: dict[str, float] = {}
    good = FIRST
    for step in steps:
        if step.update.fails:
            gone[step.update.version] = step.settled
        else:
            gone[good] = step.settled
            good = step.update.version
    return gone


def _is_of(gone: Mapping[str, float], version: str, since: float) -> bool:
    """Whether the response to a request of this time contains a part of a replaced or rolled-back version."""
    return any(since > gone.get(part, math.inf) for part in version.split("/"))


def _fewest(looks: Iterable[Look]) -> int:
    """Return the lowest count of any deployment at any time. A recovering replica also serves requests."""
    return min(
        sum(replica["phase"] in ("running", "recovering") for replica in replica_set["replicas"])
        for look in looks
        for replica_set in look.status["deployments"]
    )


def _silences(gets: Sequence[Done], steps: Iterable[Step]) -> Iterator[float]:
    """Yield the longest silence of the working version's model in each failing update; the model is what fails."""
    good = FIRST
    for step in steps:
        if not step.update.fails:
            good = step.update.version
            continue
        began, ended = step.said.began, step.settled
        heard = sorted(done.answered for done in gets if done.version.endswith(f"/{good}"))
        times = [began, *(at for at in heard if began < at < ended), ended]
        yield max(later - at for at, later in pairwise(times))


async def scale_down(system: System, short: bool) -> list[Row]:
    async with versions(system) as app:
        said = await app.command("scale", f"{VERSIONS}/app", "4", "--wait")
        assert said.code == 0, said.output
        before = set((await asyncio.to_thread(app.replicas, "app")).values())
        async with traffic(app, short) as found:
            await asyncio.sleep(CALM_S)
            said = await app.command("scale", f"{VERSIONS}/app", "1")
            assert said.code == 0, said.output
            gone_s = await seconds_until(lambda: sum(map(psutil.pid_exists, before)) == 1, 60)
            await asyncio.sleep(CALM_S)
        left = before - set((await asyncio.to_thread(app.replicas, "app")).values())
        late = app.ledger.of(done.id for done in found.posts if done.sent > said.ended + LATE_S)
        return [
            *nothing_lost(found, app.ledger),
            has_left(found),
            Row("replicas that were stopped", len(left), 3, at_least=True),
            Row(
                f"POST: handled by one of these replicas although sent more than {LATE_S:g} s after the command",
                sum(bool(each.pids & left) for each in late.values()),
                0,
            ),
            Row("time until the processes of these replicas ended", gone_s, DRAIN_S + 5, "s"),
        ]


async def wrong_updates(system: System, short: bool) -> list[Row]:
    """Deploy updates incorrectly on purpose, and check that each of these measurements misses its bound.

    The rows about WebSockets are left out: the proxy closes a WebSocket of a killed replica with 1012, as it does in a
    correct update.
    """
    wrong = ("streams", "responses from a version", "minimum number of running replicas")
    async with versions(system) as app:
        async with Watch(app) as watch, traffic(app, short) as found:
            said = await app.deploy(VERSIONS, "two")
            hurried = Step(Update("two"), said, said.ended)  # without --wait
            await watch.until(lambda look: look.status["status"] == "healthy", TAKEN_BACK_S)
            async with asyncio.TaskGroup() as group:
                making = group.create_task(make(app, watch, Update("three")))
                await watch.until(lambda look: look.replicas("starting", new=True) > 0, TAKEN_BACK_S)
                for deployment in ("app", "oracle"):  # killed instead of drained
                    for pid in (await asyncio.to_thread(app.replicas, deployment)).values():
                        os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(CALM_S)
        steps = [hurried, making.result()]
        rows = [*nothing_lost(found, app.ledger), *replaced(found, steps), *paced(steps, watch.looks)]
    judged = [row for row in rows if row.says.startswith(wrong)]
    return [
        Row(f"detected: {row.says}", not row.holds, 1, at_least=True, saw=f"{row.value:g}, {row.saw}".rstrip(", "))
        for row in judged
    ]
