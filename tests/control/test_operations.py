"""Operations, applied to plain values. The state is that of an instance whose revisions are available at once."""

import pickle
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.files import written
from app_toolkit.config.models import ClassConfig, ClassSpec, DeploymentConfig, HTTPOptions, IngressSpec, SplitSpec
from app_toolkit.control.application import Reverted
from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.operations import AddCandidate, Delete, Deploy, Listen, Scale
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.queries import Compare
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.weights import SetSplit, SetTraffic
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.control.specs import application
from tests.keys import app, key

MODEL = key("called/model")
PLAN = {"steps": [1, 10, 100], "every": 60}


def available(state):
    """Return the state in which each revision is available that was applied last."""

    def settled(application):
        for live in application.with_replicas:
            facts = {"stable": live.desired, "published": live.desired, "outgoing": None}
            application = application.replaced(live if live.is_settled else live.but(**facts))
        return application

    return state.after(Change(None, put=tuple(map(settled, state.applications.values()))))


def perform(state, operation):
    return available(state.after(operation.apply(state)))


def instance(*operations, **facts):
    """Return the state after these operations."""
    return reduce(perform, operations, State(**facts))


def newer(cpus, **options):
    """Return another revision of `shop`."""
    return application(resources={"num_cpus": cpus}, **options)


def deployed(spec, state):
    return Deploy(spec).apply(state)


def compared(spec, state):
    return Compare((spec,)).compared(state)


SHOP = instance(Deploy(application()))
LIVE = instance(Deploy(application()), AddCandidate(newer(0.5), share=0.1, tag="preview"))
"""With the live revision 2."""


def shares(state):
    """Return the shares of the live revisions beside the main one."""
    return {each.number: round(each.share, 6) for each in state.applications["shop"].candidates}


# Deploy


def test_a_deployed_application_has_a_number_and_an_event():
    code, initial = {"1a": b"one"}, HTTPOptions(host="::")
    change = Deploy(application(), HTTPOptions(port=8123), code, "a terminal", initial=initial).apply(State())
    assert (change.result, [each.name for each in change.put]) == (1, ["shop"])
    assert change.events == (ChangeEvent("shop", "Applied", "revision 1: new"),)
    assert (change.code, change.owner, change.http) == (code, "a terminal", HTTPOptions(port=8123, host="::"))
    assert change.lifted == (key("shop/web"),)


def test_each_revision_has_a_number_that_clients_can_expect():
    after = Deploy(newer(0.5), expected=1).apply(SHOP)
    assert after.result == 2
    with pytest.raises(RevisionConflict, match="'shop' has revision 2, and revision 1 was expected") as conflict:
        Deploy(newer(0.7), expected=1).apply(SHOP.after(after))
    assert conflict.value.status == 409
    again = Deploy(newer(0.5), expected=1).apply(SHOP.after(after))
    assert (again.result, again.put) == (2, ()), "who asks again has what it asked for"


def test_a_spec_that_shows_a_masked_secret_is_refused():
    model = ClassSpec(config=ClassConfig(name="model", user_config={"api_key": "a key of Ada"}))
    masked = written(application().model_copy(update={"deployments": (model,)}))
    for operation in (Deploy(masked), AddCandidate(masked)):
        with pytest.raises(ConfigError, match=r"^shop/model: user_config.api_key: \*\*\*"):
            operation.apply(SHOP)


@pytest.mark.parametrize("decide", [deployed, compared])
def test_a_prefix_is_free_only_if_no_revision_can_return_to_it(decide):
    updated = SHOP.after(Deploy(application(prefix="/new")).apply(SHOP))
    shop = updated.applications["shop"]
    failed = shop.replaced(shop.main.but(failure="no module", outgoing=None))
    for state, prefix in ((updated, "/"), (updated, "/new"), (replace(updated, applications={"shop": failed}), "/")):
        with pytest.raises(ConfigError, match=f"cannot have the route prefix '{prefix}': 'shop' has it"):
            decide(application("other", prefix=prefix), state)
    decide(application("other", prefix="/"), available(updated))


