"""Which deployments an app calls: found wherever a route depends on them."""

import os
import sysconfig
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Security, WebSocket
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Host, Mount

from app_toolkit import Deployment, DeploymentConfig, Toolkit, idempotent
from app_toolkit.declare.deployment import Bound
from app_toolkit.declare.planning import about_data, find, logical_cpus, plan, plan_bound, with_files
from app_toolkit.errors import ConfigError, PlanningError


class Model(Deployment):
    def __init__(self, *needs: Any) -> None:
        self.needs = needs


def model(name: str, *needs: Any) -> Bound[Model]:
    return Model.options(name=name).bind(*needs)


def names(app: FastAPI) -> list[str]:
    return [each.name for each in find(app)]


def nothing() -> None: ...


def test_an_app_that_calls_nothing_has_none() -> None:
    assert find(Toolkit()) == find(FastAPI()) == ()


def test_dependencies_are_found_at_every_level() -> None:
    def inner(model: Annotated[Model, Depends(model("inner"))]) -> None: ...

    class Outer:
        def __init__(self, inner: Annotated[None, Depends(inner)]) -> None: ...

    router = APIRouter(dependencies=[Depends(model("of-router"))])

    @router.get("/a", dependencies=[Depends(model("of-decorator"))])
    def a(outer: Annotated[Outer, Depends()], x: Annotated[Model, Security(model("secure"))]) -> None: ...

    @router.websocket("/ws")
    async def ws(ws: WebSocket, model: Annotated[Model, Depends(model("of-websocket"))]) -> None: ...

    nested = APIRouter()
    nested.include_router(router, prefix="/n", dependencies=[Depends(model("of-include"))])
    app = Toolkit(dependencies=[Depends(model("of-app"))])
    app.include_router(nested, deployment=DeploymentConfig(name="chat"))
    assert set(names(app)) == {
        *("inner", "of-router", "of-decorator", "secure", "of-websocket", "of-include", "of-app"),
    }


def test_handle_is_a_dependency_on_its_deployment() -> None:
    app = FastAPI()
    app.get("/", dependencies=[Depends(model("of-handle").handle)])(nothing)
    assert names(app) == ["of-handle"]


