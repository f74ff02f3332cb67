"""The number of desired replicas: by examples to the tick, and in random worlds against the plainest account."""

import io
import pickle
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from math import ceil, floor, inf
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app_toolkit.config.models import AutoscalingConfig
from app_toolkit.contract.loads import LastReport, loads_to_report
from app_toolkit.control.autoscale import AWAY_S, FORGOTTEN_S, TICK_S, Autoscaler, Report
from app_toolkit.observability.reports import LOAD_CHECK_S

WORLDS = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
SEEDS = st.integers(0, 2**32)
SOON = 1e-6


def config(**options):
    quick = {"max_replicas": 20, "target_ongoing_requests": 2, "look_back_period_s": 5, "upscale_delay_s": 2}
    return AutoscalingConfig(**{**quick, "downscale_delay_s": 30, **options})


def report(at, waiting, ongoing=0, source="proxy"):
    return Report(source, at, waiting, ongoing)


class Steady:
    """One caller that says every second what its load is, and a shell that asks whenever it is due."""

    def __init__(self, config, target=None, now=0.0):
        self.autoscaler = Autoscaler(config, config.starting_replicas if target is None else target, now)
        self.now = now
        self.changes = [(now, self.autoscaler.decide(now).target)]

    @property
    def target(self):
        return self.changes[-1][1]

    def ask(self, now):
        decision = self.autoscaler.decide(now)
        if decision.target != self.target:
            self.changes.append((now, decision.target))
        return decision

    def run(self, load, seconds):
        end = self.now + seconds
        while self.now < end:
            self.autoscaler.add_report(report(self.now, load), self.now)
            until = min(self.now + 1, end)
            while (due := self.ask(self.now).due) is not None and due <= until:
                self.now = due
            self.now = until
        self.ask(self.now)
        return self.target

    def after(self, begin):
        return [(round(at - begin, 6), target) for at, target in self.changes if at >= begin]


# Examples


def test_open_websocket_is_no_load_if_its_share_is_zero():
    autoscaler = Autoscaler(config(min_replicas=0), 1, 0.0)
    autoscaler.add_report(Report("proxy", 0.0, waiting=0, ongoing=0, websockets=9), 0.0)
    assert (autoscaler.decide(9.0).load, autoscaler.decide(9.0).needed) == (0, 0)


def test_the_smallest_share_keeps_the_last_replica():
    autoscaler = Autoscaler(config(min_replicas=0, downscale_delay_s=0), 1, 0.0, 1e-6)
    for second in range(100):
        autoscaler.add_report(Report("proxy", second, waiting=0, ongoing=0, websockets=1), second)
        assert autoscaler.decide(second).target == 1
    autoscaler.add_report(Report("proxy", 100, waiting=0, ongoing=0), 100)
    in_time(autoscaler, 100, 106, lambda at, decision: None)
    assert autoscaler.decide(106).target == 0


def test_more_that_stands_for_the_upscale_delay_is_given_to_the_moment():
    world = Steady(config(look_back_period_s=1, upscale_delay_s=3, target_ongoing_requests=10))
    world.run(load=11, seconds=20)  # the average is above 10 from 10/11 of a second on
    assert world.changes == [(0.0, 1), (1.0 + 3, 2)]


def test_fewer_that_do_for_the_downscale_delay_are_kept_to_the_moment():
    world = Steady(config())
    assert world.run(load=10, seconds=100) == 5
    world.run(load=4, seconds=100)
    # From 10 to 4 the average falls by 0.3 a tick: no more than 8 after 1.75 s, 6 after 3.5 s, 4 after 5 s.
    assert world.after(100) == [(31.75, 4), (33.5, 3), (35.0, 2)]


def test_an_average_that_is_exactly_enough_needs_no_more():
    for each in (0.1, 0.3, 0.7, 1.1, 3.3):  # what binary fractions get wrong
        world = Steady(config(target_ongoing_requests=each, max_replicas=1_000), now=98_765.4321)
        assert world.run(load=33, seconds=60) == ceil(round(33 / each, 6))


def test_one_request_wakes_a_deployment_at_once():
    world = Steady(config(min_replicas=0, upscale_delay_s=60))
    assert world.run(load=0, seconds=500) == 0
    world.autoscaler.add_report(report(500.25, 1), 500.25)
    assert world.ask(500.25).target == 1
    assert world.ask(500.25).due > 500.25


def test_the_last_replica_goes_after_its_own_delay_and_never_with_others():
    world = Steady(config(min_replicas=0, downscale_to_zero_delay_s=100))
    assert world.run(load=10, seconds=100) == 5
    world.run(load=0, seconds=400)
    # Nothing is in the look-back after 5 s; the last replica's delay begins when it is the last.
    assert world.after(100)[-2:] == [(34.0, 1), (134.0, 0)]
    assert [target for _, target in world.after(100)] == [4, 3, 2, 1, 0]