@pytest.mark.parametrize("decide", [deployed, compared])
def test_an_application_that_another_client_holds_is_refused(decide):
    state = instance(Deploy(application(), owner="a"))
    with pytest.raises(ConfigError, match="'shop' is held by another run"):
        decide(newer(0.5), state)
    with pytest.raises(ConfigError, match="the application 'shop' is held by another run"):
        AddCandidate(newer(0.5), owner="b").apply(state)
    assert AddCandidate(newer(0.5), owner="a").apply(state).result == 2
    assert Scale("shop/web", 3).apply(state).owner == "a", "it stays under its lease"


def test_the_route_prefix_stays_while_there_are_live_revisions():
    for prefix in ("/new", None):
        for decide in (deployed, compared):
            with pytest.raises(ConfigError, match="the live revisions of application 'shop' have the route prefix '/'"):
                decide(application(prefix=prefix), LIVE)


def test_a_deployment_that_another_application_calls_is_not_lost():
    state = instance(Deploy(application()), Deploy(application("called", prefix="/called", model=True)))
    state = replace(state, callers=lambda called: {"shop"} if called in ("called", MODEL) else set())
    lost = "'called/model' cannot be deleted: it is called by shop"
    without = application("called", prefix="/called")
    candidate = perform(state, AddCandidate(without))
    for before, operation, why in (
        (state, Deploy(without), lost),
        (state, Delete("called/model"), lost),
        (candidate, Promote("called"), lost),
        (candidate, SetTraffic("called", {2: 100}), lost),
        (candidate, AddCandidate(without, share=1.0), lost),
        (state, Delete("called"), "application 'called' cannot be deleted: its deployments are called by shop"),
    ):
        with pytest.raises(ConfigError, match=why):
            operation.apply(before)
    with pytest.raises(ConfigError, match=lost):
        compared(without, state)
    model = Delete("called/model").apply(replace(state, callers=lambda called: {"called"}))
    assert [each.config.name for each in model.put[0].main.spec.deployments] == ["web"], "only it calls itself"
    assert Delete("shop").apply(state).deleted == ("shop",)


# Live revisions


def test_a_live_revision_is_a_part_of_its_application():
    change = AddCandidate(newer(0.5), {"1a": b"one"}, 0.25).apply(SHOP)
    assert [live.key for live in change.put[0].live] == [app("shop"), app("shop@2")]
    assert (change.result, change.code, change.lifted) == (2, {"1a": b"one"}, ())
    assert change.events == (ChangeEvent("shop", "CandidateAdded", "revision 2"),)
    assert shares(SHOP.after(change)) == {2: 0.25}


@pytest.mark.parametrize(
    ("spec", "share", "tag", "why"),
    [
        (application("shoe"), 0.1, None, "there is no application 'shoe'"),
        (application(prefix=None), 0.1, None, "application 'shop' serves no HTTP, so it cannot have several live"),
        (application(prefix="/new"), 0.1, None, "must have its route prefix '/', not '/new'"),
        (newer(0.6), 1.5, None, "the traffic of a new revision is 150 %; it should be between 0 and 100 %"),
        (newer(0.6), 0.1, "", "the tag '' should have 1 to 64 letters"),
        (newer(0.6), 0.1, "preview", "revision 2 of .* has the tag 'preview'; .*delete shop --revision 2"),
    ],
)
def test_a_revision_that_cannot_be_live_is_refused(spec, share, tag, why):
    operation = AddCandidate(spec, {}, share, tag)
    for decide in (operation.apply, Compare((spec,), candidates=(operation,)).compared):
        with pytest.raises(ConfigError, match=why):
            decide(LIVE)


def test_an_equal_revision_that_is_deployed_again_changes_its_traffic():
    state = perform(LIVE, AddCandidate(newer(0.7), share=0.5))
    assert shares(state) == {2: 0.05, 3: 0.5}
    change = AddCandidate(newer(0.5), share=0.8, tag="other").apply(state)
    assert (change.result, [event.name for event in change.events]) == (2, ["TrafficChanged"])
    state = state.after(change)
    assert shares(state) == {2: 0.8, 3: pytest.approx(0.5 * 0.2 / 0.95, abs=1e-6)}
    assert shares(perform(state, AddCandidate(newer(0.5), share=0.25))) == {2: 0.25, 3: pytest.approx(0.3947, abs=1e-3)}


