"""From one version to the next, and back: in worlds in which everything goes wrong, also the controller."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.config.models import ApplicationSpec, ClassConfig, ClassSpec, DeploymentConfig, IngressSpec, Route
from app_toolkit.core.applications import replica_set_keys, replica_set_specs
from app_toolkit.core.partial import taken_over
from app_toolkit.core.reconcile import ReplicaSetRecord, Start
from app_toolkit.core.replica_sets import ReplicaSet, specified
from app_toolkit.core.replica_state import Phase, ReplicaRecord, Unplaceable
from app_toolkit.core.restarts import Failure
from app_toolkit.core.rollout import Rollout, applied, rollback_target, step
from app_toolkit.types import ReplicaId
from tests.core.test_reconcile import WORLDS
from tests.core.worlds import World
from tests.keys import key


def revision(number, *, web=2, chat=None, model=None, limit=100, prefix="/", **options):
    """The application in its version of that number, with so many replicas of each; None: not there."""
    options = {
        "startup_timeout_s": 20.0,
        "graceful_shutdown_timeout_s": 5.0,
        "health_check_period_s": 3.0,
        "health_check_timeout_s": 2.0,
        **options,
    }
    ingresses = {"web": web} | ({} if chat is None else {"chat": chat})
    classes = {} if model is None else {"model": model}
    return ApplicationSpec(
        name="shop",
        target=f"shop:v{number}",
        app_dir="/srv",
        route_prefix=prefix,
        default="web",
        deployments=(
            *(
                IngressSpec(
                    config=DeploymentConfig(name=name, num_replicas=replicas, max_ongoing_requests=limit, **options)
                )
                for name, replicas in ingresses.items()
            ),
            *(
                ClassSpec(config=ClassConfig(name=name, num_replicas=replicas, **options))
                for name, replicas in classes.items()
            ),
        ),
        routes=tuple(
            Route(kind="http", pattern=f"^/{name}$", methods=("GET",), path=f"/{name}", owner=name)
            for name in ingresses
        ),
    )


class SimulatedApplication:
    """One application, a world for each of its replica sets, and a store: what a controller does with all of them."""

    def __init__(self, seed):
        self.seed = seed
        self.worlds = {}
        self.replica_sets = {}
        self.rollout = None
        self.stored = ""
        self.bad = {}
        self.now, self.epoch = 100.0, 1
        self.calm = False

    def apply(self, spec):
        self.keep(applied(self.rollout, spec))
        self.lift(spec)

    def keep(self, rollout):
        self.rollout, self.stored = rollout, rollout.model_dump_json()
        desired = replica_set_specs(rollout.active, spread=False)
        for name in desired.keys() - self.worlds.keys():
            world = self.worlds[name] = World(f"{self.seed}{name}", desired[name], name)
            world.now, world.epoch, world.calm, world.bad = self.now, self.epoch, self.calm, self.bad
            self.replica_sets[name] = ReplicaSet(world.record)
        self.hear()
        self.replica_sets = specified(self.replica_sets, desired, starts=0)
        for name, replica_set in self.replica_sets.items():
            self.worlds[name].spec = replica_set.spec

    def hear(self):
        self.replica_sets = {
            name: replace(replica_set, record=self.worlds[name].record)
            for name, replica_set in self.replica_sets.items()
        }

    def lift(self, spec):
        for name in replica_set_keys(spec):
            world = self.worlds[name]
            world.record = replace(world.record, failures=())
        self.hear()

    def restart(self):
        """Only what is in the store is known to the next controller, and who it finds."""
        self.epoch += 1
        for world in self.worlds.values():
            world.restart()
        self.replica_sets = {name: ReplicaSet(world.record) for name, world in self.worlds.items()}
        self.keep(Rollout.model_validate_json(self.stored))

    def step(self, rng):
        self.now += rng.choice([0.1, 0.5, 1.0, 2.0])
        for world in self.worlds.values():
            world.now, world.calm = self.now, self.calm
            world.live()
            world.deliver()
        self.hear()
        self.go_on(rng)
        for world in self.worlds.values():
            actions = world.tick()
            assert not self.tried_again(actions), "a version that was given up was started again"
        self.check_routes()
        if not self.calm and rng.random() < 0.03:
            self.restart()

    def go_on(self, rng):
        before = self.rollout
        after = step(before, self.replica_sets)
        again = step(step(after, self.replica_sets), self.replica_sets)
        assert step(again, self.replica_sets) is again, "it comes to an end"
        if after is before:
            return
        if not self.calm and rng.random() < 0.1:
            self.restart()  # before it was written
            return
        if after.published.routes != before.published.routes:
            self.check_flip(after)
        self.keep(after)
        if after.failure != before.failure:
            self.lift(after.current)
        if not self.calm and rng.random() < 0.1:
            self.restart()  # once it was written, and before anything is done about it

    def tried_again(self, actions):
        """Only what was found of it after a restart may still be there."""
        rollout = self.rollout
        if rollout.failure is None or rollout.stable == rollout.desired:
            return []
        desired, stable = (replica_set_specs([spec], spread=False) for spec in (rollout.desired, rollout.stable))
        bad = {spec.template_hash for spec in desired.values()} - {spec.template_hash for spec in stable.values()}
        return [
            action
            for action in actions
            if isinstance(action, Start) and action.template_hash in bad and action.replica_set in stable
        ]

    def check_flip(self, after):
        for name in after.published.ingresses:
            replicas = self.replica_sets[key(f"shop/{name}")].record.replicas
            mine = [
                r
                for r in replicas
                if r.template_hash == after.published.template_hash(name) and r.phase is Phase.RUNNING
            ]
            assert mine, f"callers knew of {name} before anybody served there"

    def check_routes(self):
        for name in self.rollout.published.ingresses:
            assert self.replica_sets[key(f"shop/{name}")].desired, f"{name} is on its way out, and it is published"

    def settle(self, rng, steps=260):
        self.calm = True
        for _ in range(steps):
            self.step(rng)
        rollout = self.rollout
        current = replica_set_specs([rollout.current], spread=False)
        for name, world in self.worlds.items():
            spec = current.get(name)
            there = {(process.template_hash, process.state) for process in world.processes.values()}
            assert len(world.processes) == (0 if spec is None else spec.target), world.event_log[-20:]
            assert there == (set() if spec is None else {(spec.template_hash, "running")}), world.event_log[-20:]
        assert (rollout.is_settled, rollout.published) == (True, rollout.current)
        return rollout


def another_revision(rng, numbers, last):
    if rng.random() < 0.4:  # nothing that needs a restart
        config = {"limit": rng.choice([10, 100]), "web": rng.randint(1, 4)}
        return revision(*last[:1], **{**last[1], **config}), (last[0], {**last[1], **config})
    waves = rng.choice([{}, {"max_surge": 2}, {"max_surge": 0, "max_unavailable": 1}, {"max_unavailable": "50%"}])
    options = {"web": rng.randint(1, 4), "chat": rng.choice([None, 1, 3]), "model": rng.choice([None, 2]), **waves}
    number = next(numbers)
    return revision(number, **options), (number, options)


@settings(WORLDS, max_examples=4)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from([None, "raises", "hangs", "unwell", "dies"]))
def test_good_revision_runs_and_bad_revision_is_rolled_back_in_any_world(seed, kind):
    rng, numbers = random.Random(seed), itertools.count(1)
    simulated = SimulatedApplication(rng.random())
    spec, last = another_revision(rng, numbers, (0, {}))
    simulated.apply(spec)
    for _ in range(100):
        if rng.random() < 0.08:
            spec, last = another_revision(rng, numbers, last)
            if rng.random() < 0.4:  # of that version some deployments alone
                there = simulated.rollout.current
                names = rng.sample(sorted({*replica_set_keys(there), *replica_set_keys(spec)}), k=1)
                spec = taken_over(there, spec, {name.deployment for name in names})
            if rng.random() < 0.4:
                simulated.bad[spec.template_hash(rng.choice(spec.deployments).config.name)] = rng.choice(
                    ["raises", "hangs", "unwell", "dies"]
                )
            simulated.apply(spec)
        simulated.step(rng)
    # Whatever has come of that: a revision that works, and then one that may fail.
    simulated.bad.clear()
    simulated.apply(revision(next(numbers), chat=1))
    settled = simulated.settle(rng)
    assert (settled.failure, settled.stable) == (None, settled.desired)
    new = revision(next(numbers), chat=1, model=1)
    if kind is not None:
        simulated.bad[new.template_hash(rng.choice(["web", "chat", "model"]))] = kind
    simulated.apply(new)
    last = simulated.settle(rng)
    if kind is None:
        assert (last.failure, last.current, last.previous_stable) == (None, new, settled.stable)
    else:
        assert last.current == settled.stable
        said = {"raises": "ImportError: bad raises", "hangs": "it was not ready after 20 s"}
        said |= {"unwell": "3 probes in a row", "dies": "RuntimeError: bad dies"}
        assert said[kind] in last.failure
    simulated.restart()
    assert simulated.settle(rng, steps=40).current == last.current


# By hand: what people ask about.

ONE, TWO = revision(1), revision(2)


def there(spec, *revisions, ready=True, failures=(), last_error=None, **facts):
    """Its replica sets, each with running replicas of these revisions: their version's number."""

    def record(name, replica_set):
        deployment = name.deployment
        replicas = tuple(
            ReplicaRecord(
                ReplicaId(f"{deployment}-1-{number}"),
                name,
                spec.model_copy(update={"target": f"shop:v{revision}"}).template_hash(deployment),
                Phase.RUNNING,
                since=0.0,
                live=replica_set.live,
                ready=ready,
                **facts,
            )
            for number, revision in enumerate(revisions)
        )
        return ReplicaSetRecord(name, replicas, failures=failures, last_error=last_error)

    return {
        name: ReplicaSet(record(name, replica_set), replica_set, desired=True)
        for name, replica_set in replica_set_specs([spec], spread=False).items()
    }


