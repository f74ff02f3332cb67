"""The controller is killed during operations: each is done or refused as a whole, and requests go on."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.contract.identity import ReplicaSetKey, replica_set_of
from app_toolkit.control.canary import BeginRelease
from app_toolkit.control.command import Command
from app_toolkit.control.freeze import Freeze, Unfreeze
from app_toolkit.control.operations import AddCandidate, Deploy, Scale
from app_toolkit.control.promotion import Promote
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus
from app_toolkit.control.weights import SetTraffic
from app_toolkit.declare.planning import plan
from app_toolkit.errors import ToolkitError
from app_toolkit.types import ReplicaId
from app_toolkit.userapp.loading import load
from app_toolkit.userapp.target import served
from benchmarks.chaos.client import Done, ok, open_loop
from benchmarks.chaos.ledger import executed_twice
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import GONE_S, killed, lost
from benchmarks.chaos.system import VICTIM, System, seconds_until
from benchmarks.chaos.traffic import POSTS
from benchmarks.chaos.updates import FIRST

OPERATED = "operated"
"""The application of the operations."""
SECOND = "two"

SEED = 1
GETS = 50.0
"""GET requests per second."""
ANSWER_S = 0.05
"""The first half of the kills are within this time after the operation is sent, before or soon after its answer."""
TRIES = 3
"""How often an operation is sent that was refused."""
SETTLED_S = 60.0
"""How long an operation may take until it is complete."""
FOLLOWS_S = 2.0
"""How soon every process follows a change of traffic. Operations that start replicas wait for that themselves."""
CALM_S = 0.5
"""Seconds of traffic between two operations, in which only the expected revisions may respond."""
LONG_S = 75.0
"""The operations are repeated for this long in the long form."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What an operation can change, without the numbers of revisions."""

    main: str
    """The version of the main revision."""
    replicas: int
    """The desired number of replicas of the ingress in the main revision."""
    shares: Mapping[str, float]
    """The shares of the candidates, by version."""
    restarts: int = 0
    """By how many revisions the main revision was restarted later than before the operation: 1 is one restart."""
    is_frozen: bool = False