def test_a_client_that_adds_a_revision_again_gets_the_same_one():
    state = perform(SHOP, AddCandidate(newer(0.5), expected=2, tag="a"))
    assert AddCandidate(newer(0.5), expected=2, tag="a").apply(state).result == 2
    with pytest.raises(RevisionConflict, match="the next revision of application 'shop' is 3, and 2 was expected"):
        AddCandidate(newer(0.7), expected=2).apply(state)


def test_a_live_revision_and_its_main_revision_have_one_stream_log():
    ingress = IngressSpec(config=DeploymentConfig(name="web", num_replicas=2), streams=("POST /chat",))
    several = application().model_copy(
        update={"deployments": (ingress,), "stream_log": "shared", "automatic_stream_log": True}
    )
    one = ingress.model_copy(update={"config": DeploymentConfig(name="web")})
    single = application().model_copy(update={"deployments": (one,), "automatic_stream_log": True})
    state = instance(Deploy(several), AddCandidate(single, tag="a"), Deploy(single, expected=1))
    assert {live.spec.stream_log for live in state.applications["shop"].live} == {"shared"}
    with pytest.raises(ConfigError, match="deploy it with `--stream-log shared` first"):
        AddCandidate(several).apply(instance(Deploy(single)))


def test_the_traffic_is_set_or_refused():
    change = SetTraffic("shop", {1: 3, 2: 1}, {2: 50}).apply(LIVE)
    assert change.events == (
        ChangeEvent("shop", "TrafficChanged", "75 % revision 1, 25 % revision 2, 50 % mirrored to revision 2"),
    )
    assert shares(LIVE.after(change)) == {2: 0.25}
    for name, weights in (("shop", {1: 1, 4: 1}), ("shoe", {1: 1}), ("shop@2", {1: 1})):
        with pytest.raises(ConfigError, match=r"no live revision 4; it has 1, 2|no application 'sho(e'; .*'shop|p@2')"):
            SetTraffic(name, weights).apply(LIVE)


PROMOTED = [
    ChangeEvent("shop", "TrafficChanged", "100 % revision 2"),
    ChangeEvent("shop", "Promoted", "revision 2"),
]


@pytest.mark.parametrize(
    "operation", [SetTraffic("shop", {1: 0, 2: 100}), AddCandidate(newer(0.5), share=1.0, expected=3)], ids=str
)
def test_all_requests_for_an_available_revision_are_a_promotion(operation):
    change = operation.apply(LIVE)
    after = LIVE.after(change)
    assert (list(change.events), after.applications["shop"].main.number) == (PROMOTED, 2)
    again = operation.apply(after)
    assert (again.result, shares(after.after(again))) == (change.result, {})
    assert [event.name for event in again.events] == ["TrafficChanged"], "the client repeats the request"


def test_a_deletion_that_leaves_all_requests_to_one_revision_promotes_it_unless_others_call_what_it_lacks():
    three = instance(
        Deploy(application(model=True)), AddCandidate(newer(0.5), share=0.1), AddCandidate(newer(0.7), share=0.1)
    )
    three = perform(three, SetTraffic("shop", {2: 1, 3: 9}))
    change = Delete("shop", 3).apply(three)
    assert list(change.events) == PROMOTED
    called = replace(three, callers=lambda called: {"blog"})
    change = Delete("shop", 3).apply(called)
    assert change.events[1] == ChangeEvent(
        "shop", "PromotionRefused", "'shop/model' cannot be deleted: it is called by blog"
    )
    assert shares(called.after(change)) == {2: 1.0}


def test_a_promotion_that_is_repeated_changes_nothing():
    change = Promote("shop").apply(LIVE)
    assert (change.result, change.lifted) == (2, ())
    assert change.events == (ChangeEvent("shop", "Promoted", "revision 2"),)
    after = LIVE.after(change)
    for state in (after, perform(after, AddCandidate(newer(0.7), tag="a"))):
        again = Promote("shop", 2).apply(state)
        assert (again.result, again.put) == (2, ())
    with pytest.raises(ConfigError, match="'shop' has no live revision beside its main revision"):
        Promote("shop").apply(after)


@pytest.mark.parametrize("operation", [Promote("shop", 3), Promote("shop")], ids=str)
def test_a_revision_that_replaced_a_promoted_one_was_not_promoted(operation):
    state = perform(LIVE, Promote("shop"))
    for after in (perform(state, Deploy(newer(0.7))), state.after(Deploy(newer(0.7)).apply(state))):
        with pytest.raises(ConfigError, match="'shop' has no live revision beside its main revision"):
            operation.apply(after)