def test_a_load_that_ends_at_the_time_of_its_report_keeps_no_replica():
    autoscaler = Autoscaler(config(min_replicas=0), 0, 0.0)
    while (due := autoscaler.decide(0.0).due) is not None:
        autoscaler.decide(due)
    autoscaler.add_report(report(100.1, 1), 100.1)
    autoscaler.add_report(report(100.1, 0), 100.1)
    decision = autoscaler.decide(100.1)
    assert decision.target == 1
    while decision.due is not None:
        decision = autoscaler.decide(decision.due)
    assert decision.target == 0


def test_caller_is_forgotten_after_the_age_of_its_report_even_if_the_report_is_late():
    autoscaler = Autoscaler(config(), 1, 0.0)
    autoscaler.add_report(report(0.0, 8), 6.0)
    assert autoscaler.decide(FORGOTTEN_S - SOON).load == 8
    assert autoscaler.decide(FORGOTTEN_S).load == 0
    autoscaler.add_report(report(15.0, 8), 15.0 + FORGOTTEN_S)
    assert autoscaler.decide(15.0 + FORGOTTEN_S).load == 0


def test_a_report_from_the_future_is_one_of_now():
    autoscaler = Autoscaler(config(), 1, 0.0)
    autoscaler.add_report(report(1_000.0, 6), 0.0)
    autoscaler.add_report(report(1.0, 2), 1.0)
    assert autoscaler.decide(1.0).load == 2
    in_time(autoscaler, 1.0, 1.0 + FORGOTTEN_S, lambda at, decision: None)
    assert autoscaler.decide(1.0 + FORGOTTEN_S).load == 0


def test_a_factor_goes_its_share_of_the_way_within_one_delay_upwards():
    world = Steady(config(look_back_period_s=0.1, upscaling_factor=0.5))
    world.run(load=18, seconds=TICK_S)  # the average is there
    assert [world.run(load=18, seconds=2) for _ in range(6)] == [5, 7, 8, 9, 9, 9]
    assert [target for _, target in world.changes] == [1, 5, 7, 8, 9]


def test_a_factor_goes_its_share_of_the_way_within_one_delay_downwards():
    world = Steady(config(look_back_period_s=0.1, downscaling_factor=0.5), target=9)
    world.run(load=18, seconds=100)
    world.run(load=2, seconds=300)
    by = {round(at - 100): target for at, target in world.changes}
    assert by == {-100: 9, 30: 5, 60: 3, 90: 2, 120: 1}


def test_autoscaler_keeps_the_load_after_a_pause_of_its_own():
    world = Steady(config(downscale_delay_s=0))
    assert world.run(load=10, seconds=100) == 5
    later = 100 + FORGOTTEN_S + AWAY_S + 60
    assert world.ask(later).load == 10, "nobody was heard, because nobody listened"
    world.now = later
    assert world.run(load=10, seconds=100) == 5
    assert len(world.after(50)) == 0
    assert world.ask(world.now + FORGOTTEN_S + AWAY_S - 2).load == 0, "who asks in time knows of a silence"


def test_autoscaler_scales_up_for_the_load_before_a_pause():
    world = Steady(config())
    world.run(load=2, seconds=100)
    world.run(load=10, seconds=1)
    assert world.ask(world.now + 60).target == 5


def test_bounds_hold_for_the_initial_target():
    assert Autoscaler(config(min_replicas=3), 1, 0.0).decide(0.0).target == 3
    assert Autoscaler(config(), 500, 0.0).decide(0.0).target == 20


def test_time_that_runs_backwards_stands_still():
    autoscaler = Autoscaler(config(), 1, 50.0)
    autoscaler.add_report(report(50.0, 10), 50.0)
    assert autoscaler.decide(40.0) == autoscaler.decide(50.0)


# Random worlds