class Versions:
    """Finds the version of replicas, and the revision that has restarted them, by their template hash."""

    def __init__(self, specs: Mapping[str, ApplicationSpec]) -> None:
        self._specs = specs
        self._by_hash: dict[str, tuple[str, int]] = {}
        self._added = -1
        """The hashes are known of restarts by revisions up to this one."""

    def of(self, application: ApplicationStatus, deployments: Iterable[ReplicaSetStatus]) -> tuple[str, int]:
        """Return the version, and the number of the revision that has restarted it last; 0: none has."""
        while self._added < application.next_revision:
            self._added += 1
            restarts = {"app": self._added} if self._added else {}
            for name, spec in self._specs.items():
                restarted = spec.model_copy(update={"restarts": restarts})
                self._by_hash[restarted.template_hash("app")] = name, self._added
        return next(
            self._by_hash[replica_set.template_hash]
            for replica_set in deployments
            if replica_set.key.deployment == "app"
        )

    def condition(self, status: InstanceStatus, before: InstanceStatus) -> Condition:
        """Return the condition of the application. `before`: the status before the operation."""
        main, earlier = _main(status), _main(before)
        (ingress,) = (each for each in main.deployments if each.key.deployment == "app")
        version, restarted = self.of(main, main.deployments)
        is_restarted = restarted != self.of(earlier, earlier.deployments)[1]
        candidates = [live for live in main.traffic[1:] if not live.is_removed]
        return Condition(
            version,
            ingress.target,
            {self.of(main, live.deployments)[0]: live.planned for live in candidates},
            restarted - earlier.next_revision + 1 if is_restarted else 0,
            main.facts.frozen is not None,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """An operation, the condition that it should lead to, and when the controller is killed."""

    kind: str
    operation: Callable[[ApplicationStatus], Command[Any]]
    """Returns the operation for the status of the application."""
    after: Condition
    lasts_s: float
    """Half of the kills are within this time after the operation is sent."""
    starts_none: bool = False
    """Whether it may start no process."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An operation that was sent, and what became of it."""

    kind: str
    error: str
    """The error that the client got; empty: none."""
    is_done: bool
    is_untouched: bool
    settled_s: float
    started: frozenset[str] = frozenset()
    """The processes that an operation has started although it may start none."""
    unknown: frozenset[str] = frozenset()
    """The replicas that run although the controller does not know them."""

    @property
    def is_whole(self) -> bool:
        """Whether it is done, or refused with a sentence and without an effect."""
        return self.is_untouched if self.error else self.is_done

    def __str__(self) -> str:
        state = "done" if self.is_done else "without effect" if self.is_untouched else "half done"
        return f"{self.kind} is {state}" + (f": {self.error}" if self.error else "")


@dataclass(slots=True)
class Calm:
    """The times in which only these versions may respond."""

    spans: list[tuple[str, float, float, frozenset[str]]] = field(default_factory=list)
    """The kind of the operation before, the begin, the end, and the versions."""

    def wrong(self, found: Iterable[Done]) -> list[str]:
        return [
            f"{done.version} instead of {' or '.join(sorted(versions))} after {kind}"
            for done in ok(list(found))
            for kind, began, ended, versions in self.spans
            if began <= done.sent and done.answered <= ended and set(done.version.split("/")) - versions
        ]


async def the_controller_dies_during_operations(system: System, short: bool) -> list[Row]:
    rng, calm = Random(SEED), Calm()
    outcomes: list[Outcome] = []
    specs = {name: _spec(name) for name in (FIRST, SECOND)}
    versions = Versions(specs)
    await asyncio.to_thread(system.perform, Deploy(specs[FIRST]), SETTLED_S)
    app = system.beside(OPERATED)
    proxies = await asyncio.to_thread(app.proxies)
    async with app.client() as client, app.client() as writer:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            gets = group.create_task(open_loop(client.get, GETS, math.inf, over))
            posts = group.create_task(open_loop(writer.post, POSTS, math.inf, over))
            try:
                began = time.monotonic()
                while not outcomes or (not short and time.monotonic() - began < LONG_S):
                    for turn in _turns(specs):
                        for _ in range(TRIES):
                            outcomes.append(await _struck(app, turn, versions, rng, calm))
                            if outcomes[-1].is_done:
                                break
                        assert outcomes[-1].is_done, f"the next operation needs this one: {outcomes[-1]}"
                if not short:  # replicas of removed revisions wait for the longest waiting request
                    await seconds_until(lambda: not _leaving(app.instance()), SETTLED_S)
                outcomes[-1] = replace(outcomes[-1], unknown=await asyncio.to_thread(_unknown, app))
            finally:
                over.set()
    after = await asyncio.to_thread(app.proxies)
    await app.delete(OPERATED)
    written = app.ledger.of(done.id for done in posts.result())
    wrong = calm.wrong(gets.result())
    started = [id for outcome in outcomes for id in outcome.started]
    unknown = [id for outcome in outcomes for id in outcome.unknown]
    return [
        lost("GET", gets.result()),
        lost("POST", posts.result()),
        Row("POST: executed more than once", executed_twice(written.values()), 0),
        Row("POST: successful, but not in the ledger", sum(d.id not in written for d in ok(posts.result())), 0),
        *_by_kind(outcomes),
        Row("processes that a promotion started", len(started), 0, saw=", ".join(started)),
        Row("replicas that ran although the controller did not know them", len(unknown), 0, saw=", ".join(unknown)),
        Row("responses of another revision than the expected ones", len(wrong), 0, saw="; ".join(sorted(set(wrong)))),
        Row("processes of proxies that started or ended", len(proxies.items() ^ after.items()), 0),
        Row(
            "maximum time until an operation was complete",
            max(outcome.settled_s for outcome in outcomes),
            SETTLED_S,
            "s",
            clocked=True,
        ),
    ]


def _turns(specs: Mapping[str, ApplicationSpec]) -> tuple[Turn, ...]:
    """Return operations that lead back to the condition before them."""
    one, two = specs[FIRST], specs[SECOND]
    number = one.deployment("app").config.num_replicas
    assert isinstance(number, int)

    def shared(status: ApplicationStatus) -> Command[Any]:
        main, candidate = (live.revision for live in status.traffic if not live.is_removed)
        return SetTraffic(OPERATED, {main: 50, candidate: 50})

    def release(status: ApplicationStatus) -> Command[Any]:
        guards = ("error_rate<50%", "p95<9s")
        return BeginRelease(OPERATED, steps=(50, 100), every=2, guards=guards, min_requests=10)

    def always(command: Command[Any]) -> Callable[[ApplicationStatus], Command[Any]]:
        return lambda status: command

    scaled, frozen = f"{OPERATED}/app", Condition(FIRST, number, {}, is_frozen=True)
    return (
        Turn("scale", always(Scale(scaled, number + 1)), Condition(FIRST, number + 1, {}), 1.5),
        Turn("scale", always(Scale(scaled, number)), Condition(FIRST, number, {}), 1.5),
        Turn("update", always(Deploy(two)), Condition(SECOND, number, {}), 3),
        Turn("rollback", always(Rollback(OPERATED)), Condition(FIRST, number, {}), 3),
        Turn("restart", always(Restart(OPERATED)), Condition(FIRST, number, {}, restarts=1), 3),
        Turn("freeze", always(Freeze(OPERATED, reason="a test")), frozen, 0.5, starts_none=True),
        Turn("unfreeze", always(Unfreeze(OPERATED)), Condition(FIRST, number, {}), 0.5, starts_none=True),
        Turn("candidate", always(AddCandidate(two, share=0.1)), Condition(FIRST, number, {SECOND: 0.1}), 2),
        Turn("set_traffic", shared, Condition(FIRST, number, {SECOND: 0.5}), 0.5, starts_none=True),
        Turn("promotion", always(Promote(OPERATED)), Condition(SECOND, number, {}), 1, starts_none=True),
        Turn("candidate", always(AddCandidate(one)), Condition(SECOND, number, {FIRST: 0}), 2),
        Turn("canary release", release, Condition(FIRST, number, {}), 5, starts_none=True),
    )


def _spec(version: str) -> ApplicationSpec:
    target = f"{VICTIM.stem}:{version}"
    app = served(load(target, str(VICTIM.parent)), target)
    return plan(app, target=target, app_dir=str(VICTIM.parent), name=OPERATED, route_prefix=f"/{OPERATED}")


async def _struck(app: System, turn: Turn, versions: Versions, rng: Random, calm: Calm) -> Outcome:
    """Send the operation, kill the controller, and wait until the operation is complete."""
    before = await asyncio.to_thread(app.instance)
    ran = await asyncio.to_thread(_existing, app)
    controller = await asyncio.to_thread(app.controller)
    delay = rng.random() * rng.choice((ANSWER_S, turn.lasts_s))
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        sent = group.create_task(_error_of(app, turn.operation(_main(before))))
        await asyncio.sleep(delay)
        await killed(controller)
    error = sent.result()

    def is_complete() -> bool:
        status = app.instance()
        return _is_settled(status) and (bool(error) or versions.condition(status, before) == turn.after)

    waited_s = await seconds_until(is_complete, SETTLED_S)
    settled = time.monotonic()
    if turn.starts_none:
        await asyncio.sleep(FOLLOWS_S)
    calm_from = time.monotonic()
    condition = versions.condition(await asyncio.to_thread(app.instance), before)
    await asyncio.sleep(CALM_S)
    serving = frozenset((condition.main, *(version for version, share in condition.shares.items() if share)))
    calm.spans.append((turn.kind, calm_from, time.monotonic(), serving))
    await seconds_until(lambda: not _unknown(app), GONE_S)
    runs = await asyncio.to_thread(_existing, app)
    return Outcome(
        turn.kind,
        f"{error} (killed after {delay:.3f} s)" if error else "",
        condition == turn.after,
        condition == versions.condition(before, before),
        math.inf if waited_s == math.inf else settled - began,
        runs - ran if turn.starts_none else frozenset(),
        await asyncio.to_thread(_unknown, app),
    )


async def _error_of(app: System, operation: Command[Any]) -> str:
    """Perform the operation, and return its error."""
    try:
        await asyncio.to_thread(partial(app.perform, operation, SETTLED_S))
    except ToolkitError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _existing(app: System) -> frozenset[str]:
    """Return the replicas of the application that run, whether or not the controller knows them."""
    return frozenset(
        id
        for id in app.existing()
        if isinstance(key := replica_set_of(ReplicaId(id)), ReplicaSetKey) and key.application == OPERATED
    )


def _unknown(app: System) -> frozenset[str]:
    """Return the replicas of the application that run although the controller does not know them."""
    existing, status = _existing(app), app.instance()
    return existing - {replica.id for each in (*status.deployments, *status.leaving) for replica in each.replicas}


def _main(status: InstanceStatus) -> ApplicationStatus:
    application = status.application(OPERATED)
    assert application is not None
    return application


def _leaving(status: InstanceStatus) -> bool:
    """Whether a revision that was removed still has replicas."""
    return any(each.key.application == OPERATED for each in status.leaving)


def _is_settled(status: InstanceStatus) -> bool:
    """Whether no operation goes on, except that replicas of removed revisions drain."""
    main = _main(status)
    return (
        main.status == "healthy"
        and main.is_available
        and all(
            live.is_removed or (live.status == "healthy" and live.is_available and live.is_ready)
            for live in main.traffic
        )
        and (main.canary is None or main.canary.outcome is not None)
    )


def _by_kind(outcomes: Sequence[Outcome]) -> list[Row]:
    rows = []
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        whole = sum(outcome.is_whole for outcome in of_kind)
        saw = "; ".join(str(outcome) for outcome in of_kind if not outcome.is_whole or outcome.error)
        rows.append(
            Row(f"operations that were done or refused: {kind}", whole, len(of_kind), "times", at_least=True, saw=saw)
        )
    return rows