@pytest.mark.parametrize("expected", [0, 1])
def test_a_promoted_revision_is_no_answer_to_a_deployment(expected):
    with pytest.raises(RevisionConflict, match=f"'shop' has revision 2, and revision {expected} was expected"):
        Deploy(newer(0.5), expected=expected).apply(perform(LIVE, Promote("shop")))


def test_a_rollback_returns_to_the_revision_before_the_promotion():
    state = perform(LIVE, Promote("shop"))
    change = Rollback("shop", 2).apply(state)
    assert change.result == Reverted("shop", 2, 1, 3)
    assert change.put[0].main.key == state.applications["shop"].main.key, "in its place"


def test_a_revision_that_is_not_available_is_not_promoted():
    with pytest.raises(ConfigError, match="revision 2 of application 'shop' is not available yet"):
        Promote("shop", 2).apply(SHOP.after(AddCandidate(newer(0.5)).apply(SHOP)))


def test_the_main_revision_can_be_updated_while_another_one_is_live():
    operation = Deploy(newer(0.7), expected=1)
    state = perform(LIVE, operation)
    assert state.applications["shop"].revision == operation.apply(state).result == 3
    assert shares(state) == {2: 0.1}


# Canary releases


def test_traffic_is_refused_while_a_release_goes_on():
    state = instance(Deploy(application()), AddCandidate(newer(0.5), tag="a"), BeginRelease("shop", **PLAN))
    why = "revision 2 of application 'shop' has a canary release, which sets the weights; abort it before"
    for paused in (False, True):
        state = perform(state, PauseRelease("shop", paused=paused))
        for operation in (
            SetTraffic("shop", {1: 1, 2: 1}),
            AddCandidate(newer(0.7), share=0.5),
            BeginRelease("shop", 2, [50]),
        ):
            with pytest.raises(ConfigError, match=why):
                operation.apply(state)
        for operation in (BeginRelease("shop", 2, **PLAN), PauseRelease("shop", paused=paused)):
            assert not operation.apply(state).put, "the client repeats a request"
    state = perform(state, Abort("shop"))
    release = state.applications["shop"].canary
    assert (release.outcome, release.why) == ("aborted", "it was aborted")
    with pytest.raises(ConfigError, match="application 'shop' has no canary release that goes on"):
        PauseRelease("shop", paused=True).apply(state)


def test_a_release_has_one_candidate():
    with pytest.raises(ConfigError, match="has no live revision beside its main revision"):
        BeginRelease("shop", **PLAN).apply(SHOP)
    state = perform(LIVE, AddCandidate(newer(0.7), share=0.1))
    with pytest.raises(ConfigError, match="revision 2 of application 'shop' gets requests, too"):
        BeginRelease("shop", 3, **PLAN).apply(state)
    state = reduce(perform, (Delete("shop", 2), BeginRelease("shop", 3, **PLAN)), state)
    assert shares(state) == {3: 0.01}
    release = perform(state, Delete("shop", 3)).applications["shop"].canary
    assert (release.outcome, release.why) == ("aborted", "revision 3 was deleted")


# One deployment, and back


def test_a_rollback_returns_to_the_last_stable_revision_and_can_be_undone():
    state = perform(SHOP, Deploy(newer(0.5)))
    state = perform(state, Rollback("shop", 2))
    assert Rollback("shop", 3).apply(state).result == Reverted("shop", 3, 2, 4)
    with pytest.raises(RevisionConflict, match="has revision 4, and revision 2 was expected"):
        Rollback("shop", 2).apply(perform(state, Deploy(newer(0.7))))
    with pytest.raises(ConfigError, match="application 'shop' has no stable revision other than the current one"):
        Rollback("shop", 1).apply(SHOP)


