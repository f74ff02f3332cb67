"""From one version to the next, and back: in worlds in which everything goes wrong, also the controller."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.config.models import ApplicationSpec, ClassConfig, ClassSpec, DeploymentConfig, IngressSpec, Route
from app_toolkit.control.application import Application, after_step, applied, recorded, rollback_target
from app_toolkit.control.application_specs import Revision, replica_set_keys, replica_set_specs
from app_toolkit.control.backoff import Failure
from app_toolkit.control.reconcile import ReplicaSetRecord, Start
from app_toolkit.control.replica_set import ReplicaSet, specified
from app_toolkit.control.replica_state import Phase, ReplicaRecord, Unplaceable
from app_toolkit.types import ReplicaId
from tests.control.test_reconcile import WORLDS
from tests.control.worlds import World
from tests.keys import app, key

SHOP = app("shop")


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
        self.application = None
        self.stored = ""
        self.bad = {}
        self.now, self.epoch = 100.0, 1
        self.calm = False

    def apply(self, spec):
        self.keep(applied(self.application, spec))
        self.lift(spec)

    def keep(self, application):
        self.application, self.stored = application, application.model_dump_json()
        desired = replica_set_specs(SHOP, application.main.active, spread=False)
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
        for name in replica_set_keys(SHOP, spec):
            world = self.worlds[name]
            world.record = replace(world.record, failures=())
        self.hear()

    def restart(self):
        """Only what is in the store is known to the next controller, and who it finds."""
        self.epoch += 1
        for world in self.worlds.values():
            world.restart()
        self.replica_sets = {name: ReplicaSet(world.record) for name, world in self.worlds.items()}
        self.keep(Application.model_validate_json(self.stored))

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
        before = self.application
        after = step(before, self.replica_sets)
        again = step(step(after, self.replica_sets), self.replica_sets)
        assert step(again, self.replica_sets) is again, "it comes to an end"
        if after is before:
            return
        if not self.calm and rng.random() < 0.1:
            self.restart()  # before it was written
            return
        if after.main.published.spec.routes != before.main.published.spec.routes:
            self.check_flip(after)
        self.keep(after)
        if after.main.failure != before.main.failure:
            self.lift(after.main.spec)
        if not self.calm and rng.random() < 0.1:
            self.restart()  # once it was written, and before anything is done about it

    def tried_again(self, actions):
        """Only what was found of it after a restart may still be there."""
        main = self.application.main
        if main.failure is None or main.stable == main.desired:
            return []
        desired, stable = (replica_set_specs(SHOP, [each], spread=False) for each in (main.desired, main.stable))
        bad = {spec.template_hash for spec in desired.values()} - {spec.template_hash for spec in stable.values()}
        return [
            action
            for action in actions
            if isinstance(action, Start) and action.template_hash in bad and action.replica_set in stable
        ]

    def check_flip(self, after):
        for name in after.main.published.spec.ingresses:
            replicas = self.replica_sets[key(f"shop/{name}")].record.replicas
            mine = [
                r
                for r in replicas
                if r.template_hash == after.main.published.spec.template_hash(name) and r.phase is Phase.RUNNING
            ]
            assert mine, f"callers knew of {name} before anybody served there"

    def check_routes(self):
        for name in self.application.main.published.spec.ingresses:
            assert self.replica_sets[key(f"shop/{name}")].desired, f"{name} is on its way out, and it is published"

    def settle(self, rng, steps=260):
        self.calm = True
        for _ in range(steps):
            self.step(rng)
        main = self.application.main
        current = replica_set_specs(SHOP, [main.current], spread=False)
        for name, world in self.worlds.items():
            spec = current.get(name)
            there = {(process.template_hash, process.state) for process in world.processes.values()}
            assert len(world.processes) == (0 if spec is None else spec.target), world.event_log[-20:]
            assert there == (set() if spec is None else {(spec.template_hash, "running")}), world.event_log[-20:]
        assert (main.is_settled, main.published) == (True, main.current)
        return main


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
        assert (last.failure, last.spec) == (None, new)
        assert simulated.application.history[-1] == settled.stable
    else:
        assert last.current == settled.stable
        said = {"raises": "ImportError: bad raises", "hangs": "it was not ready after 20 s"}
        said |= {"unwell": "3 probes in a row", "dies": "RuntimeError: bad dies"}
        assert said[kind] in last.failure
    simulated.restart()
    assert simulated.settle(rng, steps=40).current == last.current


# By hand: what people ask about.

ONE, TWO = revision(1), revision(2)


def step(application, replica_sets):
    after = after_step(application, SHOP, replica_sets)
    return after if after is application else recorded(application, after, 0.0)


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
                reloadable=replica_set.reloadable,
                ready=ready,
                **facts,
            )
            for number, revision in enumerate(revisions)
        )
        return ReplicaSetRecord(name, replicas, failures=failures, last_error=last_error)

    return {
        name: ReplicaSet(record(name, replica_set), replica_set, desired=True)
        for name, replica_set in replica_set_specs(SHOP, [Revision(1, spec)], spread=False).items()
    }


def whole(application, spec, number):
    return step(application, there(spec, *[number] * 2))


def stable(application):
    return application.main.stable.spec


FIRST = whole(applied(None, ONE), ONE, 1)


def test_the_first_revision_is_published_at_once_and_stable_when_it_is_up():
    first = applied(None, ONE)
    assert (first.main.published, first.main.stable) == ((1, ONE), None)
    assert step(first, there(ONE, 1)) is first, "one of two"
    up = step(first, there(ONE, 1, 1, ready=False))
    assert (up.main.stable, up.main.is_settled) == ((1, ONE), True)


def test_the_next_revision_is_stable_only_once_it_was_well_and_nothing_old_is_there():
    update = applied(FIRST, TWO)
    assert (update.main.current, update.main.is_settled) == ((2, TWO), False)
    for not_yet in (
        there(TWO, 2),
        there(TWO, 2, 2, 1),
        there(TWO, 2, 2, ready=False),
        there(TWO, 2, 2, failed_probes=1),
    ):
        assert stable(step(update, not_yet)) == ONE
    done = step(update, there(TWO, 2, 2))
    assert (done.main.stable, done.history, done.main.outgoing, done.main.is_settled) == (
        (2, TWO),
        ((1, ONE),),
        None,
        True,
    )


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
    update = applied(FIRST, TWO)
    after = step(update, there(TWO, 1, 1, failures=tuple(failures), last_error="ValueError: no such model"))
    assert (after.main.failure is not None) == fails, why
    if fails:
        assert after.main.failure == "shop/web: ValueError: no such model"
        assert (after.main.current, after.main.desired, after.main.is_settled) == ((1, ONE), (2, TWO), False)
        back = whole(after, ONE, 1)
        assert (back.main.is_settled, stable(back), back.main.failure) == (True, ONE, after.main.failure)
        assert back.history == (), "what failed is no revision to return to"
        again = applied(back, TWO)
        assert (again.main.failure, again.main.current) == (None, (3, TWO)), "until something is applied"


def test_the_first_revision_has_nothing_to_go_back_to():
    first = applied(None, TWO)
    assert step(first, there(TWO, failures=(replace(FAILURE, never_ready=True),))) is first


def test_waiting_for_resources_is_no_failure():
    update = applied(FIRST, TWO)
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
    assert step(update, {key("shop/web"): full}).main.failure is None


def test_outgoing_deployments_stay_while_requests_go_to_replicas_of_the_outgoing_revision():
    update = applied(FIRST, TWO)
    published = step(update, there(TWO, 2, 1))
    assert (published.main.published, published.main.outgoing) == ((2, TWO), (1, ONE))
    assert step(published, there(TWO, 2, 1)) is published
    assert step(published, there(TWO, 2)).main.outgoing is None


def test_revision_is_stable_once_its_replicas_have_applied_its_options():
    spec = revision(1, limit=10)
    update = applied(FIRST, spec)
    now, before = there(spec, 1, 1), there(ONE, 1, 1)
    waiting = {name: replace(each, record=before[name].record) for name, each in now.items()}
    assert stable(step(update, waiting)) == ONE
    assert stable(step(update, now)) == spec


def test_a_change_of_numbers_is_never_taken_back():
    more = revision(1, web=3)
    update = applied(FIRST, more)
    failed = there(more, 1, 1, failures=(Failure(0.0, ONE.template_hash("web"), served=False, never_ready=True),))
    assert step(update, failed).main.failure is None
    assert stable(step(update, there(more, 1, 1, 1))) == more


def test_one_goes_back_to_the_last_stable_revision_other_than_the_current_one():
    assert rollback_target(FIRST) is None
    update = applied(FIRST, TWO)
    assert rollback_target(update) == (1, ONE), "while it is under way"
    again = whole(applied(update, ONE), ONE, 1)
    assert (again.main.stable, again.main.is_settled, again.history) == ((3, ONE), True, ())
    done = whole(update, TWO, 2)
    assert rollback_target(done) == (1, ONE)
    back = whole(applied(done, ONE), ONE, 1)
    assert (back.revision, rollback_target(back)) == (3, (2, TWO)), "and forth"


def test_the_history_has_each_of_the_last_revisions_once():
    application = FIRST
    for version in (2, 3, 2, 4, 5, 6):
        application = whole(applied(application, revision(version)), revision(version), version)
    assert application.main.stable == (7, revision(6))
    assert [spec.target for _, spec in application.history] == ["shop:v2", "shop:v4", "shop:v5"]
    fewer = revision(7).model_copy(update={"keep_revisions": 2})
    update = applied(application, fewer)
    assert len(update.history) == 3, "it may fail"
    assert [number for number, _ in whole(update, fewer, 7).history] == [6, 7]


def test_the_same_applied_again_only_counts():
    again = applied(FIRST, ONE)
    assert (again.revision, again.main.number, again.number_before, again.main.is_settled) == (2, 2, 1, True)
    assert (stable(again), again.history) == (ONE, ())