def app_with(dependency: Bound[Model], **options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.get("/", dependencies=[Depends(dependency)])(nothing)
    return app


def test_dependencies_of_mounted_apps_are_found() -> None:
    app = FastAPI()
    app.mount("/plain", app_with(model("plain"), middleware=[Middleware(GZipMiddleware)]))
    app.router.routes.append(Mount("/starlette", Starlette(routes=[Mount("/deep", app_with(model("deep")))])))
    app.router.routes.append(Host("example.org", app_with(model("by-host"))))
    app.mount("/toolkit", Toolkit(deployments=[model("of-mounted")]))
    app.mount("/files", nothing)  # type: ignore[arg-type]
    assert names(app) == ["plain", "deep", "by-host", "of-mounted"]


def test_deployments_without_a_route_are_given_to_the_toolkit() -> None:
    first, second = model("first"), model("second")
    assert find(Toolkit(deployments=[first, second])) == (first, second)
    with pytest.raises(
        PlanningError, match=r"^Toolkit\(deployments=...\) takes what `bind` gives, not <Handle of first"
    ):
        Toolkit(deployments=[first.handle])  # type: ignore[list-item]


def test_a_route_added_later_is_found_and_one_deployment_is_found_once() -> None:
    shared = model("shared")
    app = Toolkit(deployments=[shared])
    for path in ("/a", "/b"):
        app.get(path, dependencies=[Depends(shared)])(nothing)
    assert find(app) == (shared,)
    app.get("/c", dependencies=[Depends(model("late"))])(nothing)
    assert names(app) == ["shared", "late"]


def test_plan_has_the_calls_of_each_deployment() -> None:
    base, anywhere = model("base"), model("anywhere")
    front, own = model("front", base.handle), model("own")
    router = APIRouter()
    router.get("/chat", dependencies=[Depends(front), Depends(anywhere)])(nothing)
    app = Toolkit(deployments=[anywhere])
    app.get("/", dependencies=[Depends(own)])(nothing)
    app.include_router(router, deployment=DeploymentConfig(name="chat"))
    calls = {each.config.name: set(each.calls) for each in plan(app, target="x:app", app_dir="/").deployments}
    assert calls == {
        "app": {"anywhere", "own"},
        "chat": {"anywhere", "front"},
        "front": {"base"},
        "anywhere": set(),
        "base": set(),
        "own": set(),
    }
    plain = plan(app_with(front), target="x:app", app_dir="/")
    assert [(each.config.name, each.calls) for each in plain.deployments] == [
        ("app", ("front",)),
        ("base", ()),
        ("front", ("base",)),
    ]
    bound = plan_bound(front, b"", app_dir="/", num_replicas=3)
    assert [(each.config.name, each.config.num_replicas, each.calls) for each in bound.deployments] == [
        ("base", 1, ()),
        ("front", 3, ("base",)),
    ]


@pytest.mark.parametrize("fork", [True, False])
def test_an_app_says_whether_its_replicas_may_be_forks(fork: bool) -> None:
    assert plan(Toolkit(fork=fork), target="shop:app", app_dir=".").fork is fork


def test_a_number_that_is_asked_for_is_for_a_bound_deployment_that_sets_none(caplog: pytest.LogCaptureFixture) -> None:
    def number(bound: Bound[Model]) -> int | str:
        return plan_bound(bound, b"", app_dir="/", num_replicas=3).deployment("front").config.num_replicas

    assert number(model("front")) == 3
    assert caplog.messages == []
    assert number(Model.options(name="front", num_replicas=1).bind()) == 1
    assert caplog.messages == ["deployment 'front' keeps num_replicas = 1: its code sets that, so 3 was not applied"]


def test_a_circle_is_shown() -> None:
    later: list[Any] = []
    a = model("a", later)
    b = model("b", a.handle)
    c = model("c", b.handle)
    later.append(c.handle)
    with pytest.raises(PlanningError, match=r"^deployments are bound in a circle: b -> a -> c -> b$"):
        find(app_with(model("outside", b.handle)))


def test_two_deployments_of_one_name_are_refused_and_the_way_is_named() -> None:
    first, second = Model.bind(), Model.bind()
    said = r"^a deployment of Model and a deployment of Model are both named 'model': .* Model.options"
    with pytest.raises(PlanningError, match=said):
        find(Toolkit(deployments=[first, second]))
    assert find(Toolkit(deployments=[first, model("other")]))


def test_a_deployment_is_not_named_as_an_ingress_is() -> None:
    with pytest.raises(PlanningError, match=r"^an ingress and a deployment of Model are both named 'app'"):
        find(Toolkit(deployments=[model("app")]))


@given(st.integers(0, 2**32))
def test_deployments_come_once_and_after_their_dependencies(seed: int) -> None:
    rng = Random(seed)
    made: list[Bound[Model]] = []
    for number in range(rng.randint(1, 12)):
        needs = rng.sample(made, rng.randint(0, min(3, len(made))))
        made.append(model(f"m{number}", [each.handle for each in needs]))
    used = rng.sample(made, rng.randint(0, len(made)))
    found = find(Toolkit(deployments=used))

    expected = set()
    left = list(used)
    while left:
        each = left.pop()
        expected.add(each)
        left += each.needs
    assert len(found) == len(set(found))
    assert set(found) == expected
    for index, each in enumerate(found):
        assert set(each.needs) <= set(found[:index])


@pytest.mark.parametrize(("working_dir", "begins"), [("data", "data"), (".", "."), ("..", ".")])
def test_plan_packs_the_folder_of_the_app(working_dir: str, begins: str, tmp_path: Path) -> None:
    specs = []
    for name in ("one", "other"):
        folder = tmp_path / name / "app"
        (folder / "data").mkdir(parents=True)
        (folder / "shop.py").write_text("app = 1")
        where = (folder / working_dir).resolve()
        spec = plan(FastAPI(), target="shop:app", app_dir=str(folder), working_dir=str(where))
        found, code, _ = with_files(spec)
        assert (found.app_dir, found.working_dir, [*code]) == (".", begins, [found.artifact])
        specs.append(found)
    assert specs[0] == specs[1]
    assert specs[0].template_hash("app") != spec.template_hash("app")


def test_installed_modules_are_not_packed() -> None:
    installed = str(Path(sysconfig.get_path("purelib")).resolve())
    spec = plan(FastAPI(), target="shop:app", app_dir=installed)
    assert with_files(spec) == (spec, {}, [])


def test_sentences_name_files_that_are_not_packed_and_folders_that_are_read_only(tmp_path: Path) -> None:
    for name in (".env", *(f"{number}.db" for number in range(6)), "uploads/a.png", "static/a.css"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    spec = plan(FastAPI(), target="shop:app", app_dir=str(tmp_path))
    sentences = [
        "Not packed by deploy: .env, 0.db, 1.db, 2.db, 3.db and 2 more. The option `include` packs files. Data belongs "
        "in the folder that APP_TOOLKIT_DATA names.",
        "Packed by deploy, and read-only for the app: uploads/. Data belongs in the folder that APP_TOOLKIT_DATA "
        "names.",
    ]
    assert with_files(spec)[2] == about_data(spec) == sentences
    assert about_data(spec, ["*.db", ".env"]) == sentences[1:]
    (sentence,) = about_data(spec, ["lost"])
    assert sentence.startswith("Not deployable: include has 'lost', and no file or folder below ")


def depends_on_the_class(app: FastAPI) -> FastAPI:
    router = APIRouter()

    @router.get("/write")
    def write(model: Annotated[Model, Depends()]) -> None: ...

    app.include_router(router, prefix="/texts")
    return app


NOT_BOUND = (
    r"^the route '/texts/write' has Depends\(Model\), which constructs the class for each request: bind it, as in "
    r"model = Model.bind\(...\), and depend on that: Depends\(model\)$"
)


@pytest.mark.parametrize("app", [FastAPI(), Toolkit()])
def test_a_route_that_depends_on_a_class_that_is_not_bound_is_refused(app: FastAPI, tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match=NOT_BOUND):
        plan(depends_on_the_class(app), target="shop:app", app_dir=str(tmp_path))


@pytest.mark.anyio
async def test_a_class_that_is_not_bound_is_refused_in_one_process_with_and_without_a_lifespan() -> None:
    with pytest.raises(PlanningError, match=NOT_BOUND):
        TestClient(depends_on_the_class(Toolkit())).get("/texts/write")
    said: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message)

    await depends_on_the_class(Toolkit())({"type": "lifespan"}, receive, send)
    (failed,) = said
    assert failed["type"] == "lifespan.startup.failed"
    assert "depend on that: Depends(model)" in failed["message"]


def test_idempotent_is_refused_on_endpoints() -> None:
    app = Toolkit()

    @app.post("/embed")
    @idempotent
    async def embed() -> None: ...

    with pytest.raises(PlanningError, match=r"the route '/embed': @idempotent marks methods that are called"):
        plan(app, target="shop:app", app_dir=".")

    class Front(Deployment):
        @idempotent
        async def __call__(self, request: Request) -> None: ...

    with pytest.raises(PlanningError, match=r"Front\.__call__ answers HTTP: @idempotent marks methods"):
        plan_bound(Front.bind(), b"", app_dir=".")


def test_the_plan_says_which_methods_are_idempotent() -> None:
    class Index(Deployment):
        @idempotent
        async def search(self) -> None: ...

        async def add(self) -> None: ...

    [index] = plan_bound(Index.bind(), b"", app_dir=".").deployments
    assert index.kind == "class"
    assert (index.idempotent, list(index.methods)) == (("search",), ["add", "search"])


def test_a_routing_policy_that_cannot_be_imported_is_refused() -> None:
    why = "class Model: the routing policy 'nowhere:choose' cannot be imported: ModuleNotFoundError: No module named"
    with pytest.raises(ConfigError, match=why):
        plan_bound(Model.options(routing_policy="nowhere:choose").bind(), None, target="shop:model", app_dir="/")


@pytest.mark.filterwarnings("ignore::fastapi.exceptions.FastAPIDeprecationWarning")
def test_a_root_path_that_hides_every_route_below_the_route_prefix_is_refused() -> None:
    app = Toolkit(root_path="/api")
    assert plan(app, target="x:app", app_dir="/").root_path == "/api"
    assert plan(app, target="x:app", app_dir="/", route_prefix="/api").root_path == "/api"
    with pytest.raises(ConfigError, match=r"route prefix '/shop'.*root_path='/api'.*remove root_path"):
        plan(app, target="x:app", app_dir="/", route_prefix="/shop")


def test_a_local_ray_has_cpus_for_the_shared_stream_log_too() -> None:
    here = os.cpu_count() or 1
    app = Toolkit(deployment=DeploymentConfig(name="app", num_replicas=here, resources={"num_cpus": 1}))
    spec = plan(app, target="shop:app", app_dir=".")
    assert logical_cpus([spec]) == here
    assert logical_cpus([spec.model_copy(update={"stream_log": "shared"})]) == here + 1