@pytest.mark.parametrize("to", [None, 1, 2])
def test_a_rollback_that_was_performed_is_answered_again_until_another_revision_follows(to):
    state = instance(Deploy(application()), Deploy(newer(0.5)), Deploy(newer(0.6)))
    rollback = Rollback("shop", 3, to=to)
    begun = state.after(rollback.apply(state))
    reverted = Reverted("shop", 3, to or 2, 4)
    for after in (begun, available(begun)):
        assert (rollback.apply(after).result, rollback.apply(after).put) == (reverted, ())
        with pytest.raises((ConfigError, RevisionConflict)):
            Rollback("shop", 3, to={None: 1, 1: None, 2: 1}[to]).apply(after)
        with pytest.raises((ConfigError, RevisionConflict)):
            rollback.apply(perform(after, Deploy(newer(0.7))))


def test_a_rollback_of_an_update_in_progress_is_answered_again():
    updating = SHOP.after(Deploy(newer(0.5)).apply(SHOP))
    begun = updating.after(Rollback("shop", 2).apply(updating))
    assert Rollback("shop", 2).apply(begun).result == Reverted("shop", 2, 1, 3)


def test_a_deployment_is_scaled_or_refused():
    change = Scale("shop/web", 4).apply(SHOP)
    assert (change.result, change.put[0].main.spec.deployment("web").config.num_replicas) == (2, 4)
    for deployment, number in [("shoe/web", 1), ("shop/char", 1), ("shop/web", 0)]:
        with pytest.raises(ConfigError):
            Scale(deployment, number).apply(SHOP)


def marks(state):
    """Return the restarts of each live revision, which its template hashes contain."""
    return [live.spec.restarts for live in state.applications["shop"].live]


def test_a_restart_replaces_the_named_replicas_of_the_same_revision():
    state = instance(Deploy(application(model=True)))
    before = state.applications["shop"].main.spec
    change = Restart("shop/model").apply(state)
    after = change.put[0].main
    assert (change.result, change.lifted) == (2, (key("shop/model"),))
    assert change.events == (ChangeEvent("shop", "Restarted", "revision 2: model"),)
    assert after.spec.template_hash("web") == before.template_hash("web")
    assert after.spec.template_hash("model") != before.template_hash("model")
    assert (after.outgoing.spec, after.is_settled) == (before, False)
    whole = Restart("shop").apply(state).put[0].main.spec
    assert all(whole.template_hash(name) != before.template_hash(name) for name in ("web", "model"))
    for name in ("shoe", "shop/shoe", "shop@2", "shop/"):
        with pytest.raises(ConfigError):
            Restart(name).apply(state)


def test_a_restart_that_is_repeated_changes_nothing_and_a_second_one_does():
    first = Restart("shop/web", expected=1)
    state = perform(LIVE, first)
    assert first.apply(state) == Change(3)
    assert Restart("shop/web", expected=3).apply(state).result == 4
    with pytest.raises(RevisionConflict, match="has revision 3, and revision 2 was expected"):
        Restart("shop/web", expected=2).apply(state)
    with pytest.raises(RevisionConflict, match="has revision 3, and revision 1 was expected"):
        Restart("shop", expected=1).apply(perform(LIVE, Deploy(newer(0.7))))


def test_a_restart_concerns_each_live_revision():
    state = perform(LIVE, Restart("shop"))
    assert marks(state) == [{"web": 3}, {"web": 3}]
    state = perform(state, AddCandidate(newer(0.5), share=0.2))
    assert shares(state) == {2: 0.2}, "the candidate is still known by what was deployed"
    state = perform(state, AddCandidate(newer(0.7), share=0.2))
    assert marks(state) == [{"web": 3}] * 3


def test_no_replica_is_replaced_because_of_an_earlier_restart():
    state = perform(SHOP, Restart("shop"))
    again, hash = Deploy(application()), state.applications["shop"].main.spec.template_hash("web")
    assert compared(application(), state).differences[0].is_empty
    assert again.apply(state).events[0].cause.endswith("no changes")
    assert perform(state, again).applications["shop"].main.spec.template_hash("web") == hash


def test_a_rollback_returns_to_the_revision_before_the_restarts():
    state = instance(Deploy(application()), Deploy(newer(0.5)), *[Restart("shop")] * 5)
    assert Rollback("shop", 7).apply(state).result == Reverted("shop", 7, 1, 8)
    state = perform(perform(state, Rollback("shop", 7)), Restart("shop"))
    assert Rollback("shop", 9).apply(state).result == Reverted("shop", 9, 7, 10)
    assert [each.number for each in state.applications["shop"].history] == [7], "it has each revision once"
    with pytest.raises(ConfigError, match="has no stable revision other than the current one"):
        Rollback("shop").apply(perform(SHOP, Restart("shop")))


