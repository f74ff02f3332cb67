import inspect
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from app_toolkit import ConfigError, DeploymentConfig, Toolkit, deployment
from app_toolkit.config.models import ApplicationSpec, AutoscalingConfig
from app_toolkit.declare.planning import plan
from app_toolkit.errors import PlanningError

CHAT = DeploymentConfig(name="chat", num_replicas=2)


def lifespan_named(name: str, ran: list[str]) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        ran.append(f"{name} up")
        yield {name: f"state of {name}"}
        ran.append(f"{name} down")

    return lifespan


def shop(ran: list[str]) -> Toolkit:
    catalog = APIRouter(prefix="/catalog", lifespan=lifespan_named("catalog", ran))
    chat = APIRouter(prefix="/chat", lifespan=lifespan_named("chat", ran))

    @catalog.get("/items", name="items")
    def items(request: Request) -> dict[str, Any]:
        return {"state": dict(request.state._state), "talk": str(request.url_for("talk"))}

    @chat.get("/talk", name="talk")
    def talk(request: Request) -> dict[str, Any]:
        return {"state": dict(request.state._state), "items": str(request.url_for("items"))}

    app = Toolkit(title="Shop", lifespan=lifespan_named("app", ran))
    app.include_router(catalog)
    app.include_router(chat, deployment=CHAT)
    return app


def test_include_router_takes_the_arguments_of_fastapi_and_deployment() -> None:
    ours = inspect.signature(Toolkit.include_router).parameters
    theirs = inspect.signature(FastAPI.include_router).parameters
    assert set(ours) - set(theirs) == {"deployment"}
    assert set(theirs) <= set(ours)
    for name in set(theirs) - {"self", "router"}:
        assert ours[name].kind == theirs[name].kind
        assert type(ours[name].default) is type(theirs[name].default), name


def test_in_one_process_every_router_and_every_lifespan_runs() -> None:
    ran: list[str] = []
    with TestClient(shop(ran)) as client:
        assert client.get("/catalog/items").status_code == 200
        assert client.get("/chat/talk").json()["items"] == "http://testserver/catalog/items"
        assert sorted(ran) == ["app up", "catalog up", "chat up"]
    assert sorted(ran)[:3] == ["app down", "app up", "catalog down"]
    assert ran[-1] == "app down"


@pytest.mark.parametrize(
    ("ingress", "own", "foreign"), [("app", "/catalog/items", "/chat/talk"), ("chat", "/chat/talk", "/catalog/items")]
)
def test_a_replica_runs_the_lifespans_of_its_ingress_and_refuses_foreign_routes(
    ingress: str, own: str, foreign: str
) -> None:
    ran: list[str] = []
    app = shop(ran)
    app.serve_only(ingress)
    router = "catalog" if ingress == "app" else "chat"
    with TestClient(app) as client:
        assert ran == ["app up", f"{router} up"]
        answer = client.get(own).json()
        assert answer["state"] == {"app": "state of app", router: f"state of {router}"}
        refused = client.get(foreign)
        assert refused.status_code == 421
        assert "belongs to ingress" in refused.json()["detail"]
        # What is the whole app's is answered everywhere.
        assert client.post(own).status_code == 405
        assert client.get("/nowhere").status_code == 404
        assert client.get(own + "/").url.path == own
        documents = client.get("/openapi.json")
        if ingress == "app":
            assert set(documents.json()["paths"]) == {"/catalog/items", "/chat/talk"}
        else:
            assert documents.status_code == 421
    assert ran[2:] == [f"{router} down", "app down"]


