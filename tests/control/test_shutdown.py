"""Everything ends in order and in time, also if replicas do not respond."""

import heapq
import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.contract.identity import ReplicaSetKey, are_proxies
from app_toolkit.control.reconcile import Drain, Kill, Probe, Reconfigure, Retire, Start, Stop, due, noted, plan, take
from app_toolkit.control.replica_set import specified
from app_toolkit.control.replica_state import Drained, Exited, Phase, ProbePassed, Reconfigured, Started, Unrouted
from app_toolkit.control.shutdown import ShutdownStep, desired, longest, proxies_linger, step
from app_toolkit.interfaces import Location
from app_toolkit.types import Address
from tests.control.specs import HOME, NEXT, proxies_spec, replica_set
from tests.keys import key, proxies_of

PROXY = proxies_of(HOME)
RUN, END = Phase.RUNNING, Phase.STOPPING


@pytest.mark.parametrize(
    ("why", "replica_sets", "expected"),
    [
        ("they finish what they have", {PROXY: [RUN], key("shop/web"): [RUN]}, ShutdownStep.REQUESTS),
        ("one of them drains", {PROXY: [END, Phase.DRAINING], key("shop/web"): [RUN]}, ShutdownStep.REQUESTS),
        ("all have drained", {PROXY: [END, END], key("shop/web"): [RUN]}, ShutdownStep.REPLICAS),
        ("they have died", {key("shop/web"): [RUN]}, ShutdownStep.REPLICAS),
        ("a group without a replica is not forgotten yet", {PROXY: [END], key("shop/web"): []}, ShutdownStep.REPLICAS),
        ("nothing is left to pass through them", {PROXY: [END]}, ShutdownStep.PROXIES),
        ("nothing is left", {}, ShutdownStep.PROXIES),
    ],
)
def test_a_step_begins_when_the_one_before_is_done(why, replica_sets, expected):
    assert step({name: replica_set(name, *phases) for name, phases in replica_sets.items()}) is expected, why


def test_each_step_desires_fewer_replica_sets():
    web, proxies = {key("shop/web"): replica_set(key("shop/web"), RUN).spec}, {PROXY: proxies_spec()}
    assert desired(None, web, proxies) == web | proxies
    assert desired(ShutdownStep.REQUESTS, web, proxies) == web
    assert desired(ShutdownStep.EDGES, web, proxies) == web
    assert desired(ShutdownStep.REPLICAS, web, proxies) == {}
    assert desired(ShutdownStep.PROXIES, web, proxies) == {}
    assert [proxies_linger(each) for each in (None, *ShutdownStep)] == [False, True, True, True, False]


def test_nothing_takes_no_time():
    assert longest({key("shop/web"): replica_set(key("shop/web"))}) == 0.0


class Leaving:
    """Groups on their last way, in event time. A process answers at some time, at the last moment, or never; an exit
    may be lost once."""

    def __init__(self, rng, replica_sets):
        self.rng, self.replica_sets = rng, replica_sets
        self.now = 0.0
        self.mail, self.numbers = [], itertools.count()
        self.lost = set()
        self.shutdown_step = ShutdownStep.REQUESTS
        self.deployments = {name: each.spec for name, each in replica_sets.items() if isinstance(name, ReplicaSetKey)}
        self.steps = []

    def say(self, event, within_s, *, surely=False):
        if surely or self.rng.random() < 0.6:
            after = self.rng.choice([self.rng.uniform(0.0, within_s), within_s])
            heapq.heappush(self.mail, (self.now + after, next(self.numbers), event))

    def perform(self, name, action, was):
        id = action.replica
        match action:
            case Start():
                self.say(Started(id, Location(Address(f"unix:/{id}"), HOME)), 3.0)
            case Retire():
                proxies = [r for n, each in self.replica_sets.items() if are_proxies(n) for r in each.record.replicas]
                assert all(proxy.phase is END for proxy in proxies), "a proxy may still ask it"
                self.say(Unrouted(id), 10.0)
            case Drain(_, timeout_s):
                self.say(Drained(id), timeout_s)
            case Stop(_, timeout_s):
                if are_proxies(name) and was is not None and was.phase is END:
                    left = [each for each in self.replica_sets if isinstance(each, ReplicaSetKey)]
                    assert not left, "something may still pass through it"
                self.say(Exited(id), timeout_s)
            case Kill():
                self.say(Exited(id, "killed"), 0.1, surely=id in self.lost)
                self.lost.add(id)
            case Probe():
                self.say(ProbePassed(id), 1.0)
            case Reconfigure(_, live):
                self.say(Reconfigured(id, live), 1.0)

    def hear(self):
        while self.mail and self.mail[0][0] <= self.now:
            event = heapq.heappop(self.mail)[2]
            for name, each in self.replica_sets.items():
                replica = each.record.replica(event.replica)
                expected = {Drained: Phase.DRAINING, Unrouted: Phase.DRAINING, ProbePassed: RUN, Reconfigured: RUN}
                if replica is not None and expected.get(type(event), replica.phase) is replica.phase:
                    self.replica_sets[name] = replace(each, record=take(each.record, event, self.now))

    def tick(self):
        self.hear()
        self.shutdown_step = step(self.replica_sets)
        self.steps.append(self.shutdown_step.value)
        left = desired(self.shutdown_step, self.deployments, {})
        self.replica_sets = specified(
            self.replica_sets, left, starts=9, proxies_linger=proxies_linger(self.shutdown_step)
        )
        for name, each in list(self.replica_sets.items()):
            for action in plan(each.spec, each.record, self.now, 1):
                was = each.record.replica(action.replica)
                each = replace(each, record=noted(each.record, action, self.now))
                self.replica_sets[name] = each
                self.perform(name, action, was)
        self.replica_sets = {name: each for name, each in self.replica_sets.items() if not each.gone}

    def next(self):
        """When there is something to do: at once where a step has begun."""
        if step(self.replica_sets) is not self.shutdown_step:
            return self.now
        times = [due(each.spec, each.record) for each in self.replica_sets.values()]
        times += [self.mail[0][0] if self.mail else None]
        return min(at for at in times if at is not None)


@settings(max_examples=30, derandomize=True)
@given(seed=st.integers(0, 2**32), spoken=st.booleans())
def test_in_any_world_all_are_gone_in_time_and_in_their_order(seed, spoken):
    rng = Random(seed)
    phases = [RUN, RUN, Phase.STARTING, Phase.DRAINING, END, *([] if spoken else [Phase.RECOVERING])]
    names = rng.sample(
        [PROXY, proxies_of(NEXT), key("shop/web"), key("shop/model"), key("other/web")], rng.randint(1, 5)
    )
    world = Leaving(rng, {name: replica_set(name, *rng.choices(phases, k=rng.randint(1, 3))) for name in names})
    until = longest(world.replica_sets)
    for _ in range(10_000):
        world.tick()
        if not world.replica_sets:
            break
        world.now = world.next()
        assert world.now <= until, f"{world.replica_sets} after {until:g} s"
    assert not world.replica_sets
    assert world.steps == sorted(world.steps), "no step is taken twice"