def test_a_restart_during_an_update_keeps_the_revision_that_a_failure_returns_to():
    updating = SHOP.after(Deploy(newer(0.5)).apply(SHOP))
    main = Restart("shop").apply(updating).put[0].main
    assert (main.number, main.stable.number) == (3, 1)
    assert main.stable.spec.deployments == SHOP.applications["shop"].main.spec.deployments


def test_the_weights_of_a_split_are_set_or_refused():
    classes = tuple(ClassSpec(config=ClassConfig(name=each)) for each in ("small", "large"))
    split = SplitSpec(name="writer", shares={"small": 0.9, "large": 0.1}, methods={})
    spec = application()
    spec = spec.model_copy(update={"deployments": (*spec.deployments, *classes), "splits": (split,)})
    state = instance(Deploy(spec))
    change = SetSplit("shop/writer", {"large": 50, "small": 50}, {"large": 50}).apply(state)
    (after,) = change.put[0].main.spec.splits
    assert (change.result, after.shares, after.mirrors) == (2, {"small": 0.5, "large": 0.5}, {"large": 0.5})
    for name, why in (
        ("shop/reader", "application 'shop' has no split 'reader'; it has writer"),
        ("shoe/writer", "no application 'shoe'"),
        ("writer", "'writer' names no split: it should be APPLICATION/SPLIT"),
    ):
        with pytest.raises(ConfigError, match=why):
            SetSplit(name, {"small": 1}).apply(state)


def test_an_application_is_deleted_with_its_live_revisions():
    assert Delete("shop").apply(LIVE).deleted == ("shop",)
    assert instance(Deploy(application()), Delete("shop"), Deploy(application(), expected=0)).applications.keys() == {
        "shop"
    }
    for name in ("shoe", "shoe/web", "shop/char"):
        with pytest.raises(ConfigError, match=r"no application 'shoe'|has no deployment 'char'; it has web"):
            Delete(name).apply(LIVE)


def test_a_live_revision_that_is_deleted_gets_no_more_requests():
    change = Delete("shop", 2).apply(LIVE)
    assert (change.deleted, [each.name for each in change.events]) == ((), ["TrafficChanged"])
    assert shares(LIVE.after(change)) == {}


# The options of the proxies, and comparisons


def test_the_proxies_keep_every_option_that_a_deploy_does_not_name():
    safe = HTTPOptions(port=8443, ssl_certfile="/c.pem", max_requests_per_client=10)
    state = instance(Listen(safe), Deploy(application(), initial=HTTPOptions(port=9000)))
    assert state.http == safe, "they were chosen before"
    state = instance(Deploy(application(), HTTPOptions(port=9443, max_requests_per_client=None)), http=safe)
    kept = safe.model_copy(update={"port": 9443, "max_requests_per_client": None})
    assert state.http == kept
    state = perform(state, Deploy(application("other", prefix="/other"), HTTPOptions(port=9443)))
    with pytest.raises(
        ConfigError, match=r"also serve 'other', .* change: port 9443 -> 8443, ssl_certfile /c.pem -> none;"
    ):
        Deploy(application(), HTTPOptions(port=8443, ssl_certfile=None)).apply(state)


def test_a_comparison_applies_one_deploy_after_the_other():
    comparison = Compare((newer(0.5), application("blog", prefix="/blog")), HTTPOptions(port=9000)).compared(SHOP)
    assert [(diff.name, diff.is_new) for diff in comparison.differences] == [("shop", False), ("blog", True)]
    assert [option.option for option in comparison.options] == ["port"]
    with pytest.raises(ConfigError, match="'third' cannot have the route prefix '/other': 'other' has it"):
        Compare((application("other", prefix="/other"), application("third", prefix="/other"))).compared(SHOP)