class World:
    """Callers whose loads rise, burst and end; reports that are late, lost, overtaken and there twice.

    All is fixed by the seed, before anybody decides anything: `heard` has what arrives, in its order. In every third
    world a part of the load are WebSockets and streams.
    """

    def __init__(self, seed, seconds=120, more=None):
        rng = self.rng = Random(seed)
        self.config = random_config(rng)
        self.websocket = [0.0, 0.0, 100 / (7 + seed % 1_000)][seed % 3]
        self.stream = [0.0, 0.0, 100 / (11 + seed % 700)][seed % 3]
        self.begin = round(rng.uniform(0, 100_000), 3)
        self.first = rng.randint(self.config.min_replicas, self.config.max_replicas)
        self.end = self.begin + seconds
        self.heard = []
        for number in range(rng.randint(1, 4)):
            self.heard += self._caller(f"caller-{number}", Random(rng.random()), more)
        self.heard.sort(key=lambda each: each[0])

    def _caller(self, name, rng, more):
        now, load = self.begin + rng.uniform(0, 5), 0
        end = self.end if rng.random() < 0.7 else rng.uniform(self.begin, self.end)
        lost, late = rng.choice([0, 0.1, 0.3]), rng.choice([0.01, 0.5, 3])
        while now < end:
            if rng.random() < 0.2:
                load = rng.choice([0, 0, 1, rng.randint(0, 10), rng.randint(0, 60)])
            extra = more(rng) if more else 0
            for _ in range(rng.choice([1, 1, 1, 2])):
                at = now + rng.uniform(0, late)
                if rng.random() >= lost and at < self.end:
                    waiting = (load + extra) // 2
                    ongoing = load + extra - waiting
                    opened = (ongoing * 2, ongoing + 1) if self.websocket else (0, 0)
                    yield at, Report(name, now, waiting, ongoing, *opened)
            now += rng.choice([0.2, 1.0, 1.0, 2.5])

    def autoscaler(self):
        return Autoscaler(self.config, self.first, self.begin, self.websocket, self.stream)


def random_config(rng):
    least = rng.choice([0, 0, 1, 3])
    up, down = rng.choice([0, 0.5, 2, 7]), rng.choice([0, 1, 10, 40])
    return AutoscalingConfig(
        min_replicas=least,
        max_replicas=least + rng.choice([1, 4, 30]),
        target_ongoing_requests=rng.choice([0.5, 0.7, 1, 2, 8.5]),
        look_back_period_s=rng.choice([0.1, 1, 5, 12.5]),
        upscale_delay_s=up,
        downscale_delay_s=down,
        downscale_to_zero_delay_s=rng.choice([None, 0, 3, 50]),
        upscaling_factor=rng.choice([1, 1, 0.5, 0.1]) if up else 1,
        downscaling_factor=rng.choice([1, 1, 0.5, 0.1]) if down else 1,
    )


def in_time(autoscaler, begin, end, decided):
    """Ask as often as it is due from `begin` on and before `end`; what comes of it goes to `decided`."""
    decision = autoscaler.decide(begin)
    decided(begin, decision)
    asked = 0
    while decision.due is not None and decision.due < end:
        assert decision.due > begin
        begin = decision.due
        decision = autoscaler.decide(begin)
        decided(begin, decision)
        asked += 1
        assert asked < 5_000, "it is always due again"


def play(world, decided, *, rng=None):
    """All that happens in a world; with `rng`, somebody asks now and then for no reason."""
    autoscaler, now = world.autoscaler(), world.begin
    for at, each in [*world.heard, (world.end, None)]:
        if rng is not None:
            for moment in sorted(rng.uniform(now, at) for _ in range(rng.randint(0, 3))):
                in_time(autoscaler, now, moment, decided)
                now = moment
                decided(now, autoscaler.decide(now))
        in_time(autoscaler, now, at, decided)
        if each is not None:
            autoscaler.add_report(each, at)
        now = at
    decided(now, autoscaler.decide(now))
    return autoscaler


def trace(world, **how):
    """Every change of the target: when, and to what."""
    changes = [(world.begin, world.first)]

    def decided(at, decision):
        if decision.target != changes[-1][1]:
            changes.append((at, decision.target))

    play(world, decided, **how)
    return changes


