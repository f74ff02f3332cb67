"""Which applications may stand side by side, and of which replica sets they are made."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.config.models import (
    ApplicationSpec,
    ClassConfig,
    ClassSpec,
    DeploymentConfig,
    HTTPOptions,
    IngressSpec,
    ResourceOptions,
    Route,
    SplitSpec,
)
from app_toolkit.control.application_specs import (
    beside,
    callee,
    check,
    proxy_options,
    replica_set_keys,
    scaled,
    without,
)
from app_toolkit.control.reconcile import ReplicaSetRecord, Start, plan
from app_toolkit.control.replica_state import Phase
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Location
from app_toolkit.types import Address, NodeId
from tests.control.specs import application, replica
from tests.keys import app, key, sets_of

NOW = HTTPOptions(port=8000)


def refusal(spec, *, there=(), http=NOW, owner=None, holder=None):
    try:
        check(spec, http, owner, there, NOW, holder)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("why", "spec", "facts", "said"),
    [
        ("the first", application(), {}, None),
        ("the same again", application(), {"there": [application()]}, None),
        ("its prefix is taken", application("b"), {"there": [application("a")]}, "route prefix '/': 'a' has it"),
        ("another prefix", application("b", prefix="/b"), {"there": [application("a")]}, None),
        ("no prefix, twice", application("b", prefix=None), {"there": [application("a", prefix=None)]}, None),
        ("it is mine", application(), {"owner": "me", "holder": "me"}, None),
        ("nobody holds it", application(), {"owner": "me"}, None),
        ("somebody holds it", application(), {"owner": "me", "holder": "you"}, "'shop' is held by another run"),
        ("it is held, and I hold nothing", application(), {"holder": "you"}, "'shop' is held by another run"),
        ("alone, it moves the proxies", application(), {"there": [application()], "http": HTTPOptions(port=1)}, None),
        (
            "others are reached there",
            application("b", prefix="/b"),
            {"there": [application("a")], "http": HTTPOptions(port=1)},
            "the proxies of this instance also serve 'a', so these options of theirs cannot change: port 8000 -> 1; "
            "deploy 'b' without them, or delete the other applications first",
        ),
        (
            "the proxies serve no other",
            application(),
            {"there": [application("log", prefix=None)], "http": HTTPOptions(port=1)},
            None,
        ),
        ("they stay", application("b", prefix="/b"), {"there": [application("a")], "http": NOW}, None),
    ],
)
def test_application_is_validated_when_applied(why, spec, facts, said):
    found = refusal(spec, **facts)
    assert found is None if said is None else found is not None and said in found, why


@settings(derandomize=True)
@given(st.data())
def test_prefix_belongs_to_one_application_after_any_applies(data):
    there, holders, http = {}, {}, NOW
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(["a", "b", "c"]))
        spec = application(name, prefix=data.draw(st.sampled_from([None, "/", "/x"])))
        owner = data.draw(st.sampled_from([None, "me", "you"]))
        wish = data.draw(st.sampled_from([http, NOW, HTTPOptions(port=1)]))
        before = dict(there), dict(holders), http
        try:
            check(spec, wish, owner, there.values(), http, holders.get(name))
        except ConfigError:
            assert (there, holders, http) == before
            continue
        assert name not in holders or holders[name] == owner
        reached = {each.name for each in there.values() if each.route_prefix is not None}
        assert http == wish or reached <= {name}, "others are reached where they were"
        there[name], http = spec, wish
        if owner is not None:
            holders[name] = owner
        prefixes = [each.route_prefix for each in there.values() if each.route_prefix is not None]
        assert len(prefixes) == len(set(prefixes))


OPTIONS = {
    "host": st.sampled_from(["127.0.0.1", "0.0.0.0"]),
    "port": st.integers(0, 65_535),
    "proxies_per_node": st.integers(1, 64),
    "max_requests_per_client": st.none() | st.integers(1, 100),
    "ssl_certfile": st.sampled_from([None, "/a.pem", "/b.pem"]),
    "ssl_keyfile": st.sampled_from([None, "/a.key", "/b.key"]),
    "access_log": st.booleans(),
}
SOME_OPTIONS = st.fixed_dictionaries({}, optional=OPTIONS)


@given(SOME_OPTIONS, SOME_OPTIONS)
def test_only_the_options_that_are_named_change_and_a_key_goes_with_its_certificate(present, named):
    before, after = HTTPOptions(**present), proxy_options(HTTPOptions(**present), HTTPOptions(**named))
    expected = {**before.model_dump(), **named}
    if "ssl_certfile" in named:
        expected["ssl_keyfile"] = named.get("ssl_keyfile")
    assert after.model_dump() == expected
    assert proxy_options(after, HTTPOptions(**named)) == after
    assert proxy_options(before, HTTPOptions()) == before


def test_error_of_an_unknown_deployment_names_those_that_exist():
    there = {"shop": application(model=True), "plain": application("plain", prefix=None)}
    assert callee(there, "shop", "model").methods == {"write": "stream"}
    with pytest.raises(ConfigError, match="no application 'shoe'; those that run: plain, shop"):
        callee(there, "shoe", "model")
    with pytest.raises(ConfigError, match="'shop' has no deployment 'web' to call; it has model"):
        callee(there, "shop", "web")
    with pytest.raises(ConfigError, match="it has none"):
        callee(there, "plain", "web")
    with pytest.raises(ConfigError, match="those that run: none"):
        callee({}, "shop", "model")


def streaming(log="memory", *, automatic=True, replicas=1):
    """An application whose ingress keeps streams in the log of the application."""
    config = DeploymentConfig(name="app", num_replicas=replicas)
    ingress = IngressSpec(config=config, streams=("POST /chat", "GET /chat/{id}/stream"))
    return application().model_copy(
        update={
            "default": "app",
            "routes": (),
            "deployments": (ingress,),
            "stream_log": log,
            "automatic_stream_log": automatic,
        }
    )


def test_an_ingress_is_not_scaled_if_its_streams_are_in_memory_and_nobody_has_asked_for_that():
    said = (
        "shop/app cannot have 2 replicas: the streams of POST /chat are in the memory of each; deploy it with "
        "`--stream-log shared` first"
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        scaled(streaming(), "app", 2)
    for spec in (streaming(automatic=False), streaming("shared"), application()):
        scaled(spec, spec.deployments[0].config.name, 2)


def shop(**options):
    """An application of two ingresses with a route each, and two classes that are the members of a split."""
    return ApplicationSpec(
        name="shop",
        target="shop:app",
        app_dir="/srv",
        default="app",
        deployments=(
            IngressSpec(config=DeploymentConfig(name="app"), calls=("large",)),
            IngressSpec(config=DeploymentConfig(name="chat")),
            ClassSpec(config=ClassConfig(name="small")),
            ClassSpec(config=ClassConfig(name="large")),
        ),
        routes=(route("/b", "chat"), route("/a", "app"), route("/c", None)),
        splits=(SplitSpec(name="writer", shares={"small": 0.5, "large": 0.5}),),
    ).model_copy(update=options)


def route(path, owner):
    return Route(kind="http", pattern=f"^{path}$", methods=("GET",), path=path, owner=owner)


def test_an_application_without_an_ingress_answers_none_of_its_routes():
    after = without(shop(), "chat")
    assert [each.config.name for each in after.deployments] == ["app", "small", "large"]
    assert after.routes == (route("/a", "app"), route("/b", None), route("/c", None))
    assert after.splits == shop().splits
    twice = shop(routes=(route("/a", "chat"), route("/a", "app")))
    assert without(twice, "chat").routes == (route("/a", "app"),), "another ingress serves the same route"


def test_an_application_without_a_class_has_no_split_of_it():
    assert without(shop(), "small").splits == ()


@pytest.mark.parametrize(
    ("spec", "deployment", "why"),
    [
        (shop(), "large", "'large' cannot be deleted: it is called by app"),
        (shop(), "shat", "application 'shop' has no deployment 'shat'; it has app, chat, small, large"),
        (shop(), "app", "'app' cannot be deleted: it answers what no route of application 'shop' matches; delete all"),
        (shop(deployments=shop().deployments[:1]), "app", "nothing would be left of application 'shop': delete all"),
    ],
)
def test_a_deployment_in_use_is_not_deleted(spec, deployment, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        without(spec, deployment)


def test_a_live_revision_has_the_log_of_the_main_revision_unless_it_names_another_one():
    assert beside(streaming(), streaming("shared", replicas=2)).stream_log == "shared"
    assert beside(streaming("shared", replicas=2), streaming(automatic=False)).stream_log == "memory"
    assert beside(streaming("redis", automatic=False), streaming("shared")).stream_log == "redis"
    assert beside(application(), streaming()) == application()
    asked_for = beside(streaming(), streaming(automatic=False))
    assert scaled(asked_for, "app", 2).deployments[0].config.num_replicas == 2, (
        "memory is asked for, also after a promotion"
    )
    with pytest.raises(ConfigError, match="cannot have several live revisions: the streams of POST /chat are in the "):
        beside(streaming(), streaming())


def test_a_deployment_is_scaled_to_a_number_that_it_can_have():
    shop = application(model=True, max_surge=2)
    more = scaled(shop, "web", 4)
    assert [each.config.num_replicas for each in more.deployments] == [4, 1]
    assert scaled(more, "web", 1) == shop
    assert more.template_hash("web") == shop.template_hash("web")
    with pytest.raises(ConfigError, match="'shop' has no deployment 'wen'; it has web, model"):
        scaled(shop, "wen", 4)
    with pytest.raises(ConfigError, match="num_replicas = 0: input should be greater than or equal to 1"):
        scaled(shop, "model", 0)


def test_an_application_has_a_replica_set_for_each_of_its_deployments():
    shop, other = application(model=True, prefix="/shop/"[:-1], num_replicas=4), application("other", prefix=None)
    specs = sets_of(shop, other, spread=True)
    assert (
        list(specs)
        == [*replica_set_keys(app("shop"), shop), *replica_set_keys(app("other"), other)]
        == [key("shop/web"), key("shop/model"), key("other/web")]
    )
    assert all((spec.key, spec.spread) == (each, True) for each, spec in specs.items())
    web, model = specs[key("shop/web")], specs[key("shop/model")]
    assert (web.target, web.template_hash) == (4, shop.template_hash("web"))
    assert (web.template.root_path, specs[key("other/web")].template.root_path) == ("/shop", "")
    assert (web.template.is_ingress, model.template.is_ingress) == (True, False)
    assert [web.config, model.config] == [each.config for each in shop.deployments]
    assert web.template.callees == ("model",)
    assert sets_of() == {}


def test_the_root_path_of_an_application_at_the_root_is_empty():
    assert sets_of(application(prefix="/"))[key("shop/web")].template.root_path == ""


def test_variables_with_secrets_are_set_by_the_replica_and_not_by_ray():
    environment = {
        "pip": ["torch"],
        "env_vars": {"STAGE": "test", "DB_PASSWORD": "hunter2-", "URL": "x://me:hunter2-@h"},
    }
    options = ResourceOptions(num_cpus=2, ray={"runtime_env": environment})
    shop = application()
    (web,) = shop.deployments
    hidden = web.model_copy(update={"config": web.config.model_copy(update={"resources": options})})
    specs = sets_of(shop.model_copy(update={"deployments": (hidden,)}))
    spec = specs[key("shop/web")]
    assert spec.resources.engine_options["runtime_env"] == {"pip": ["torch"], "env_vars": {"STAGE": "test"}}
    assert spec.template.variables == {"DB_PASSWORD": "hunter2-", "URL": "x://me:hunter2-@h"}
    assert spec.template.reloadable.secrets == ("hunter2-",)
    assert "hunter2-" not in repr(spec)


def test_only_the_replicas_of_ingresses_accept_clients_and_other_options_replace_them():
    shop = application(model=True)
    first, second = (sets_of(shop, edge={"port": port}) for port in (8000, 9000))
    web, model = first[key("shop/web")], first[key("shop/model")]
    assert (web.template.edge, model.template.edge, model.edge) == ({"port": 8000}, None, "")
    location = Location(Address("unix:/web"), NodeId("home"), clients=Address("tcp:127.0.0.1:8000"), edge=web.edge)
    accepting = replace(
        replica(web.key, 1, Phase.RUNNING, template_hash=web.template_hash),
        location=location,
        reloadable=web.template.reloadable,
        ready=True,
    )
    record = ReplicaSetRecord(web.key, (accepting,), starts=1)
    assert not any(isinstance(action, Start) for action in plan(web, record, 0.0, 1))
    assert any(isinstance(action, Start) for action in plan(second[web.key], record, 0.0, 1))