@pytest.mark.parametrize("deletion", [Delete("shop"), Delete("shop", 2), Delete("shop/chat")], ids=str)
def test_a_deletion_that_is_repeated_changes_nothing(deletion):
    chat = ClassSpec(config=ClassConfig(name="chat"))
    spec = application().model_copy(update={"deployments": (*application().deployments, chat)})
    state = perform(instance(Deploy(spec)), AddCandidate(newer(0.5), tag="a"))
    assert deletion.repeated().apply(state) == deletion.apply(state), "the controller died before it performed it"
    state = perform(state, deletion)
    assert deletion.repeated().apply(state) == Change(None)
    with pytest.raises(ConfigError, match=r"no application|no live revision|no deployment"):
        deletion.apply(state)


@pytest.mark.parametrize("name", ["shop", "shop/chat"])
def test_a_revision_that_was_promoted_meanwhile_loses_nothing(name):
    chat = ClassSpec(config=ClassConfig(name="chat"))
    spec = newer(0.5)
    spec = spec.model_copy(update={"deployments": (*spec.deployments, chat)})
    state = instance(Deploy(application()), AddCandidate(spec, tag="a"), Promote("shop"))
    for missing_ok in (False, True):
        with pytest.raises(ConfigError, match=f"revision 2 is the main revision of .*'shop': delete '{name}' without"):
            Delete(name, 2, missing_ok).apply(state)


# All together

NAMES = st.sampled_from(["shop", "blog"])
SPECS = st.builds(
    lambda name, prefix, cpus: application(name, prefix=prefix, resources={"num_cpus": cpus}),
    NAMES,
    st.sampled_from(["/", "/blog", None]),
    st.sampled_from([0.1, 0.5]),
)
OPERATIONS = st.one_of(
    st.builds(Deploy, SPECS, expected=st.sampled_from([None, None, 0, 1, 2])),
    st.builds(AddCandidate, SPECS, share=st.sampled_from([0.0, 0.5, 1.0]), tag=st.sampled_from([None, "a"])),
    st.builds(SetTraffic, NAMES, st.dictionaries(st.integers(1, 4), st.sampled_from([0, 1, 3]), max_size=3)),
    st.builds(BeginRelease, NAMES, st.none(), st.just(PLAN["steps"]), st.just(PLAN["every"])),
    st.builds(PauseRelease, NAMES, st.booleans()),
    st.builds(Promote, NAMES, st.sampled_from([None, 1, 2, 3])),
    st.builds(Abort, NAMES),
    st.builds(Rollback, NAMES, st.integers(1, 4)),
    st.builds(Scale, st.sampled_from(["shop/web", "blog/web"]), st.integers(1, 3)),
    st.builds(Restart, st.sampled_from(["shop", "shop/web", "blog"]), st.sampled_from([None, 1, 2, 3])),
    st.builds(Delete, st.sampled_from(["shop", "blog"]), st.sampled_from([None, None, 2])),
)


@given(st.lists(st.tuples(OPERATIONS, st.booleans()), max_size=8))
def test_any_operations_leave_a_consistent_state_that_they_can_be_repeated_on(steps):
    state = State()
    for operation, settles in steps:
        before = dict(state.applications)
        try:
            change = operation.apply(state)
        except (ConfigError, RevisionConflict):
            continue
        assert state.applications == before, "the state does not change"
        assert change == operation.apply(state), "and decides alone"
        assert pickle.loads(pickle.dumps(operation)) == operation
        state = state.after(change)
        if getattr(operation, "expected", getattr(operation, "revision", None)) is not None:
            again = operation.apply(state)
            assert (again.result, again.put) == (change.result, ()), "the controller died before it could answer"
        state = available(state) if settles else state
        prefixes = {}
        for shop in state.applications.values():
            for prefix in {spec.route_prefix for live in shop.with_replicas for _, spec in live.active} - {None}:
                assert prefixes.setdefault(prefix, shop.name) == shop.name


def test_the_name_of_a_deployment_is_parsed():
    assert Delete("shop").parts == ("shop", None)
    assert Delete("shop/chat").parts == ("shop", "chat")
    for name in ("shop", "shop/", "/chat"):
        with pytest.raises(ConfigError, match="it should be APPLICATION/DEPLOYMENT"):
            Scale(name, 3)


def test_an_operation_shows_no_secret():
    spec = application().model_copy(update={"title": "s3cret"})
    assert "s3cret" not in repr(Deploy(spec, code={"hash": b"s3cret"}))
    assert "s3cret" not in repr(AddCandidate(spec, {"hash": b"s3cret"}))
