"""The route table is held against FastAPI's own choice, over random apps and random requests."""

import asyncio
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from fastapi import APIRouter
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette._utils import get_route_path
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.config.models import Route
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.routes import RouteLookup, RouteTable, route_path, strip_prefix
from app_toolkit.contract.targets import Target
from app_toolkit.declare.planning import plan
from app_toolkit.userapp.cors import cors_of
from tests.keys import key
from tests.published import application

SEGMENTS = ["a", "b", "c", "items", "{id}", "{n:int}", "{f:float}", "{u:uuid}", "{x}-{y}", "v{n:int}", "é", "a.b"]
METHODS = [["GET"], ["POST"], ["GET", "POST"], ["PUT"], ["DELETE"]]
UUID = "12345678-1234-1234-1234-123456789abc"
VALUES = ["a", "b", "c", "items", "7", "3.5", "x-y", "v9", "é", "a.b", UUID, "a\n", "\n", "", "m", "in", "p", "ui"]
PREFIXES = ["", "/p", "/a", "/a/b", "/{tenant}"]
INGRESSES = [DeploymentConfig(name=name) for name in ("app", "one", "two", "three")]


def random_path(rng: Random) -> str:
    segments: list[str] = []
    names: set[str] = set()
    for _ in range(rng.randint(1, 3)):
        segment = rng.choice(SEGMENTS)
        found = set(re.findall(r"{(\w+)", segment))
        if not names & found:
            names |= found
            segments.append(segment)
    return "/" + "/".join(segments) + rng.choice(["", "", "", "", "/", "/{rest:path}"])


def endpoint() -> int:
    return 1


async def talk(websocket: Any) -> None: ...


def random_router(rng: Random) -> APIRouter:
    router = APIRouter(prefix=rng.choice(PREFIXES))
    for _ in range(rng.randint(1, 4)):
        path = random_path(rng)
        if rng.random() < 0.2:
            router.add_api_websocket_route(path, talk)
        else:
            router.add_api_route(path, endpoint, methods=rng.choice(METHODS))
    if rng.random() < 0.3:
        inner = APIRouter(prefix="/in")
        inner.add_api_route(random_path(rng), endpoint)
        router.include_router(inner)
    return router


def random_app(rng: Random, directory: str) -> Toolkit:
    app = Toolkit(docs_url=None, redoc_url=None, openapi_url=None)
    for _ in range(rng.randint(2, 8)):
        kind = rng.random()
        if kind < 0.15:
            app.add_api_route(random_path(rng), endpoint, methods=rng.choice(METHODS))
        elif kind < 0.25:
            app.mount(rng.choice(["/m", "/a", "/items/m"]), StaticFiles(directory=directory))
        elif kind < 0.3:
            app.router.add_route(random_path(rng), endpoint, methods=["GET"])
        else:
            ingress = rng.choice(INGRESSES)
            app.include_router(
                random_router(rng),
                prefix=rng.choice(["", "", "/v1"]),
                deployment=None if ingress.name == "app" else ingress,
            )
    return app


def fastapis_choice(app: Toolkit) -> Callable[[str, str, str], str | None]:
    """Ask FastAPI itself which top-level route it runs; None where it answers 404 or redirects."""
    hits: list[str] = []
    for node in app.router.routes:

        async def handle(*_: Any, node: Any = node) -> None:
            hits.append(app.owner_of(node))

        node.handle = handle  # type: ignore[method-assign]

    async def nothing(*_: Any) -> None: ...

    app.router.default = nothing  # type: ignore[method-assign]

    def ask(kind: str, method: str, path: str) -> str | None:
        hits.clear()
        scope = {"type": kind, "path": path, "headers": [(b"host", b"x")], "scheme": "http", "server": ("x", 80)}
        scope |= {"query_string": b"", "root_path": ""}
        if kind == "http":
            scope["method"] = method
        asyncio.run(app.router.app(scope, nothing, nothing))
        return hits[0] if hits else None

    return ask


