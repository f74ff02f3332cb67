"""The changes that the controller makes by itself, on plain values."""

from dataclasses import replace

import pytest

from app_toolkit.config.models import ClassConfig, ClassSpec
from app_toolkit.contract.compared import Requests
from app_toolkit.control.application_specs import replica_set_specs
from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.canary_analysis import Decision
from app_toolkit.control.change import ChangeEvent, State
from app_toolkit.control.operations import AddCandidate, Delete, Deploy
from app_toolkit.control.progress import advanced, ended, release_continued, retired
from app_toolkit.control.promotion import Promote
from app_toolkit.control.replica_set import specified
from app_toolkit.control.weights import SetTraffic
from tests.control.specs import application
from tests.control.test_operations import LIVE, SHOP, instance, newer, perform, shares
from tests.keys import app

RELEASED = instance(Deploy(application()), AddCandidate(newer(0.5), tag="a"), BeginRelease("shop", steps=[1, 100]))


def decided(state, action, release=None):
    release = release or state.applications["shop"].canary
    return release_continued(state, "shop", release, Decision(action, "the guards hold"), Requests())


def test_a_release_goes_on_returns_or_is_promoted():
    assert shares(RELEASED.after(decided(RELEASED, "advance"))) == {2: 1.0}
    assert shares(RELEASED.after(decided(RELEASED, "return"))) == {}
    finished = decided(RELEASED, "finish")
    assert [event.name for event in finished.events] == ["Promoted"]
    assert RELEASED.after(finished).applications["shop"].main.number == 2


@pytest.mark.parametrize("action", ["advance", "return", "finish"])
def test_a_release_that_was_paused_meanwhile_does_not_go_on(action):
    paused = perform(RELEASED, PauseRelease("shop", paused=True))
    assert not decided(paused, action, RELEASED.applications["shop"].canary).put


def settled(state):
    """Return what the controller does once the candidate is available. It has a target of 0."""
    desired = replica_set_specs(app("shop@2"), state.applications["shop"].candidate(2).active, spread=False)
    specs = {key: replace(spec, target=0) for key, spec in desired.items()}
    return advanced(state, app("shop@2"), specified({}, specs, starts=0))


@pytest.mark.parametrize(
    "traffic", [[AddCandidate(newer(0.5), share=1.0)], [AddCandidate(newer(0.5)), SetTraffic("shop", {2: 100})]]
)
def test_a_revision_that_waits_for_all_requests_is_promoted_once_it_is_available(traffic):
    state = SHOP
    for operation in traffic:
        state = state.after(operation.apply(state))
    change = settled(state)
    assert [event.name for event in change.events] == ["Available", "Promoted"]
    after = state.after(change).applications["shop"]
    assert (after.main.number, [live.number for live in after.removed]) == (2, [1])


def test_a_revision_that_lacks_what_others_call_is_not_promoted_by_itself():
    state = instance(Deploy(application(model=True)))
    state = state.after(AddCandidate(newer(0.5), share=1.0).apply(state))
    change = settled(replace(state, callers=lambda called: {"blog"}))
    why = "'shop/model' cannot be deleted: it is called by blog"
    assert change.events[-1] == ChangeEvent("shop", "PromotionRefused", why)
    assert shares(state.after(change)) == {2: 1.0}


def test_a_revision_is_not_promoted_by_itself_if_others_get_requests_or_its_release_goes_on():
    state = SHOP.after(AddCandidate(newer(0.5), share=0.9).apply(SHOP))
    released = state.after(BeginRelease("shop", 2, [100]).apply(state))
    for before in (state, released):
        assert [event.name for event in settled(before).events] == ["Available"]


def test_the_ingresses_of_a_removed_candidate_drain_before_its_other_deployments_are_deleted():
    spec = newer(0.5)
    spec = spec.model_copy(update={"deployments": (*spec.deployments, ClassSpec(config=ClassConfig(name="model")))})
    live = instance(Deploy(application()), AddCandidate(spec, tag="a"))
    assert not retired(live, app("shop@2")).put, "it is not removed"
    state = perform(live, Delete("shop", 2))
    change = retired(state, app("shop@2"))
    assert change.result == spec.deployments[0].config.graceful_shutdown_timeout_s
    assert [deployment.config.name for deployment in change.put[0].removed[0].spec.deployments] == ["model"]
    last = retired(state.after(change), app("shop@2"))
    assert (last.result, [event.name for event in last.events]) == (None, ["RevisionDeleted"])
    gone = state.after(change).after(last)
    assert gone.applications["shop"].removed == ()
    assert not retired(gone, app("shop@2")).put


def test_the_former_main_revision_is_deleted_in_the_same_way():
    state = perform(LIVE, Promote("shop"))
    assert not retired(state, app("shop@2")).put
    assert not state.after(retired(state, app("shop"))).applications["shop"].removed


def test_the_applications_of_an_expired_lease_are_deleted():
    assert ended(LIVE, ["blog", "shop"]).deleted == ("shop",)
    assert ended(State(), ["shop"]).deleted == (), "the controller before has deleted it"
