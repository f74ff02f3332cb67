"""A small world for the reconciler, checked at every tick.

Processes are slow, crash, respond late or never, and the controller is restarted at any moment.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.control.reconcile import (
    ANSWER_S,
    RECONFIGURE_AGAIN_S,
    RECONFIGURE_TRIES,
    UNPLACED_S,
    UNROUTE_S,
    Drain,
    Kill,
    Probe,
    Reconfigure,
    Recycle,
    ReplicaSetRecord,
    ReplicaSetSpec,
    Retire,
    Start,
    Stop,
    due,
    noted,
    plan,
    recovered,
    take,
)
from app_toolkit.control.replica_state import (
    Drained,
    Event,
    Exited,
    Found,
    Phase,
    Placed,
    ProbeFailed,
    ProbePassed,
    Reconfigured,
    ReconfigureFailed,
    Started,
    Unplaceable,
    Unrouted,
)
from app_toolkit.interfaces import Location, ReloadableOptions
from app_toolkit.types import Address, NodeId, ReplicaId
from tests.keys import key

REPLICA_SET = key("shop/chat")
LIVE = ReloadableOptions(100)


def replica_set_spec(
    template_hash="v1", target=3, reloadable=LIVE, *, key=REPLICA_SET, apart=False, routed=True, spread=False, **options
):
    config = DeploymentConfig(
        **{
            "name": "chat",
            "max_surge": 1,
            "startup_timeout_s": 20.0,
            "graceful_shutdown_timeout_s": 5.0,
            "health_check_period_s": 3.0,
            "health_check_timeout_s": 2.0,
            **options,
        }
    )
    template = ReplicaSpec(ReplicaId(""), "shop", config, "shop:app", ".", "", reloadable)
    return ReplicaSetSpec(key, template_hash, target, template, apart=apart, routed=routed, spread=spread)


def with_options(spec, **options):
    """The spec with these options of its deployment."""
    return replace(spec, template=replace(spec.template, config=spec.config.model_copy(update=options)))


# What is taken of a replica set that nobody specifies.
ORPHAN = replica_set_spec(
    target=0,
    startup_timeout_s=60.0,
    graceful_shutdown_timeout_s=20.0,
    health_check_period_s=5.0,
    health_check_timeout_s=5.0,
)


@dataclass
class Process:
    """The truth about one replica, which the controller only ever hears of."""

    template_hash: str
    reloadable: ReloadableOptions | None
    """What it has taken up; None: the last that it was given it has not."""
    state: str = "starting"
    placed: bool = True
    hangs: bool = False
    refuses_probes: bool = False
    remote: bool = False
    """Callers on other nodes reach it."""
    orders: list[tuple[ReloadableOptions, int]] = field(default_factory=list)
    """What it is to take up, one after the other, and the epoch of who is to hear of it."""


class World:
    def __init__(self, seed, spec, replica_set=REPLICA_SET):
        self.rng = Random(seed)
        self.spec = spec
        self.replica_set = replica_set
        self.bad = {}
        """What is wrong with all replicas of a revision: it `raises`, `hangs`, is `unwell` or `dies`."""
        self.now = 100.0
        self.epoch = 1
        self.record = ReplicaSetRecord(replica_set)
        self.processes = {}
        self.mail = []
        self.ids = set()
        self.unrouted = set()
        self.passed = set()
        """Who was probed and well since it serves, as this controller has heard."""
        self.calm = False
        self.full = False
        self.stubborn = False
        """Whatever they are to take up, replicas can seldom."""
        self.event_log = []

    def chance(self, probability):
        return not self.calm and self.rng.random() < probability

    # What the processes do

    def location(self, id):
        remote = Address(f"tcp:node:{id}") if self.processes[id].remote else None
        return Location(Address(f"unix:/{id}"), NodeId("node"), remote)

    def say(self, event):
        if self.chance(0.05):
            self.event_log.append((self.now, "lost", event))
            return
        delay = self.rng.uniform(0, 10) if self.chance(0.1) else self.rng.uniform(0, 0.5)
        self.mail.append((self.now + delay, event))

    def live(self):
        """Each process does one thing, or is slow."""
        for id, process in list(self.processes.items()):
            if self.rng.random() < 0.4:
                continue
            if self.chance(0.04):
                self.end(id, "killed by the kernel")
                continue
            if self.chance(0.03):
                process.hangs = True
            if self.chance(0.05):
                process.refuses_probes = not process.refuses_probes
            if self.calm:
                process.hangs = process.refuses_probes = False
            bad = self.bad.get(process.template_hash)
            process.refuses_probes |= bad == "unwell"
            if process.hangs or (bad == "hangs" and process.state == "starting" and process.placed):
                continue
            if bad == "dies" and process.state == "running":
                self.end(id, "RuntimeError: bad dies")
                continue
            if process.orders and process.state != "starting":
                self.take_up(id, process)
            match process.state:
                case "starting" if not process.placed:
                    process.placed = not self.full
                    self.say(Placed(id) if process.placed else Unplaceable(id, "1 GPU", "0 GPUs"))
                case "starting":
                    if bad == "raises" or self.chance(0.2):
                        self.end(id, "ImportError: bad raises" if bad else "ImportError")
                    else:
                        process.state = "running"
                        self.say(Started(id, self.location(id)))
                case "draining":
                    self.say(Drained(id))
                case "stopping":
                    self.end(id, None)

    def take_up(self, id, process):
        reloadable, epoch = process.orders.pop(0)
        failed = self.chance(0.95 if self.stubborn else 0.2)
        process.reloadable = None if failed else reloadable
        if epoch == self.epoch:
            self.say(ReconfigureFailed(id, reloadable, "no such model") if failed else Reconfigured(id, reloadable))

    def end(self, id, why):
        del self.processes[id]
        self.say(Exited(id, why))

    def perform(self, action):
        self.event_log.append((self.now, action))
        id = action.replica
        process = self.processes.get(id)
        match action:
            case Start(spec, _, _, template_hash):
                assert id not in self.ids, f"{id} was minted twice"
                assert spec.id == id
                self.ids.add(id)
                self.processes[id] = Process(
                    template_hash, spec.reloadable, placed=not self.full, remote=self.spec.spread
                )
                if self.full:
                    self.say(Unplaceable(id, "1 GPU", "0 GPUs"))
            case Recycle():
                pass
            case Retire():
                self.unrouted.add(id)
                self.say(Unrouted(id))
            case _ if process is None:
                self.say(Exited(id, "there is no such process"))
            case Drain():
                process.state = "draining"
            case Stop():
                process.state = "stopping"
            case Kill(_, why):
                self.end(id, why)
            case Reconfigure(_, reloadable):
                process.orders.append((reloadable, self.epoch))
            case Probe():
                if process.state == "running" and not process.hangs:
                    refused = process.refuses_probes
                    answered = self.rng.random() < 0.5
                    requests, memory = (0, 0) if self.calm else (self.rng.randint(0, 200), self.rng.randint(0, 200))
                    passed = ProbePassed(id, requests=requests, memory=memory)
                    self.say(ProbeFailed(id, "not well", answered) if refused else passed)

    # What the controller does

    def deliver(self):
        due_now = [event for at, event in self.mail if at <= self.now]
        self.mail = [(at, event) for at, event in self.mail if at > self.now]
        for event in due_now:
            self.hear(event)

    def hear(self, event: Event):
        if self.record.replica(event.replica) is not None:
            self.event_log.append((self.now, event))
            self.note_proof(event)
            self.record = take(self.record, event, self.now)

    def note_proof(self, event):
        if isinstance(event, ProbePassed) and self.record.replica(event.replica).phase is Phase.RUNNING:
            self.passed.add(event.replica)
        elif isinstance(event, Reconfigured):
            self.passed.discard(event.replica)

    def restart(self):
        """The controller forgets everything; events under way are lost with it."""
        self.epoch += 1
        self.mail = []
        self.passed = set()
        self.unrouted = {id for id, process in self.processes.items() if process.state in ("draining", "stopping")}
        self.record = recovered(self.replica_set, list(self.processes), self.now)
        self.event_log.append((self.now, "restart", self.epoch))
        for id, process in self.processes.items():
            reloadable = None if process.orders else process.reloadable
            self.say(Found(id, self.replica_set, process.template_hash, process.state, self.location(id), reloadable))

    def tick(self, *, then_restart=False):
        self.deliver()
        before = self.record
        actions = plan(self.spec, before, self.now, self.epoch)
        for action in actions:
            self.record = noted(self.record, action, self.now)
        self.check(before, actions)
        for action in actions:
            self.perform(action)
        if Start in map(type, actions) and self.spec.apart:
            assert len(self.processes) <= self.spec.target, "the old one was still there"
            assert {process.template_hash for process in self.processes.values()} == {self.spec.template_hash}
        if then_restart:
            self.restart()
        return actions

    def step(self):
        self.now += self.rng.choice([0.1, 0.5, 1.0, 2.0])
        self.live()
        return self.tick(then_restart=self.chance(0.02))

    # What must hold

    def check(self, before, actions):
        spec, now = self.spec, self.now
        target, template_hash = (spec.target, spec.template_hash) if spec else (0, None)
        starts = [action for action in actions if isinstance(action, Start)]
        if starts:
            staying = [r for r in self.record.replicas if r.phase not in (Phase.DRAINING, Phase.STOPPING)]
            too_many = len(self.record.replicas) > target + spec.surge
            # What has died is replaced at once, whatever is on its way out.
            assert not too_many or len(staying) <= target - spec.unavailable, f"started {len(starts)} too many"

        healthy_before, healthy_after = self.healthy(before), self.healthy(self.record)
        # Where the old must have gone before the new comes, only those that stay are counted.
        if spec is not None and spec.apart:
            healthy_before = [r for r in healthy_before if r.template_hash == spec.template_hash]
        floor = target - spec.unavailable if spec is not None and not spec.apart else target
        assert len(healthy_after) >= min(len(healthy_before), floor), "fell below the target"
        if spec is not None and not spec.apart:
            self.check_places(before, actions)

        for action in actions:
            known = sum(
                r.template_hash == template_hash and r.phase in (Phase.STARTING, Phase.RUNNING) for r in before.replicas
            )
            self.check_cause(before.replica(action.replica), action, known)

        assert plan(spec, self.record, now, self.epoch) == [], "planning twice changed something"
        when = due(spec, self.record)
        if when is not None:
            assert when > now, f"{when} has passed and nothing was done"
            sooner = self.rng.uniform(now, when)
            assert sooner >= when or plan(spec, self.record, sooner, self.epoch) == [], "came due too late"
            assert plan(spec, self.record, when, self.epoch), "came due too early"
        else:
            assert plan(spec, self.record, now + 1e6, self.epoch) == [], "never came due"

    def check_places(self, before, actions):
        """Nobody is replaced by one that has not been well since it began to serve."""
        left = [
            a.replica
            for a in actions
            if isinstance(a, Retire) and not a.failed and self.is_replaced(self.record.replica(a.replica))
        ]
        if left:
            well = [r for r in self.healthy(self.record) if self.is_replaced(r) or self.has_been_ready(r)]
            assert len(well) >= self.spec.target - self.spec.unavailable, f"{left} left too early"

    def is_replaced(self, record):
        return record.template_hash != self.spec.template_hash or record.recycled is not None

    def has_been_ready(self, record):
        return record.id in self.passed

    def healthy(self, record):
        spec = self.spec or ORPHAN
        threshold, deadline = spec.config.health_check_failure_threshold, spec.config.startup_timeout_s
        return [
            r
            for r in record.replicas
            if (r.phase is Phase.RUNNING and self.failed_probes(r) < threshold)
            or (r.phase is Phase.RECOVERING and self.now < r.since + deadline)
        ]

    def failed_probes(self, record):
        """Those that failed, and the one that was not answered in time."""
        timeout = (self.spec or ORPHAN).config.health_check_timeout_s + ANSWER_S
        unanswered = record.probing_since is not None and self.now - record.probing_since >= timeout
        return record.failed_probes + unanswered

    def check_cause(self, was, action, known):
        """`known`: the number of replicas with the desired template hash."""
        spec = self.spec or ORPHAN
        if isinstance(action, Start):
            assert was is None
            return
        assert was is not None
        if was.phase is Phase.RECOVERING:
            assert isinstance(action, Kill)
            assert self.now - was.since >= spec.config.startup_timeout_s
        age = self.now - was.since
        match action:
            case Retire(failed=failed):
                assert was.phase is Phase.RUNNING
                assert not failed or self.failed_probes(was) >= spec.config.health_check_failure_threshold
            case Recycle(limit=limit):
                assert was.phase is Phase.RUNNING
                assert was.recycled is None
                limits = {"max_requests": was.requests >= 50, "max_memory": was.memory > 100, "max_age_s": age >= 30}
                assert limits[limit]
            case Drain():
                assert was.drain_sent is None
                assert not spec.routed or action.replica in self.unrouted or age >= UNROUTE_S
            case Stop():
                assert was.phase in (Phase.STARTING, Phase.STOPPING)
                assert was.stop_sent is None
                reached = not spec.spread or was.location is None or was.location.remote_address is not None
                if (
                    self.spec is not None
                    and was.phase is Phase.STARTING
                    and was.template_hash == spec.template_hash
                    and reached
                ):
                    assert known > spec.target, "it may be a desired one"
            case Probe():
                assert was.phase is Phase.RUNNING
                waited = self.now - (was.probing_since or 0.0)
                assert was.probing_since is None or waited >= spec.config.health_check_timeout_s + ANSWER_S
            case Reconfigure(_, reloadable):
                assert was.phase is Phase.RUNNING
                assert was.template_hash == spec.template_hash, "it is about to be replaced"
                assert was.reloadable != reloadable == spec.reloadable
                last = was.reconfiguration
                if last is not None and last.sent is not None:
                    assert self.now - last.sent >= spec.config.startup_timeout_s + ANSWER_S, "two at a time"
                elif last is not None and last.reloadable == reloadable:
                    assert last.failures < RECONFIGURE_TRIES
                    assert self.now - last.failed_at >= RECONFIGURE_AGAIN_S * last.failures
            case Kill():
                overdue = {
                    Phase.STARTING: age >= (UNPLACED_S if was.unplaceable else spec.config.startup_timeout_s),
                    Phase.RECOVERING: age >= spec.config.startup_timeout_s,
                    Phase.RUNNING: self.failed_probes(was) >= spec.config.health_check_failure_threshold,
                    Phase.DRAINING: was.drain_sent is not None
                    and self.now - was.drain_sent >= spec.config.graceful_shutdown_timeout_s,
                    Phase.STOPPING: True,
                }
                assert overdue[was.phase], f"killed without a cause: {was}"

    def settle(self, *, steps=300):
        """Once the world calms down it comes to what the spec says, and stays there."""
        self.calm, self.full = True, False
        if self.spec is not None:
            self.spec = with_options(self.spec, recycling=None)
        for _ in range(steps):
            self.step()
        desired = Counter({(self.spec.template_hash, "running"): self.spec.target}) if self.spec else Counter()
        there = Counter((process.template_hash, process.state) for process in self.processes.values())
        known = Counter((r.template_hash, r.phase.value) for r in self.record.replicas)
        assert there == known == +desired, self.event_log[-30:]
        if self.spec is not None:
            assert all(process.reloadable == self.spec.reloadable for process in self.processes.values()), (
                self.event_log[-30:]
            )
            assert all(r.reloadable == self.spec.reloadable for r in self.record.replicas)
        if self.spec is not None and self.spec.spread:
            assert all(process.remote for process in self.processes.values())
        for _ in range(10):
            assert all(isinstance(action, Probe) for action in self.step())