def whole(rollout, spec, number):
    return step(rollout, there(spec, *[number] * 2))


def test_the_first_revision_is_published_at_once_and_stable_when_it_is_up():
    first = applied(None, ONE)
    assert (first.revision, first.published, first.stable) == (1, ONE, None)
    assert step(first, there(ONE, 1)) is first, "one of two"
    up = step(first, there(ONE, 1, 1, ready=False))
    assert (up.stable, up.is_settled) == (ONE, True)


def test_the_next_revision_is_stable_only_once_it_was_well_and_nothing_old_is_there():
    update = applied(whole(applied(None, ONE), ONE, 1), TWO)
    assert (update.revision, update.current, update.is_settled) == (2, TWO, False)
    for not_yet in (
        there(TWO, 2),
        there(TWO, 2, 2, 1),
        there(TWO, 2, 2, ready=False),
        there(TWO, 2, 2, failed_probes=1),
    ):
        assert step(update, not_yet).stable == ONE
    done = step(update, there(TWO, 2, 2))
    assert (done.stable, done.previous_stable, done.outgoing, done.is_settled) == (TWO, ONE, None, True)


FAILURE = Failure(0.0, TWO.template_hash("web"), served=False)


@pytest.mark.parametrize(
    ("why", "failures", "fails"),
    [
        ("one death may be the machine's fault", [FAILURE], False),
        ("so may two", [FAILURE, replace(FAILURE, at=1.0)], False),
        ("three are not", [FAILURE, replace(FAILURE, at=1.0, served=True), replace(FAILURE, at=2.0)], True),
        ("who had its whole time is not tried again", [replace(FAILURE, never_ready=True)], True),
        (
            "what the old one did says nothing",
            [replace(FAILURE, template_hash=ONE.template_hash("web"), never_ready=True)],
            False,
        ),
    ],
)
def test_when_a_revision_fails(why, failures, fails):
    update = applied(whole(applied(None, ONE), ONE, 1), TWO)
    after = step(update, there(TWO, 1, 1, failures=tuple(failures), last_error="ValueError: no such model"))
    assert (after.failure is not None) == fails, why
    if fails:
        assert after.failure == "shop/web: ValueError: no such model"
        assert (after.current, after.desired, after.is_settled) == (ONE, TWO, False)
        back = whole(after, ONE, 1)
        assert (back.is_settled, back.stable, back.failure) == (True, ONE, after.failure)
        again = applied(back, TWO)
        assert (again.revision, again.failure, again.current) == (3, None, TWO), "until something is applied"


