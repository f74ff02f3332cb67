"""A partial deploy changes the named deployments as planned, and no others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.config.models import (
    ApplicationSpec,
    ClassConfig,
    ClassSpec,
    DeploymentConfig,
    IngressSpec,
    Origin,
    Route,
    SplitSpec,
)
from app_toolkit.core.applications import replica_set_specs
from app_toolkit.core.diff import Effect, difference, of_part
from app_toolkit.core.partial import named, taken_over, without
from app_toolkit.core.routes import RouteTable
from app_toolkit.errors import ConfigError
from tests.keys import key

PATHS = ("/a", "/b", "/c", "/d")


def planned(number, ingresses, classes=None, calls=None, *, default="app", prefix="/", **options):
    """The application in the version of that number: its ingresses with their paths, its classes with their methods."""
    calls = calls or {}
    return ApplicationSpec(
        name="shop",
        target=f"shop:v{number}",
        artifact=f"{number}a",
        app_dir=".",
        title=f"Version {number}",
        route_prefix=prefix,
        default=default,
        deployments=(
            *(
                IngressSpec(config=DeploymentConfig(name=name, **options), calls=calls.get(name, ()))
                for name in ingresses
            ),
            *(
                ClassSpec(config=ClassConfig(name=name), methods=methods, calls=calls.get(name, ()))
                for name, methods in (classes or {}).items()
            ),
        ),
        routes=tuple(
            Route(kind="http", pattern=f"^{path}$", methods=("GET",), path=path, owner=name)
            for name, paths in ingresses.items()
            for path in paths
        ),
    )


def shop(number=1, **options):
    """Two ingresses, one of which calls a class that calls another."""
    classes = {"writer": {"write": "stream"}, "memory": {"read": "coroutine"}}
    calls = {"chat": ("writer",), "writer": ("memory",)}
    return planned(number, {"app": ["/a"], "chat": ["/b", "/c"]}, classes, calls, **options)


def names_of(spec):
    return [each.config.name for each in spec.deployments]


def as_it_runs(spec, name):
    """All that the replicas of a deployment, and those who look after them, know of it."""
    replica_set = replica_set_specs([spec], spread=False)[key(f"shop/{name}")]
    return replica_set, spec.deployment(name).config, spec.deployment(name).calls, spec.origin_of(name)


NAMES = ("app", "chat", "talk", "writer", "memory")


@st.composite
def plans(draw, number):
    """An app that can be: its classes are called only where they are."""
    ingresses = ["app", *draw(st.sets(st.sampled_from(["chat", "talk"])))]
    classes = draw(st.sets(st.sampled_from(["writer", "memory"])))
    methods = st.dictionaries(st.sampled_from(["read", "write"]), st.sampled_from(["coroutine", "stream"]), min_size=1)
    owners = draw(st.permutations([(path, draw(st.sampled_from([None, *ingresses]))) for path in PATHS]))
    return planned(
        number,
        {name: [path for path, owner in owners if owner == name] for name in ingresses},
        {name: draw(methods) for name in sorted(classes)},
        {name: tuple(sorted(draw(st.sets(st.sampled_from(sorted(classes)))) if classes else ())) for name in ingresses},
        max_queued_requests=draw(st.integers(1, 3)),
    )


@settings(derandomize=True, max_examples=25)
@given(st.data())
def test_partial_deploys_change_only_the_named_deployments_in_any_history(data):
    living = data.draw(plans(0))
    codes = {living.target: living}
    for number in range(1, data.draw(st.integers(2, 6))):
        plan = data.draw(plans(number))
        names = data.draw(st.sets(st.sampled_from(sorted({*names_of(living), *names_of(plan)})), min_size=1))
        try:
            after = taken_over(living, plan, names)
        except ConfigError:
            continue
        codes[plan.target] = plan
        assert set(names_of(after)) == (set(names_of(living)) - names) | (set(names_of(plan)) & names)
        for name in names_of(after):
            assert as_it_runs(after, name)[1:] == as_it_runs(plan if name in names else living, name)[1:]
            if name not in names:
                assert after.template_hash(name) == living.template_hash(name)
                mine, before = ([route for route in spec.routes if route.owner == name] for spec in (after, living))
                assert mine == before
        shown = of_part(difference(living, after), names)
        assert {each.name for each in shown.deployments} == names & {*names_of(after), *names_of(living)}
        rest = [each for each in difference(living, after).deployments if each.name not in names]
        assert {each.effect for each in rest} <= {Effect.UNCHANGED}
        assert after.packed == {after.origin_of(name).artifact for name in names_of(after)}
        assert taken_over(after, plan, names) == after, "twice is once"
        assert taken_over(after, plan, {*names_of(after), *names_of(plan)}) == plan, "all of it is the plan"
        assert ApplicationSpec.model_validate_json(after.model_dump_json()) == after
        check_routes(after, codes)
        living = after


def check_routes(spec, codes):
    """Whoever is asked serves that, as its own code has it; and what nobody serves is nobody's."""
    table = RouteTable(spec.default, spec.routes)
    served = {route.path: route.owner for route in reversed(spec.routes) if route.owner is not None}
    for path in PATHS:
        owner = table.owner("http", "GET", path)
        if path in served:
            assert owner is not None
        if owner is not None:
            code = codes[spec.origin_of(owner).target]
            assert {route.owner for route in code.routes if route.path == path} <= {owner}, "its response would be 421"


