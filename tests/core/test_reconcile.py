"""The control plane as arithmetic: no clock, no sleep; a thousand ways to be wrong at every step."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from worlds import World, group_spec

WORLDS = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def another_spec(rng):
    if rng.random() < 0.15:
        return None
    return group_spec(rng.choice(["v1", "v2", "v3"]), rng.randint(0, 5), surge=rng.randint(1, 2))


@WORLDS
@given(seed=st.integers(0, 2**32))
def test_in_any_world_every_step_is_safe_and_calm_brings_exactly_the_spec(seed):
    world = World(seed, group_spec())
    for _ in range(120):
        if world.chance(0.05):
            world.spec = another_spec(world.rng)
        if world.chance(0.03):
            world.full = not world.full
        world.step()
    world.settle()


@settings(WORLDS, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_two_proxies_never_share_a_port(seed):
    world = World(seed, group_spec(target=1, surge=0, routed=False))
    for _ in range(120):
        if world.chance(0.05):
            revision, target = world.rng.choice(["v1", "v2"]), world.rng.choice([0, 1, 1])
            world.spec = group_spec(revision, target, surge=0, routed=False)
        world.step()
    world.settle()


class Worlds(RuleBasedStateMachine):
    """The same world in small steps, so that a failure shrinks to its few that matter."""

    def __init__(self):
        super().__init__()
        self.world = World(0, group_spec(target=2))
        self.world.chance = lambda probability: False

    @rule(number=st.integers(0, 3), revision=st.sampled_from(["v1", "v2"]))
    def the_spec_changes(self, number, revision):
        self.world.spec = group_spec(revision, number)

    @rule()
    def the_application_vanishes(self):
        self.world.spec = None

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 21.0]))
    def time_passes(self, seconds):
        self.world.now += seconds
        self.world.tick()

    @rule()
    def everyone_does_something(self):
        self.world.live()
        self.world.tick()

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def one_dies(self, data):
        self.world.end(data.draw(st.sampled_from(sorted(self.world.processes))), "killed")

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def one_hangs(self, data):
        id = data.draw(st.sampled_from(sorted(self.world.processes)))
        self.world.processes[id].hangs = True

    @precondition(lambda self: self.world.mail)
    @rule(data=st.data())
    def a_letter_is_lost(self, data):
        del self.world.mail[data.draw(st.integers(0, len(self.world.mail) - 1))]

    @rule()
    def the_controller_restarts(self):
        self.world.restart()

    @rule()
    def the_controller_acts_and_restarts(self):
        self.world.tick(then_restart=True)

    @rule(full=st.booleans())
    def the_cluster_fills_or_empties(self, full):
        self.world.full = full

    def teardown(self):
        self.world.settle(steps=250)


def test_no_few_steps_lead_to_a_wrong_one():
    run_state_machine_as_test(Worlds, settings=settings(WORLDS, max_examples=60, stateful_step_count=25))