class Account:
    """All that was ever heard, and the definitions as they are written down: slow, and without a memory."""

    def __init__(self, world):
        self.config = world.config
        self.seen_at = world.begin + FORGOTTEN_S + world.config.look_back_period_s
        self.loads = [(world.begin, 0)]
        newest = {}
        events = sorted({at for at, _ in world.heard} | {self._ends_at(each) for _, each in world.heard})
        heard = iter([*world.heard, (inf, None)])
        at, each = next(heard)
        for now in events:
            while at <= now:
                if each.source not in newest or each.at >= newest[each.source].at:
                    newest[each.source] = each
                at, each = next(heard)
            alive = [r for r in newest.values() if self._ends_at(r) > now]
            opened = sum(r.websockets * world.websocket + r.streams * world.stream for r in alive)
            self.loads.append((now, opened + sum(r.waiting + r.ongoing for r in alive)))

        # The area up to each of these moments.
        self.areas = [0]
        for (since, load), (until, _) in pairwise(self.loads):
            self.areas.append(self.areas[-1] + load * (until - since))

    def _ends_at(self, report):
        return ceil((report.at + FORGOTTEN_S) / TICK_S) * TICK_S

    def load(self, now):
        return self.loads[self._last(now)][1]

    def average(self, now):
        tick = floor(now / TICK_S) * TICK_S
        span = ceil(self.config.look_back_period_s / TICK_S) * TICK_S
        return (self._area(tick) - self._area(tick - span)) / span

    def _last(self, now):
        return bisect_right(self.loads, now, key=lambda change: change[0]) - 1

    def _area(self, now):
        last = self._last(now)
        if last < 0:
            return 0
        since, load = self.loads[last]
        return self.areas[last] + load * (now - since)

    def needed(self, now):
        needed = ceil(round(self.average(now) / self.config.target_ongoing_requests, 6))
        needed = max(needed, 1 if self.load(now) else 0)
        return min(max(needed, self.config.min_replicas), self.config.max_replicas)


@WORLDS
@given(seed=SEEDS)
def test_decisions_follow_the_definitions_in_any_world(seed):
    world = World(seed, seconds=60)
    account = Account(world)

    def decided(at, decision):
        assert decision.load == pytest.approx(account.load(at))
        assert decision.average == pytest.approx(account.average(at), abs=1e-6)
        assert decision.needed == account.needed(at)

    play(world, decided, rng=Random(seed))


@WORLDS
@example(seed=2199)  # with no delay at all the last ones go together
@given(seed=SEEDS)
def test_in_any_world_a_target_changes_for_a_reason_and_whenever_there_is_one(seed):
    world = World(seed, seconds=60)
    config, account = world.config, Account(world)
    changes = trace(world)
    first = ceil(world.begin / TICK_S)
    ticks = [tick * TICK_S for tick in range(first, first + 239)]
    needed = [account.needed(at) for at in ticks]

    def throughout(at, delay):
        """What was needed at each tick of a delay."""
        last, ticks = floor(at / TICK_S) - first, ceil(delay / TICK_S)
        return needed[max(last - ticks, 0) : last + 1]

    def target(at):
        return next(number for when, number in reversed(changes) if when <= at)

    for (before, old), (at, new) in pairwise(changes):
        assert before <= at
        assert config.min_replicas <= new <= config.max_replicas
        if new > old:
            assert (old, new) == (0, 1) or min(throughout(at, config.upscale_delay_s)) >= new
            assert (old, new) == (0, 1) or at - world.begin >= config.upscale_delay_s
        else:
            to_zero = config.downscale_to_zero_delay_s
            delay = config.downscale_delay_s if new or to_zero is None else to_zero
            if new == 0:
                assert old == 1 or not delay
                assert at - before >= delay - SOON
            assert at - delay >= account.seen_at
            assert max(throughout(at, delay)) <= new
    if config.upscaling_factor == config.downscaling_factor == 1:
        for at in ticks:
            if at - world.begin > config.upscale_delay_s:
                assert target(at) >= min(throughout(at, config.upscale_delay_s))
            if at - config.downscale_delay_s > account.seen_at + TICK_S:
                assert target(at) <= max(*throughout(at, config.downscale_delay_s), 1)


@WORLDS
@given(seed=SEEDS)
def test_in_any_world_to_ask_more_often_changes_nothing(seed):
    world = World(seed)
    changes = trace(world)
    assert trace(world, rng=Random(seed)) == changes
    assert trace(world, rng=Random(seed + 1)) == changes


@WORLDS
@given(seed=SEEDS, extra=st.sampled_from([lambda rng: 1, lambda rng: 7, lambda rng: 100]))
def test_more_load_never_has_fewer_replicas(seed, extra):
    less, more = World(seed), World(seed, more=extra)
    assert more.websocket == less.websocket
    more.config, more.first = less.config, min(less.first + seed % 3, less.config.max_replicas)
    assert [at for at, _ in less.heard] == [at for at, _ in more.heard]
    fewer, others = trace(less), trace(more)
    for at in sorted({at for at, _ in fewer + others}):
        here = next(target for when, target in reversed(fewer) if when <= at)
        assert next(target for when, target in reversed(others) if when <= at) >= here


