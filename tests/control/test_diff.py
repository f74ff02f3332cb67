"""The difference that an apply would make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.middleware.cors import CORSMiddleware

from app_toolkit.config.models import ClassConfig, ClassSpec, DeploymentConfig, HTTPOptions, IngressSpec, SplitSpec
from app_toolkit.control.diff import Change, DeploymentDifference, Diff, Effect, difference, options_changed
from app_toolkit.userapp.cors import cors_of
from tests.control.specs import application
from tests.keys import key, sets_of


def with_options(**options):
    """The application whose class says these."""
    spec = application(model=True)
    ingress, _ = spec.deployments
    return spec.model_copy(update={"deployments": (ingress, ClassSpec(config=ClassConfig(name="model", **options)))})


def of_model(before, after):
    found = difference(with_options(**before), with_options(**after))
    assert found.deployments[0] == DeploymentDifference("web", Effect.UNCHANGED)
    assert found.changes == ()
    return found.deployments[1]


def test_of_a_new_application_all_is_added():
    assert difference(None, application(num_replicas=3, model=True)) == Diff(
        "shop",
        True,
        (
            DeploymentDifference("web", Effect.ADDED, (Change("num_replicas", "none", "3"),)),
            DeploymentDifference("model", Effect.ADDED, (Change("num_replicas", "none", "1"),)),
        ),
    )


def test_difference_without_changes_says_so():
    found = difference(application(model=True), application(model=True))
    assert found.is_empty
    assert {each.effect for each in found.deployments} == {Effect.UNCHANGED}
    assert str(found) == "no changes"


def test_difference_is_written_on_one_line():
    assert str(difference(None, application())) == "new"
    before, after = with_options(), with_options(num_replicas=4, user_config={"key": "secret"})
    moved = after.model_copy(update={"route_prefix": "/new"})
    said = str(difference(before, moved))
    assert said == "route_prefix / -> /new; web restarted; model restarted (num_replicas 1 -> 4, user_config changed)"


@pytest.mark.parametrize(
    ("before", "after", "effect", "said"),
    [
        ({}, {"num_replicas": 4}, Effect.SCALED, ["num_replicas 1 -> 4"]),
        ({}, {"max_ongoing_requests": 7}, Effect.RECONFIGURED, ["max_ongoing_requests 16 -> 7"]),
        ({}, {"request_timeout_s": 2.5}, Effect.KEPT, ["request_timeout_s none -> 2.5"]),
        ({}, {"health_check_period_s": 1}, Effect.KEPT, ["health_check_period_s 5 -> 1"]),
        ({}, {"sync_threads": 2}, Effect.RESTARTED, ["sync_threads 1 -> 2"]),
        ({}, {"resources": {"num_gpus": 0.5}}, Effect.RESTARTED, ["resources.num_gpus 0 -> 0.5"]),
        (
            {"resources": {"custom": {"tpu": 1}}},
            {},
            Effect.RESTARTED,
            ["resources.custom.tpu 1 -> none"],
        ),
        ({}, {"batch": {"any": {"max_batch_size": 8}}}, Effect.RECONFIGURED, ["batch.any.max_batch_size none -> 8"]),
        ({"user_config": {"key": 1}}, {"user_config": {"key": 2}}, Effect.RECONFIGURED, ["user_config changed"]),
        ({}, {"user_config": {"key": "new"}}, Effect.RESTARTED, ["user_config changed"]),
        (
            {"resources": {"ray": {"runtime_env": {"env_vars": {"KEY": "old"}}}}},
            {"resources": {"ray": {"runtime_env": {"env_vars": {"KEY": "new"}}}}},
            Effect.RESTARTED,
            ["resources.ray.runtime_env changed"],
        ),
        (
            {},
            {"num_replicas": 2, "max_queued_requests": 5, "max_ongoing_requests": 4},
            Effect.RECONFIGURED,
            ["max_queued_requests 1000 -> 5", "num_replicas 1 -> 2", "max_ongoing_requests 16 -> 4"],
        ),
    ],
)
def test_difference_names_each_option_with_its_effect(before, after, effect, said):
    found = of_model(before, after)
    assert (found.effect, sorted(map(str, found.changes))) == (effect, sorted(said))


def test_changed_files_restart_all_and_are_shown_once():
    before, after = (application(model=True).model_copy(update={"artifact": hash}) for hash in ("1a", "2b"))
    found = difference(before, after)
    assert [str(change) for change in found.changes] == ["files changed"]
    assert {each.effect for each in found.deployments} == {Effect.RESTARTED}


def test_changed_files_are_named_with_added_and_removed_ones():
    def spec(**files):
        return application().model_copy(update={"artifact": str(sorted(files.items())), "files": files})

    def named(before, after):
        (change,) = difference(before, after).changes
        return str(change)

    before = spec(same="1", shop="1", old="1", web="1")
    assert named(before, spec(same="1", shop="2", new="1", web="2")) == "files changed: shop, web, +new, -old"
    assert named(before, spec()) == named(spec(), before) == "files changed"
    many = {f"f{number}": "1" for number in range(8)}
    assert named(before, spec(same="1", shop="1", old="1", web="1", **many)) == (
        "files changed: +f0, +f1, +f2, +f3, +f4 and 3 more"
    )


def test_difference_shows_changes_of_the_application():
    before = application()
    after = before.model_copy(update={"route_prefix": "/shop", "code": "1a", "routes": (), "target": "shop:api"})
    assert [str(change) for change in difference(before, after).changes] == [
        "route_prefix / -> /shop",
        "routes changed",
        "code changed",
        "target shop:app -> shop:api",
    ]


def test_difference_shows_the_shares_of_splits():
    def spec(**shares):
        return application().model_copy(update={"splits": (SplitSpec(name="writer", shares=shares),)})

    found = difference(spec(a=0.5, b=0.5), spec(a=0.9, c=0.1))
    assert list(map(str, found.changes)) == [
        "splits.writer.a 0.5 -> 0.9",
        "splits.writer.b 0.5 -> none",
        "splits.writer.c none -> 0.1",
    ]
    assert {each.effect for each in found.deployments} == {Effect.UNCHANGED}


def test_difference_shows_the_mirrors_of_splits():
    def spec(**mirrors):
        shares = {"a": 1.0, "b": 0.0, "c": 0.0}
        return application().model_copy(update={"splits": (SplitSpec(name="writer", shares=shares, mirrors=mirrors),)})

    found = difference(spec(a=0.5, b=0.5), spec(b=0.1, c=1.0))
    assert set(map(str, found.changes)) == {
        "splits.writer.a.mirror 0.5 -> none",
        "splits.writer.b.mirror 0.5 -> 0.1",
        "splits.writer.c.mirror none -> 1",
    }


def test_routes_alone_restart_nothing():
    before = application()
    found = difference(before, before.model_copy(update={"routes": ()}))
    assert [each.effect for each in found.deployments] == [Effect.UNCHANGED]
    assert not found.is_empty


def test_difference_shows_what_else_of_the_routes_changes():
    settings = cors_of(CORSMiddleware(None, allow_origins=["https://page.example"]))
    before = application()
    found = difference(before, before.model_copy(update={"root_path": "/api", "cors": settings}))
    assert [str(change) for change in found.changes] == ["root_path changed", "cors changed"]
    assert [each.effect for each in found.deployments] == [Effect.UNCHANGED]


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("loop", "asyncio", "loop uvloop -> asyncio"),
        ("fork", False, "fork true -> false"),
        ("logging_config", {"version": 1}, "logging_config changed"),
    ],
)
def test_an_option_of_the_application_restarts_all_replicas_and_reaches_them(option, value, shown):
    before = application(model=True)
    after = before.model_copy(update={option: value})
    assert str(difference(before, after)) == f"{shown}; web restarted; model restarted"
    specs = sets_of(after).values()
    assert [getattr(each.template.application_config, option) for each in specs] == [value, value]


def test_an_option_that_only_the_controller_reads_restarts_no_replica():
    before = application()
    assert str(difference(before, before.model_copy(update={"keep_revisions": 12}))) == "keep_revisions 3 -> 12"


def test_difference_shows_removed_and_added_deployments():
    before = application(model=True)
    chat = IngressSpec(config=DeploymentConfig(name="chat", num_replicas=2))
    after = before.model_copy(update={"deployments": (before.deployments[0], chat)})
    assert [(each.name, each.effect) for each in difference(before, after).deployments] == [
        ("web", Effect.UNCHANGED),
        ("chat", Effect.ADDED),
        ("model", Effect.REMOVED),
    ]


def test_difference_shows_the_options_of_proxies():
    assert options_changed(HTTPOptions(), HTTPOptions()) == ()
    said = options_changed(HTTPOptions(), HTTPOptions(port=9000, access_log=False))
    assert [str(change) for change in said] == ["port 8000 -> 9000", "access_log true -> false"]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "num_replicas": st.integers(1, 3),
        "max_ongoing_requests": st.integers(1, 3),
        "request_timeout_s": st.none() | st.floats(1, 3),
        "sync_threads": st.integers(1, 2),
        "max_replicas_per_node": st.none() | st.integers(1, 2),
        "user_config": st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 1)),
        "resources": st.fixed_dictionaries({}, optional={"num_cpus": st.integers(1, 2)}),
    },
)


@given(before=OPTIONS, after=OPTIONS)
def test_difference_predicts_the_actions_of_the_controller(before, after):
    """The effect is that of the replica sets which the two applications are made of, and no secret is shown."""
    one, other = with_options(**before), with_options(**after)
    found = of_model(before, after)
    had, has = (sets_of(spec)[key("shop/model")] for spec in (one, other))
    assert (found.effect is Effect.RESTARTED) == (had.template_hash != has.template_hash)
    if found.effect is not Effect.RESTARTED:
        assert (found.effect is Effect.RECONFIGURED) == (had.reloadable != has.reloadable)
    if found.effect is Effect.SCALED:
        assert had.target != has.target
    if found.effect in (Effect.KEPT, Effect.UNCHANGED):
        assert (had.target, had.reloadable, had.template_hash) == (has.target, has.reloadable, has.template_hash)
    assert (found.effect is Effect.UNCHANGED) == (one == other) == (not found.changes)
    options = {change.option: (change.before, change.after) for change in found.changes}
    assert options.get("user_config", ("", "")) == ("", "")