def test_the_first_revision_has_nothing_to_go_back_to():
    first = applied(None, TWO)
    assert step(first, there(TWO, failures=(replace(FAILURE, never_ready=True),))) is first


def test_waiting_for_resources_is_no_failure():
    update = applied(whole(applied(None, ONE), ONE, 1), TWO)
    replica_sets = there(TWO, 1, 1)
    web = replica_sets[key("shop/web")]
    waiting = ReplicaRecord(
        ReplicaId("r"),
        key("shop/web"),
        TWO.template_hash("web"),
        Phase.STARTING,
        0.0,
        unplaceable=Unplaceable(ReplicaId("r"), "", ""),
    )
    full = replace(web, record=replace(web.record, replicas=(*web.record.replicas, waiting)))
    assert step(update, {key("shop/web"): full}).failure is None


def test_outgoing_deployments_stay_while_requests_go_to_replicas_of_the_outgoing_revision():
    update = applied(whole(applied(None, ONE), ONE, 1), TWO)
    published = step(update, there(TWO, 2, 1))
    assert (published.published, published.outgoing) == (TWO, ONE)
    assert step(published, there(TWO, 2, 1)) is published
    assert step(published, there(TWO, 2)).outgoing is None


def test_revision_is_stable_once_its_replicas_have_applied_its_options():
    spec = revision(1, limit=10)
    update = applied(whole(applied(None, ONE), ONE, 1), spec)
    now, before = there(spec, 1, 1), there(ONE, 1, 1)
    assert step(update, {name: replace(each, record=before[name].record) for name, each in now.items()}).stable == ONE
    assert step(update, now).stable == spec