class WithoutLanguage:
    """A middleware that removes the first segment of a path, which names a language."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith("/en/"):
            scope = {**scope, "path": scope["path"].removeprefix("/en")}
        await self.app(scope, receive, send)


@pytest.mark.parametrize("ingress", ["app", None], ids=["replica", "one process"])
def test_a_middleware_that_leads_a_request_to_another_ingress_is_named_once(
    ingress: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    app = shop([])
    app.add_middleware(WithoutLanguage)
    if ingress is not None:
        app.serve_only(ingress)
    client = TestClient(app)
    assert client.get("/en/catalog/items").status_code == 200, "the same ingress serves both paths"
    assert not caplog.records
    for _ in range(2):
        response = client.get("/en/chat/talk")
    if ingress is None:
        assert response.status_code == 200
    else:
        assert response.status_code == 421
        assert response.json()["detail"].startswith("a middleware has changed the path of this request, and this route")
    (record,) = caplog.records
    assert "'/en/chat/talk' to '/chat/talk', whose route belongs to ingress 'chat'" in record.getMessage()


def test_one_router_under_two_prefixes_belongs_to_two_ingresses() -> None:
    router = APIRouter()
    router.add_api_route("/who", lambda: 1)
    app = Toolkit()
    app.include_router(router, prefix="/a")
    app.include_router(router, prefix="/b", deployment=CHAT)
    owners = {route.path: route.owner for route in plan(app, target="x:app", app_dir="/").routes}
    assert owners["/a/who"] == "app"
    assert owners["/b/who"] == "chat"


def test_a_route_added_after_its_router_was_included_is_planned() -> None:
    router = APIRouter()
    app = Toolkit()
    app.include_router(router, prefix="/late", deployment=CHAT)
    router.add_api_route("/one", lambda: 1)
    assert {r.path: r.owner for r in plan(app, target="x:app", app_dir="/").routes}["/late/one"] == "chat"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_deprecated_startup_handler_of_a_router_runs_once_and_only_in_its_ingress() -> None:
    ran: list[str] = []

    def build() -> Toolkit:
        router = APIRouter()
        router.add_api_route("/x", lambda: 1)
        router.on_event("startup")(lambda: ran.append("up"))
        app = Toolkit()
        app.include_router(router, deployment=CHAT)
        return app

    with TestClient(build()):
        assert ran == ["up"]
    other = build()
    other.serve_only("app")
    with TestClient(other):
        assert ran == ["up"]


def test_different_ingresses_of_one_name_are_refused_by_their_difference() -> None:
    app = Toolkit()
    app.include_router(APIRouter(), deployment=CHAT)
    app.include_router(APIRouter(), deployment=CHAT)
    with pytest.raises(PlanningError, match=r"two ingresses are named 'chat' and differ: num_replicas = 2 and 3"):
        app.include_router(APIRouter(), deployment=DeploymentConfig(name="chat", num_replicas=3))


def test_an_ingress_that_the_app_does_not_have_cannot_be_served() -> None:
    with pytest.raises(PlanningError, match="no ingress 'chat'; it has app"):
        Toolkit().serve_only("chat")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"num_replicas": 0},
            'DeploymentConfig.num_replicas = 0: input should be greater than or equal to 1, or "auto"',
        ),
        ({"num_replicas": "many"}, 'parse string as an integer, or "auto"'),
        ({"num_gpus": 1}, "DeploymentConfig has no option 'num_gpus'; it belongs in 'resources'"),
        (
            {"num_replicas": 2, "autoscaling_config": {}},
            "num_replicas = 2 contradicts autoscaling_config: set only one of them",
        ),
        ({"num_replica": 2}, "DeploymentConfig has no option 'num_replica'; did you mean 'num_replicas'?"),
        ({"name": "Chat!"}, "DeploymentConfig.name = 'Chat!'"),
        ({"resources": {"num_cpus": -1}}, "ResourceOptions.num_cpus = -1"),
        (
            {"resources": {"ray": {"runtime_env": {"env_var": {"TOKEN": "s3cret"}}}}},
            "RayOptions: Ray's runtime_env has no key 'env_var'; did you mean 'env_vars'?",
        ),
        (
            {"resources": {"ray": {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": 1, "TOKEN": "s3cret"}}}}},
            "RayOptions: env_vars of the runtime_env should be a table of texts; put numbers in quotes",
        ),
    ],
)
def test_an_option_that_cannot_be_is_named_with_its_value_and_its_limit(options: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DeploymentConfig(**{"name": "chat", **options})
    assert sentence in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_replicas": 0}, "max_replicas = 0: input should be greater than or equal to 1"),
        ({"target_ongoing_requests": 0}, "target_ongoing_requests = 0: input should be greater than 0"),
        ({"target_ongoing_requests": float("nan")}, "target_ongoing_requests = nan: input should be less than"),
        ({"upscaling_factor": 1.5}, "upscaling_factor = 1.5: input should be less than or equal to 1"),
        ({"min_replica": 1}, "AutoscalingConfig has no option 'min_replica'"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas = 3 is more than max_replicas = 2"),
        ({"initial_replicas": 0}, "initial_replicas = 0 is less than min_replicas = 1"),
        ({"initial_replicas": 9, "max_replicas": 8}, "initial_replicas = 9 is more than max_replicas = 8"),
        (
            {"upscaling_factor": 0.5, "upscale_delay_s": 0},
            "upscaling_factor = 0.5 has no effect with upscale_delay_s = 0",
        ),
        (
            {"downscaling_factor": 0.5, "downscale_delay_s": 0},
            "downscaling_factor = 0.5 has no effect with downscale_delay_s = 0",
        ),
    ],
)
def test_an_autoscaling_config_that_cannot_be_says_which_numbers_do_not_agree(options: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AutoscalingConfig(**options)


def test_a_config_alone_is_auto_and_auto_alone_is_the_config_of_defaults() -> None:
    alone = DeploymentConfig(name="chat", autoscaling_config=AutoscalingConfig(max_replicas=3))
    assert alone.num_replicas == "auto"
    auto = DeploymentConfig(name="chat", num_replicas="auto")
    assert auto.autoscaling_config == AutoscalingConfig()
    assert DeploymentConfig(name="chat").autoscaling_config is None
    for config in (alone, auto, DeploymentConfig(name="chat", num_replicas=2)):
        assert DeploymentConfig(**config.model_dump()) == config
        assert DeploymentConfig(**json.loads(config.model_dump_json())) == config


def test_a_deployment_starts_with_its_number_or_with_that_of_its_config() -> None:
    def starts(**options: Any) -> int:
        return DeploymentConfig(name="chat", **options).starting_replicas

    assert starts() == 1
    assert starts(num_replicas=4) == 4
    assert starts(num_replicas="auto") == 1
    assert starts(autoscaling_config={"min_replicas": 0}) == 0
    assert starts(autoscaling_config={"min_replicas": 2, "initial_replicas": 5}) == 5


def test_a_plan_starts_with_the_replicas_that_its_autoscaling_says() -> None:
    app = Toolkit(deployment=DeploymentConfig(name="app", autoscaling_config=AutoscalingConfig(initial_replicas=2)))
    spec = plan(app, target="x:app", app_dir="/")
    assert spec.num_cpus == pytest.approx(0.2)
    assert ApplicationSpec(**json.loads(spec.model_dump_json())) == spec


def test_a_number_that_is_asked_for_is_for_ingresses_that_set_none(caplog: pytest.LogCaptureFixture) -> None:
    app = Toolkit(deployment=DeploymentConfig(name="app", max_ongoing_requests=7))
    for name, options in {
        "one": {"num_replicas": 1},
        "same": {"num_replicas": 3},
        "auto": {"num_replicas": "auto"},
        "scaled": {"autoscaling_config": AutoscalingConfig(max_replicas=2)},
    }.items():
        app.include_router(APIRouter(), deployment=DeploymentConfig(name=name, **options))  # type: ignore[arg-type]
    alone = plan(app, target="x:app", app_dir="/")
    assert caplog.messages == []
    asked = plan(app, target="x:app", app_dir="/", num_replicas=3)
    assert [each.config.num_replicas for each in alone.deployments] == [1, 1, 3, "auto", "auto"]
    assert [each.config.num_replicas for each in asked.deployments] == [3, 1, 3, "auto", "auto"]
    assert asked.deployments[1:] == alone.deployments[1:]
    assert caplog.messages == [
        f"deployment {name!r} keeps num_replicas = {kept!r}: its code sets that, so 3 was not applied"
        for name, kept in (("one", 1), ("auto", "auto"), ("scaled", "auto"))
    ]


def test_a_plain_fastapi_is_one_ingress() -> None:
    app = FastAPI()
    app.add_api_route("/a", lambda: 1)
    spec = plan(app, target="x:app", app_dir="/", num_replicas=3)
    assert [(i.config.name, i.config.num_replicas) for i in spec.deployments] == [("app", 3)]
    assert {route.owner for route in spec.routes} == {"app"}


def test_the_apps_own_ingress_can_be_configured() -> None:
    app = Toolkit(deployment=DeploymentConfig(name="edge", max_ongoing_requests=7))
    assert plan(app, target="x:app", app_dir="/").default == "edge"


class PickyRoute(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope)


def test_a_route_class_with_its_own_matches_needs_an_app_of_one_ingress() -> None:
    picky = APIRouter(route_class=PickyRoute)
    picky.add_api_route("/picky", lambda: 1)
    app = Toolkit()
    app.include_router(picky)
    plan(app, target="x:app", app_dir="/")
    app.include_router(APIRouter(), deployment=CHAT)
    with pytest.raises(PlanningError, match=r"'/picky' is a PickyRoute, which has a matches\(\) of its own"):
        plan(app, target="x:app", app_dir="/")


def test_template_hash_changes_only_with_options_that_need_a_restart() -> None:
    def revision(**options: Any) -> str:
        app = Toolkit(deployment=DeploymentConfig(name="app", **options))
        return plan(app, target="x:app", app_dir="/").template_hash("app")

    assert revision() == revision(num_replicas=5, max_queue_wait_s=1, health_check_period_s=1)
    assert revision() == revision(max_surge=2, max_unavailable="50%")
    assert revision() == revision(max_ongoing_requests=3, max_open_websockets=3)
    assert revision() == revision(autoscaling_config={"max_replicas": 3})
    others: list[dict[str, Any]] = [
        {"resources": {"num_cpus": 2}},
        {"on_disconnect": "cancel"},
        {"max_replicas_per_node": 1},
    ]
    assert len({revision(), *(revision(**other) for other in others)}) == 4


def test_another_user_config_is_no_other_revision_but_whether_there_is_one_is() -> None:
    class Model:
        def reconfigure(self, config: dict[str, int]) -> None: ...

    def revision(user_config: dict[str, int] | None) -> str:
        app = Toolkit(deployments=[deployment(Model, name="model", user_config=user_config).bind()])
        return plan(app, target="x:app", app_dir="/").template_hash("model")

    assert revision({"size": 1}) == revision({"size": 2}) != revision(None)
