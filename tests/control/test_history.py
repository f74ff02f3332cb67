"""The history over operations in any order, and where a rollback leads."""

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import ClassConfig, ClassSpec
from app_toolkit.control.application import rollback_target
from app_toolkit.control.history import unscaled
from app_toolkit.control.operations import AddCandidate, Deploy, Scale
from app_toolkit.control.promotion import Promote
from app_toolkit.control.revisions import revisions
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.weights import SetTraffic
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.control.specs import application
from tests.control.test_operations import available, instance, newer, perform


def keeping(number, cpus):
    return newer(cpus).model_copy(update={"keep_revisions": number})


def rows(state):
    return [(row.number, row.changes, row.state.value) for row in revisions(state.applications["shop"])]


SPECS = st.builds(keeping, st.integers(1, 3), st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]))
OPERATIONS = st.one_of(
    st.builds(Deploy, SPECS),
    st.builds(AddCandidate, SPECS, share=st.sampled_from([0.0, 0.5]), tag=st.sampled_from([None, "a"])),
    st.builds(SetTraffic, st.just("shop"), st.dictionaries(st.integers(1, 6), st.sampled_from([0, 1]), max_size=3)),
    st.builds(Promote, st.just("shop")),
    st.builds(Rollback, st.just("shop"), to=st.none() | st.integers(1, 9)),
    st.builds(Scale, st.just("shop/web"), st.integers(1, 3)),
)


@given(st.lists(st.tuples(OPERATIONS, st.booleans()), max_size=12))
def test_a_rollback_gives_each_spec_that_is_kept_and_no_more_are_kept_than_chosen(steps):
    state, specs = instance(Deploy(application()), now=100.0), {1: application()}
    for operation, settles in steps:
        state = replace(state, now=state.now + 1)
        try:
            change = operation.apply(state)
        except (ConfigError, RevisionConflict):
            continue
        state = state.after(change)
        shop = state.applications["shop"]
        if isinstance(operation, Rollback):
            assert operation.to in (None, change.result.to)
            assert shop.main.desired.spec == specs[change.result.to]
        state = available(state) if settles else state
        shop = state.applications["shop"]
        for number, spec in (*shop.history, *(live.desired for live in shop.live)):
            assert specs.setdefault(number, spec) == spec, "a number is that of one spec"
        stable = shop.main.stable
        assert len(shop.history) <= stable.spec.keep_revisions
        different = [unscaled(stable.spec), *(unscaled(spec) for _, spec in shop.history)]
        assert all(spec not in different[:position] for position, spec in enumerate(different))
        for number, spec in shop.history:
            assert Rollback("shop", to=number).apply(state).put[0].main.desired.spec == spec
        assert {row.number for row in revisions(shop)} == set(shop.since)
        assert all(100 <= since <= state.now for since in shop.since.values())


@given(st.lists(SPECS, min_size=1, max_size=4), st.lists(st.integers(1, 3), max_size=4))
def test_scalings_remove_no_earlier_code(specs, numbers):
    before = instance(*map(Deploy, specs))
    after = reduce(perform, (Scale("shop/web", number) for number in numbers), before)
    assert after.applications["shop"].history == before.applications["shop"].history
    target = rollback_target(before.applications["shop"])
    assert rollback_target(after.applications["shop"]) == target
    scaling = before.after(Scale("shop/web", 3).apply(before)).applications["shop"]
    assert rollback_target(scaling) == target, "nor does one that goes on"


def test_the_history_shows_what_changed_and_which_revision_runs():
    state = instance(Deploy(application()), Deploy(newer(0.2, num_replicas=2)), Deploy(newer(0.5)))
    state = perform(state, AddCandidate(newer(0.7), tag="preview"))
    scaled = "web restarted (num_replicas 1 -> 2, resources.num_cpus 0.1 -> 0.2)"
    restarted = "web restarted (num_replicas 2 -> 1, resources.num_cpus 0.2 -> 0.5)"
    live = (4, "web restarted (resources.num_cpus 0.5 -> 0.7)", "live")
    assert rows(state) == [(1, "new", "earlier"), (2, scaled, "earlier"), (3, restarted, "runs"), live]
    assert [number for number, *_ in rows(perform(state, Promote("shop")))] == [1, 2, 3, 4]
    state = state.after(Rollback("shop", to=2).apply(state))
    back = (5, "web restarted (num_replicas 1 -> 2, resources.num_cpus 0.5 -> 0.2)", "starts")
    assert rows(state)[-2] == back
    assert Rollback("shop", 3, to=2).apply(state).result.revision == 5, "the client repeats a request"
    shop = available(state).applications["shop"]
    assert [row.changes for row in revisions(shop)][:2] == ["new", "web restarted (resources.num_cpus 0.1 -> 0.5)"]
    failed = state.applications["shop"].main.but(failure="no module", outgoing=None)
    state = replace(state, applications={"shop": state.applications["shop"].replaced(failed)})
    assert [row[2] for row in rows(state)] == ["earlier", "earlier", "runs", "failed", "live"]


def test_a_promoted_revision_has_the_time_of_its_promotion():
    state = perform(instance(Deploy(application()), now=100.0), AddCandidate(newer(0.5), tag="preview"))
    state = perform(replace(state, now=160.0), Promote("shop"))
    assert state.applications["shop"].since == {1: 100.0, 2: 160.0}


def test_a_revision_that_is_not_kept_is_named_with_those_that_are():
    state = instance(*(Deploy(keeping(2, cpus)) for cpus in (0.1, 0.2, 0.3, 0.4)))
    assert rows(state)[0] == (2, None, "earlier"), "the revision before it is not kept"
    with pytest.raises(ConfigError, match=r"^revision 1 of .* 'shop' is not kept; a rollback can return to 2, 3$"):
        Rollback("shop", to=1).apply(state)
    with pytest.raises(ConfigError, match=r"^revision 4 of .* is the current one; a rollback can return to 2, 3$"):
        Rollback("shop", to=4).apply(state)
    with pytest.raises(ConfigError, match=r"^revision 7 of .* is not kept; there is no earlier one to return to$"):
        Rollback("shop", to=7).apply(instance(Deploy(application())))


def test_the_history_shows_no_secret():
    def keyed(key):
        model = ClassSpec(config=ClassConfig(name="model", user_config={"api_key": key}))
        return application().model_copy(update={"deployments": (*application().deployments, model)})

    state = instance(Deploy(keyed("one s3cret")), Deploy(keyed("another s3cret")))
    assert rows(state)[1] == (2, "model reconfigured (user_config changed)", "runs")
    assert "s3cret" not in repr(revisions(state.applications["shop"]))