def random_request(rng: Random, paths: list[str]) -> tuple[Any, str, str]:
    if rng.random() < 0.7:
        path = re.sub(r"{(\w+)(:\w+)?}", lambda _: rng.choice(VALUES), rng.choice(paths))
        if rng.random() < 0.2:
            path = path.rstrip("/") if path.endswith("/") else path + "/"
    else:
        path = "/" + "/".join(rng.choice(VALUES) for _ in range(rng.randint(1, 5)))
    kind = "websocket" if rng.random() < 0.15 else "http"
    return kind, rng.choice(["GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "BREW"]), path


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_the_table_names_the_owner_that_fastapi_runs(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = Random(seed)
    app = random_app(rng, str(tmp_path_factory.getbasetemp()))
    spec = plan(app, target="x:app", app_dir="/")
    # What replicas and proxies get went through JSON.
    spec = type(spec).model_validate_json(spec.model_dump_json())
    table = RouteTable(spec.default, spec.routes)
    ask = fastapis_choice(app)
    paths = [route.path for route in spec.routes] or ["/"]
    for _ in range(40):
        kind, method, path = random_request(rng, paths)
        truth = ask(kind, method, path)
        if truth is not None:
            assert table.owner(kind, method, path) == truth, (kind, method, path)


def route(method: str, path: str, owner: str | None) -> Route:
    return Route(kind="http", pattern=f"^{path}$", methods=(method,), path=path, owner=owner)


def test_route_of_a_request_is_a_path_template_and_never_the_path() -> None:
    rows = [
        Route(kind="http", pattern="^/items/(?P<id>[^/]+)$", methods=("GET",), path="/items/{id}", owner="app"),
        route("GET", "/items", "app"),
        Route(kind="websocket", pattern="^/talk$", path="/talk", owner="app"),
        Route(kind="both", pattern="^/static(?P<path>.*)$", path="/static", owner="app"),
    ]
    table = RouteTable("app", rows, "/shop")
    for _ in range(2):  # the second time, some are remembered
        assert table.match("http", "GET", "/items/7") == ("app", "/shop/items/{id}")
        assert table.match("http", "GET", "/items") == ("app", "/shop/items")
        assert table.match("http", "DELETE", "/items") == ("app", "/shop/items"), "the app responds with 405"
        assert table.match("websocket", "", "/talk") == ("app", "/shop/talk")
        assert table.match("http", "GET", "/static/a/b") == ("app", "/shop/static")
        assert table.match("http", "GET", "/nowhere/7") == ("app", "")


def test_lookup_returns_the_route_of_the_revision_that_was_chosen() -> None:
    old = Route(kind="http", path="/{all:path}", pattern="^/(?P<all>.*)$", methods=("GET",), owner="web")
    new = route("GET", "/cart", "web")
    lookup = RouteLookup([application("shop", "/", "web", old), application("shop@2", "/", "web", new)])
    found = {
        chosen: lookup.find("http", "GET", "/cart", lambda able, number=number: able[number])
        for number, chosen in enumerate((key("shop/web"), key("shop@2/web")))
    }
    assert found == {key("shop/web"): (key("shop/web"), "/{all:path}"), key("shop@2/web"): (key("shop@2/web"), "/cart")}


def test_an_app_of_one_ingress_owns_everything() -> None:
    table = RouteTable("app", [route("GET", "/a", "app")])
    assert table.owner("http", "GET", "/nowhere") == "app"


def test_a_wrong_method_belongs_to_the_first_route_of_that_path() -> None:
    rows = [route("GET", "/a", "one"), route("POST", "/a", "two")]
    table = RouteTable("app", rows)
    assert table.owner("http", "POST", "/a") == "two"
    assert table.owner("http", "DELETE", "/a") == "one"


def test_unowned_path_does_not_belong_to_the_default_ingress() -> None:
    table = RouteTable("app", [route("GET", "/a", "app"), route("GET", "/b", None)])
    assert [table.owner("http", method, path) for method in ("GET", "POST") for path in ("/a", "/b")] == [
        *("app", None),
        *("app", None),
    ]
    assert table.owner("http", "GET", "/nowhere") == "app"


@pytest.mark.parametrize(
    ("prefix", "path", "below"),
    [
        ("/", "/a", "/a"),
        ("/shop", "/shop/a", "/a"),
        ("/shop", "/shop", ""),
        ("/shop", "/shop/", "/"),
        ("/shop", "/shopping", None),
        ("/shop", "/", None),
    ],
)
def test_a_prefix_is_whole_segments(prefix: str, path: str, below: str | None) -> None:
    assert strip_prefix(prefix, path) == below


@given(root_path=st.text("/a", max_size=4), path=st.text("/ab", max_size=8))
def test_the_root_path_is_removed_as_starlette_does_it(root_path: str, path: str) -> None:
    assert route_path(root_path, path) == get_route_path({"root_path": root_path, "path": path})


@pytest.mark.parametrize("path", ["/items/7", "/api/v1/items/7"])
def test_a_route_is_found_with_and_without_the_root_path_of_its_app(path: str) -> None:
    pattern = "^/items/(?P<id>[^/]+)$"
    items = Route(kind="both", path="/items/{id}", pattern=pattern, owner="items")
    lookup = RouteLookup(
        [
            application("shop", "/", "app", items, root_path="/api/v1"),
            application("shop@2", "/", "app", items, share=0.0, mirror=0.5, root_path="/api"),
            application("other", "/other", "app", items),
        ]
    )
    for kind in ("http", "websocket"):
        assert lookup.find(kind, "GET", path, lambda able: able[0]) == (key("shop/items"), "/items/{id}")
    copied = key("shop@2/items") if path == "/items/7" else key("shop@2/app")
    assert mirrors(lookup, path) == {key("shop/items"): 0.0, copied: 0.5}
    assert lookup.find("http", "GET", "/other/items/7", min)[0] == key("other/items")
    assert lookup.find("http", "GET", "/api/v1s/items/7", lambda able: able[0])[0] == key("shop/app")


def mirrors(lookup: RouteLookup, path: str) -> dict[ReplicaSetKey, float]:
    """Return the mirror share of each live revision that can serve a request, if there are several."""
    shares: dict[ReplicaSetKey, float] = {}

    def choose(able: Sequence[Target]) -> Target:
        shares.update((target.replica_set, target.mirror) for target in able)
        return able[0]

    lookup.find("http", "GET", path, choose)
    return shares


def test_a_mirror_gets_what_it_serves_below_the_same_prefix() -> None:
    cart = Route(kind="http", path="/cart", pattern="^/cart$", methods=("GET",), owner="cart")
    gone = cart.model_copy(update={"owner": None})
    lookup = RouteLookup(
        [
            application("root", "/", "web", mirror=1.0),
            application("shop", "/shop", "web", cart),
            application("shop@2", "/shop", "web", cart, share=0.0, mirror=0.5),
            application("shop@3", "/shop", "web", gone, share=0.0, mirror=0.25),
        ]
    )
    assert mirrors(lookup, "/shop/cart") == {key("shop/cart"): 0.0, key("shop@2/cart"): 0.5}
    others = {key("shop/web"): 0.0, key("shop@2/web"): 0.5, key("shop@3/web"): 0.25}
    assert mirrors(lookup, "/shop/other") == others
    assert mirrors(lookup, "/") == {}


def test_cors_settings_are_those_of_the_revision_or_else_of_the_application_above_the_path() -> None:
    ours, theirs = (cors_of(CORSMiddleware(endpoint, allow_origins=[origin])) for origin in ("ours", "theirs"))
    lookup = RouteLookup(
        [
            application("shop", "/shop", "web", cors=ours),
            application("shop@2", "/shop", "web", share=0.0, cors=theirs),
            application("root"),
        ]
    )
    assert lookup.cors(key("shop@2/web"), "/shop") == theirs
    assert lookup.cors("-", "/shop/cart") == ours
    assert lookup.cors("-", "/cart") == ()
    assert RouteLookup([application(cors=ours)]).cors("-", "") == ()