def test_a_change_of_numbers_is_never_taken_back():
    more = revision(1, web=3)
    update = applied(whole(applied(None, ONE), ONE, 1), more)
    failed = there(more, 1, 1, failures=(Failure(0.0, ONE.template_hash("web"), served=False, never_ready=True),))
    assert step(update, failed).failure is None
    assert step(update, there(more, 1, 1, 1)).stable == more


def test_one_goes_back_to_the_last_stable_revision_other_than_the_current_one():
    rollout = whole(applied(None, ONE), ONE, 1)
    assert rollback_target(rollout) is None
    update = applied(rollout, TWO)
    assert rollback_target(update) == ONE, "while it is under way"
    again = whole(applied(update, ONE), ONE, 1)
    assert (again.revision, again.stable, again.stable_revision, again.is_settled) == (3, ONE, 3, True)
    done = whole(update, TWO, 2)
    assert rollback_target(done) == ONE
    back = whole(applied(done, ONE), ONE, 1)
    assert (back.revision, rollback_target(back)) == (3, TWO), "and forth"


def test_each_revision_that_may_have_replicas_has_its_number():
    second = applied(whole(applied(None, ONE), ONE, 1), TWO)
    assert [second.number_of(spec) for spec in (ONE, TWO, revision(3))] == [1, 2, 0]
    failed = second.but(failure="it crashes", outgoing=None)
    assert [failed.number_of(spec) for spec in (failed.current, TWO)] == [1, 0]


def test_the_same_applied_again_only_counts():
    rollout = whole(applied(None, ONE), ONE, 1)
    again = applied(rollout, ONE)
    assert (again.revision, again.is_settled) == (2, True)
    assert again == rollout.but(revision=2, number_before=1)