@WORLDS
@given(seed=SEEDS, load=st.integers(0, 80))
def test_after_any_world_a_constant_load_settles_at_the_right_number_for_good(seed, load):
    world = World(seed)
    config = world.config
    autoscaler, now = play(world, lambda at, decision: None), world.end
    right = ceil(round(load / config.target_ongoing_requests, 6))
    right = min(max(right, config.min_replicas), config.max_replicas)
    # A factor brings each delay at least one replica, or its share of the way.
    rounds = 1 if config.upscaling_factor == config.downscaling_factor == 1 else 45
    to_zero = config.downscale_to_zero_delay_s or 0
    settled = now + FORGOTTEN_S * 2 + config.look_back_period_s * 2 + 10
    settled += rounds * (config.upscale_delay_s + config.downscale_delay_s) + config.downscale_delay_s + to_zero
    targets = []
    while now < settled + 100:
        autoscaler.add_report(Report("steady", now, load, 0), now)
        in_time(autoscaler, now, now + 4, lambda at, decision: targets.append((at, decision.target)))
        now += 4
    assert {target for at, target in targets if at >= settled} == {right}


@WORLDS
@given(seed=SEEDS)
def test_after_any_world_silence_ends_and_nothing_is_due_any_more(seed):
    world = World(seed)
    autoscaler = play(world, lambda at, decision: None)
    in_time(autoscaler, world.end, inf, lambda at, decision: None)
    decision = autoscaler.decide(world.end + 100_000)
    assert (decision.load, decision.average, decision.due) == (0, 0, None)
    assert decision.target == decision.needed == world.config.min_replicas


def kept(autoscaler):
    """Return the size of its state in bytes."""
    stored = io.BytesIO()
    pickler = pickle.Pickler(stored)
    pickler.fast = True  # otherwise the size depends on which equal values are the same object
    pickler.dump(autoscaler)
    return len(stored.getvalue())


@settings(WORLDS, max_examples=5)
@given(seed=SEEDS)
def test_state_of_the_autoscaler_does_not_grow_with_past_loads(seed):
    world = World(seed, seconds=30)
    autoscaler, calm = Autoscaler(world.config, world.first, 0.0, world.websocket, world.stream), 4_096
    sizes = []
    for begin in range(2**17, 2**17 + 4 * calm, calm):  # moments that are written with as many bytes
        now = begin
        sizes.append([])
        for at, each in world.heard:
            at += begin - world.begin
            in_time(autoscaler, now, at, lambda at, decision: None)
            autoscaler.add_report(replace(each, at=each.at + begin - world.begin), at)
            sizes[-1].append(kept(autoscaler))
            now = at
        in_time(autoscaler, now, begin + calm, lambda at, decision: None)
    assert all(size == sizes[1] for size in sizes[2:])


def test_state_of_a_long_delay_is_bounded_by_max_replicas():
    world = Steady(config(upscale_delay_s=3_600, downscale_delay_s=3_600), now=2**17)
    sizes = []
    for swing in range(300):
        world.run(load=swing % 2 * 40, seconds=4)
        sizes.append(kept(world.autoscaler))
    assert max(sizes) < sizes[10] + world.autoscaler.config.max_replicas * 16


# The options by default


@WORLDS
@given(target=st.integers(1, 10), stepped_at=st.floats(20, 23))
def test_after_a_step_from_one_client_to_forty_the_defaults_ask_for_more_within_two_seconds(target, stepped_at):
    autoscaler = Autoscaler(AutoscalingConfig(target_ongoing_requests=target), 1, 0.0)
    last, changes = LastReport(), []
    for look in range(round(40 / LOAD_CHECK_S)):
        now = look * LOAD_CHECK_S
        loads = {"shop/chat": (0, 1 if now < stepped_at else 40, 0, 0)}
        if news := loads_to_report(last, loads, now):
            last = LastReport(news, now)
            autoscaler.add_report(Report("proxy", now, *news["shop/chat"]), now)
        in_time(autoscaler, now, now + LOAD_CHECK_S, lambda at, decision: changes.append((at, decision.target)))
    asked_at = {number: next(at for at, target in changes if target >= number) for number in (2, ceil(40 / target))}
    assert stepped_at < asked_at[2] < stepped_at + 2
    right = ceil(40 / target)
    assert asked_at[right] < stepped_at + 5 + 0.5 + LOAD_CHECK_S
    assert changes[-1][1] == max(asked_at) == right


def test_caller_that_is_gone_is_forgotten_at_once():
    scaler = Autoscaler(config(), 1, 0.0)
    scaler.add_report(Report("one", 1.0, 2, 4), 1.0)
    scaler.add_report(Report("other", 1.0, 0, 3), 1.0)
    scaler.forget("nobody", 1.0)
    assert scaler.decide(1.0).load == 9
    scaler.forget("one", 1.0)
    assert scaler.decide(1.0).load == 3
    scaler.add_report(Report("one", 1.0, 0, 1), 1.0)
    assert scaler.decide(1.0).load == 4, "a process that comes back is another one"
