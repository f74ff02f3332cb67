"""Updates under traffic: a timeline of versions, good and bad, and what became of the requests meanwhile."""

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
"""The application that is updated. It has two deployments, of `WANTED` replicas each."""
WANTED = 2
FIRST = "one"

TAKEN_BACK_S = 60.0
"""How long one waits until nothing of a bad version is asked any more."""

LATE_S = 2.0
"""How soon nobody asks a replica any more that was told to go."""

DRAIN_S = DeploymentConfig.model_fields["graceful_shutdown_timeout_s"].default

CALM_S = 2.0
"""How long traffic goes on after the last update."""


@dataclass(frozen=True, slots=True)
class Update:
    version: str
    fails: str = ""
    """With what `deploy --wait` ends where the version does not hold; nothing: it holds."""


GOOD = (Update("two"), Update("three"), Update("four"))
BAD = (
    Update("raises", "FileNotFoundError: there are no weights of this version"),
    Update("sickens", "RuntimeError: I have a cold"),
    Update("hangs", "it was not ready after 4 s"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """An update that was made."""

    update: Update
    said: Said
    settled: float
    """When nothing of what had to go was to answer any more: `deploy --wait` had ended, or what was bad had gone."""

    @property
    def is_right(self) -> bool:
        """Whether the command ended as it should."""
        if not self.update.fails:
            return self.said.code == 0
        return self.said.code == 2 and self.update.fails in " ".join(self.said.output.split())

    def within(self, looks: Iterable[Look]) -> list[Look]:
        """Those of its time."""
        return [look for look in looks if self.said.began <= look.at <= self.settled]


def versions(system: System, *options: str) -> AbstractAsyncContextManager[System]:
    """The application, in its first version, until the end of the block; with these options of `deploy`."""
    return system.deployed(VERSIONS, FIRST, *options)


async def make(system: System, watch: Watch, update: Update) -> Step:
    """Deploy a version, and wait until it is there, or was taken back."""
    said = await system.deploy(VERSIONS, update.version, "--wait")
    return Step(update, said, await watch.until(_is_taken_back, TAKEN_BACK_S) if update.fails else said.ended)


def _is_taken_back(look: Look) -> bool:
    """Once nothing of it is asked any more; of what a new controller has found and does not know yet it may be."""
    return look.status["status"] == "rolled_back" and all(
        group["status"] == "healthy" and "recovering" not in group["counts"] for group in look.status["deployments"]
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
    """Who deploys is told what came of it."""
    for kind, of_kind in (
        ("good updates of which it was told that all is up", [step for step in steps if not step.update.fails]),
        ("bad updates of which it was told why they were taken back", [step for step in steps if step.update.fails]),
    ):
        if of_kind:
            wrong = [step.update.version for step in of_kind if not step.is_right]
            right = len(of_kind) - len(wrong)
            yield Row(kind, right, len(of_kind), at_least=True, saw=f"not {', '.join(wrong)}" if wrong else "")


def replaced(found: Traffic, steps: Sequence[Step]) -> Iterator[Row]:
    """Who answered, and when."""
    gone = _gone(steps)
    requests = [(done.version, done.sent) for done in (*found.gets, *found.posts, *found.streams)]
    # One that was opened before may end with the replica that it belongs to.
    said = [(message.version, dialogue.opened) for dialogue in found.dialogues for message in dialogue.messages]
    yield Row(
        "answers of a version that was to be gone, to whoever asked later",
        sum(_is_of(gone, version, since) for version, since in (*requests, *said)),
        0,
        saw=f"versions that answered: {', '.join(sorted({version for version, _ in (*requests, *said) if version}))}",
    )
    yield has_left(found)
    silence = max(_silences(found.gets, steps), default=0.0)
    yield Row("the longest without an answer of the good version during bad updates", silence, 5, "s")


def has_left(found: Traffic) -> Row:
    """That there were WebSockets for which it mattered."""
    left = sum(dialogue.closed in PROPER[1:] for dialogue in found.dialogues)
    return Row("WebSockets that had to leave a replica", left, 1, at_least=True)


def paced(steps: Sequence[Step], looks: Sequence[Look]) -> Iterator[Row]:
    """How updates go that nothing else disturbs."""
    good = [look for step in steps if not step.update.fails for look in step.within(looks)]
    yield Row(
        "replicas of a deployment that served during good updates, the fewest", _fewest(good), WANTED, at_least=True
    )
    slowest = max((step.said.ended - step.said.began for step in steps if step.update.fails), default=0.0)
    yield Row("until it was told that a bad update was taken back, the slowest", slowest, 30, "s", clocked=True)


def _gone(steps: Iterable[Step]) -> dict[str, float]:
    """Since when nothing of a version is to answer any more."""
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
    """Whether any part of an answer is of what was gone by then."""
    return any(since > gone.get(part, math.inf) for part in version.split("/"))


def _fewest(looks: Iterable[Look]) -> int:
    """Of any deployment at any time. Who is found by a new controller serves all the time."""
    return min(
        sum(replica["phase"] in ("running", "recovering") for replica in group["replicas"])
        for look in looks
        for group in look.status["deployments"]
    )


def _silences(gets: Sequence[Done], steps: Iterable[Step]) -> Iterator[float]:
    """The longest of each bad update: of its model, which is what is bad."""
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
            Row("replicas that had to go", len(left), 3, at_least=True),
            Row(
                f"POST that came to one of them, sent {LATE_S:g} s later",
                sum(bool(each.pids & left) for each in late.values()),
                0,
            ),
            Row("until their processes were gone", gone_s, DRAIN_S + 5, "s"),
        ]


async def wrong_updates(system: System, short: bool) -> list[Row]:
    """Made wrong on purpose, and judged as all others are: of these rows none may hold.

    WebSockets are not among them: the proxy closes those of a killed replica with 1012, as a good update does.
    """
    wrong = ("streams", "answers of a version", "replicas of a deployment")
    async with versions(system) as app:
        async with Watch(app) as watch, traffic(app, short) as found:
            said = await app.deploy(VERSIONS, "two")
            hurried = Step(Update("two"), said, said.ended)  # it is not waited for
            await watch.until(lambda look: look.status["status"] == "healthy", TAKEN_BACK_S)
            async with asyncio.TaskGroup() as group:
                making = group.create_task(make(app, watch, Update("three")))
                await watch.until(lambda look: look.replicas("starting", new=True) > 0, TAKEN_BACK_S)
                for deployment in ("app", "oracle"):  # they are not drained
                    for pid in (await asyncio.to_thread(app.replicas, deployment)).values():
                        os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(CALM_S)
        steps = [hurried, making.result()]
        rows = [*nothing_lost(found, app.ledger), *replaced(found, steps), *paced(steps, watch.looks)]
    judged = [row for row in rows if row.says.startswith(wrong)]
    return [
        Row(f"is flagged: {row.says}", not row.holds, 1, at_least=True, saw=f"{row.value:g}, {row.saw}".rstrip(", "))
        for row in judged
    ]