def test_a_deployment_that_only_the_living_one_has_is_deleted_and_its_routes_are_nobodys():
    one = planned(1, {"app": ["/a"], "chat": ["/b"]})
    for after in (taken_over(one, planned(2, {"app": ["/a"]}), {"chat"}), without(one, "chat")):
        assert names_of(after) == ["app"]
        assert [(route.path, route.owner) for route in after.routes] == [("/a", "app"), ("/b", None)]
        again = taken_over(after, planned(3, {"app": ["/a"], "chat": ["/b"]}), {"chat"})
        assert [(route.path, route.owner) for route in again.routes] == [("/a", "app"), ("/b", "chat")]


def test_an_endpoint_that_the_new_code_of_its_ingress_has_no_more_is_nobodys():
    after = taken_over(shop(1), planned(2, {"app": ["/a"], "chat": ["/c"]}), {"chat"})
    assert [(route.path, route.owner) for route in after.routes] == [("/a", "app"), ("/c", "chat"), ("/b", None)]
    whole = taken_over(after, planned(3, {"app": ["/a"], "chat": ["/c"]}), {"app", "chat", "writer", "memory"})
    assert [(route.path, route.owner) for route in whole.routes] == [("/a", "app"), ("/c", "chat")]


def refusal(change):
    with pytest.raises(ConfigError) as refused:
        change()
    return str(refused.value)


def test_deployment_in_use_is_not_deleted_and_the_error_names_its_callers():
    one = planned(1, {"app": [], "chat": []}, {"writer": {}, "memory": {}}, dict.fromkeys(("app", "chat"), ("writer",)))
    said = "'writer' cannot be deleted: it is called by app and chat"
    assert refusal(lambda: without(one, "writer")) == said
    assert refusal(lambda: taken_over(one, planned(2, {"app": [], "chat": []}), {"writer"})) == said
    assert names_of(without(one, "memory")) == ["app", "chat", "writer"]
    together = taken_over(one, planned(2, {"app": [], "chat": []}), {"app", "chat", "writer"})
    assert names_of(together) == ["app", "chat", "memory"]
    assert refusal(lambda: without(one, "wri")) == (
        "application 'shop' has no deployment 'wri'; it has app, chat, writer, memory"
    )


def test_default_ingress_and_last_deployment_are_not_deleted():
    assert refusal(lambda: without(shop(), "app")) == (
        "'app' cannot be deleted: it answers what no route of application 'shop' matches; delete all of it"
    )
    alone = planned(1, {}, {"writer": {}}, default=None, prefix=None)
    assert refusal(lambda: without(alone, "writer")) == (
        "nothing would be left of application 'shop': delete all of it"
    )


@pytest.mark.parametrize(
    ("plan", "names", "said"),
    [
        (
            planned(2, {"app": [], "chat": []}, {"reader": {}}, {"chat": ("reader",)}),
            {"chat"},
            "'chat' calls 'reader', which application 'shop' does not have: name that, too",
        ),
        (
            planned(2, {"app": [], "chat": []}, {"writer": {"erase": "coroutine"}}, {"chat": ("writer",)}),
            {"chat"},
            "'chat' may call erase of 'writer', which would be missing or different: name 'writer', too",
        ),
        (
            planned(2, {"app": [], "chat": []}, {"writer": {"write": "coroutine"}}),
            {"writer"},
            "'chat' may call write of 'writer', which would be missing or different: name 'chat', too",
        ),
        (
            shop(2, prefix="/new"),
            {"chat"},
            "application 'shop' has the route prefix '/': a part of it cannot be deployed with '/new'",
        ),
        (
            shop(2).model_copy(update={"stream_log": "shared"}),
            {"chat"},
            "application 'shop' has the stream log 'memory': a part of it cannot be deployed with 'shared'",
        ),
        (
            shop(2).model_copy(update={"loop": "asyncio"}),
            {"chat"},
            "application 'shop' runs in the event loop 'uvloop': a part of it cannot be deployed with 'asyncio', so "
            "deploy the whole application to change it",
        ),
        (
            shop(2).model_copy(update={"logging_config": {"version": 1}}),
            {"chat"},
            "application 'shop' has another logging_config: all of its deployments have the same one, so deploy the "
            "whole application to change it",
        ),
    ],
)
def test_inconsistent_partial_deploy_is_refused_by_name(plan, names, said):
    assert refusal(lambda: taken_over(shop(), plan, names)) == said


def test_default_ingress_may_be_renamed_if_both_names_are_given():
    one, two = planned(1, {"app": ["/a"], "chat": []}), planned(2, {"web": ["/a"], "chat": []}, default="web")
    after = taken_over(one, two, {"app", "web"})
    assert (after.default, after.title, names_of(after)) == ("web", "Version 2", ["web", "chat"])
    assert taken_over(one, two, {"web"}).default == "app"


def test_a_class_may_have_more_methods_than_its_callers_know():
    plan = planned(2, {"app": []}, {"writer": {"write": "stream", "erase": "coroutine"}})
    assert taken_over(shop(), plan, {"writer"}).deployment("writer").origin == plan.origin


def test_class_is_deployed_from_a_module_without_an_app():
    bound = planned(2, {}, {"writer": {"write": "stream"}}, default=None, prefix=None).model_copy(
        update={"code": "c0de", "artifact": ""}
    )
    after = taken_over(shop(), bound, {"writer"})
    assert (after.route_prefix, after.default, after.routes) == ("/", "app", shop().routes)
    assert after.origin_of("writer") == Origin(target="shop:v2", code="c0de", app_dir=".")
    assert after.packed == {"1a", "c0de"}


def test_a_deployment_is_meant_by_its_name_or_by_an_endpoint_of_its():
    one, two = shop(1), planned(2, {"app": ["/a", "/c"], "chat": ["/b"], "talk": ["/d"]}, {"reader": {}})
    assert named(["chat", "reader", "memory"], one, two) == {"chat", "reader", "memory"}
    assert named(["GET /b", "get  /d"], one, two) == {"chat", "talk"}
    assert named(["/c"], one, two) == {"app"}, "as it is planned"
    assert named(["/c"], one, planned(2, {"app": []})) == {"chat"}, "as it lives, where it is planned no more"
    both = planned(2, {"app": ["/a"], "chat": ["/a"]})
    assert refusal(lambda: named(["/a"], one, both)) == (
        "'/a' is served by app and chat: add the method, or name the deployment"
    )
    assert refusal(lambda: named(["char"], one, two)) == (
        "application 'shop' has no deployment 'char', neither in the running application nor in the plan; "
        "there are app, chat, talk, reader, writer, memory"
    )
    assert refusal(lambda: named(["PUT /b"], one, planned(2, {"app": ["/a"]}))) == (
        "application 'shop' has no endpoint 'PUT /b', neither in the running application nor in the plan; "
        "there are GET /a, GET /b, GET /c"
    )


def with_splits(spec, **splits):
    return spec.model_copy(
        update={"splits": tuple(SplitSpec(name=name, shares=shares) for name, shares in splits.items())}
    )


def splits_after(deployed, plan, *names):
    return {each.name: each.shares for each in taken_over(deployed, plan, names).splits}


def test_splits_keep_their_weights_unless_their_members_change():
    classes = {name: {} for name in ("small", "large", "other")}
    deployed = with_splits(planned(1, {"app": ["/a"]}, classes), writer={"small": 0.5, "large": 0.5})
    plan = with_splits(planned(2, {"app": ["/a"]}, classes), writer={"small": 0.9, "large": 0.1}, new={"other": 1.0})
    assert splits_after(deployed, plan, "app") == {"writer": {"small": 0.5, "large": 0.5}, "new": {"other": 1.0}}
    assert splits_after(deployed, plan, "large")["writer"] == {"small": 0.9, "large": 0.1}
    wider = with_splits(plan, writer={"small": 0.9, "other": 0.1})
    assert splits_after(deployed, wider, "app") == {"writer": {"small": 0.9, "other": 0.1}}
    assert without(deployed, "large").splits == (), "no code calls the split any more"
    assert splits_after(deployed, with_splits(plan, new={"unknown": 1.0}), "app") == {
        "writer": {"small": 0.5, "large": 0.5}
    }
