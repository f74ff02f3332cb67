"""One path in many spellings: the proxy, with a replica per ingress, answers as plain FastAPI does, guards included."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.declare.planning import plan
from tests import published
from tests.beside.listing import plain
from tests.edge.world import Raw, World

KEY = "open-sesame"
ADMIN = DeploymentConfig(name="admin")
USERS = DeploymentConfig(name="users")

SPELLINGS = r"""
    / // /// /. /.. /./ /../ /? /# /%2F /%00 /*
    /admin /admin/ /admin/keys /admin/keys/ //admin/keys /admin//keys /admin/keys// ///admin///keys
    /ADMIN/keys /Admin/Keys /%61dmin/keys /admin/%6Beys /%61%64%6d%69%6e/keys /admin%2Fkeys /admin%2fkeys
    /admin%5Ckeys /admin\keys /admin/keys%00 /admin%00/keys /admin/keys%0A /admin/keys%0D%0A /admin/keys%20
    /./admin/keys /public/../admin/keys /public/%2e%2e/admin/keys /public/..%2Fadmin/keys
    /public/%2e%2e%2fadmin%2fkeys
    /admin/./keys /admin/x/../keys /admin/%2e/keys /admin/keys/. /admin/keys/.. /admin;x=1/keys /admin/keys;x=1
    /admin/keys? /admin/keys?a=/users/1 /admin/keys#x /admin/keys#/users/1 /users/1?/admin/keys /users/1#/admin/keys
    /users/1 /users/1/ /users/01 /users/-1 /users/1.0 /users/%31 /users/1%2F /users/1/.. /users/me /users/m%65
    /users/admin%2Fkeys /users/1%0A /users/%D9%A1 /users/%FF /users/%c3%a9 /users/%2525 /users/%zz
    /files/ /files/a /files/a/b /files//a /files/../admin/keys /files/%2e%2e/admin/keys /files/..%2fadmin%2fkeys
    /files /files%2Fa /mixed /mixed/ /admin/keys/1 /admin/keys/1/ http://a/admin/keys http://a//admin/keys
"""
TARGETS = SPELLINGS.split()
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "DELETE"]


async def guard(x_key: Annotated[str, Header()] = "") -> None:
    if x_key != KEY:
        raise HTTPException(401, "who are you?")


def build(app: FastAPI) -> FastAPI:
    """Three ingresses where `app` is a Toolkit: a guarded one, one with parameters, and one for the rest."""
    several = isinstance(app, Toolkit)

    def include(router: APIRouter, ingress: DeploymentConfig, **options: Any) -> None:
        app.include_router(router, **options, **({"deployment": ingress} if several else {}))

    admin, users = APIRouter(prefix="/admin"), APIRouter(prefix="/users")

    @admin.get("/keys")
    async def keys() -> dict[str, str]:
        return {"handler": "keys"}

    @admin.api_route("/keys/{number:int}", methods=["GET", "DELETE"])
    async def key(number: int) -> dict[str, Any]:
        return {"handler": "key", "number": number}

    @users.get("/me")
    async def me() -> dict[str, str]:
        return {"handler": "me"}

    @users.get("/{number}")
    async def user(number: str) -> dict[str, str]:
        return {"handler": "user", "number": number}

    include(admin, ADMIN, dependencies=[Depends(guard)])
    include(users, USERS)

    @app.get("/")
    async def root() -> dict[str, str]:
        return {"handler": "root"}

    @app.get("/files/{rest:path}")
    async def files(rest: str) -> dict[str, str]:
        return {"handler": "files", "rest": rest}

    @app.get("/mixed")
    async def read() -> dict[str, str]:
        return {"handler": "read"}

    mixed = APIRouter()

    @mixed.post("/mixed")
    async def write() -> dict[str, str]:
        return {"handler": "write"}

    include(mixed, ADMIN, dependencies=[Depends(guard)])
    return app


@pytest.fixture(scope="module")
def split(world: World) -> World:
    """The app behind the proxy, each ingress on a replica of its own that serves no other's routes."""
    spec = plan(build(Toolkit()), target="x:app", app_dir="/")
    snapshots: dict[str, Any] = {}
    for ingress in ("app", "admin", "users"):
        app = build(Toolkit())
        assert isinstance(app, Toolkit)
        app.serve_only(ingress)
        snapshots[f"replicas/shop/{ingress}"] = published.replica_set(
            world.replica(app=app).endpoint(), max_queue_wait_s=5.0
        )
    assert spec.default is not None
    application = published.application("shop", "/", spec.default, *spec.routes)
    world.edge.post({"routes": published.routes(application), **snapshots})
    return world


@pytest.fixture(scope="module")
def bare() -> Iterator[int]:
    with plain(build(FastAPI())) as port:
        yield port


def ask(port: int, method: str, target: str, key: str) -> tuple[int, bytes, str | None, str | None]:
    """Status, body, and the two fields that routing decides."""
    with Raw(port) as raw:
        raw.send(f"{method} {target} HTTP/1.1\r\nhost: a\r\nx-key: {key}\r\n\r\n".encode())
        got = raw.answer(method)
        return got.status, got.body, got.header("location"), got.header("allow")


@pytest.mark.parametrize("target", TARGETS)
def test_the_route_that_answers_is_fastapis_choice_and_no_guard_is_passed(split: World, bare: int, target: str) -> None:
    for method in METHODS:
        for key in ("", KEY):
            answer = ask(split.port, method, target, key)
            assert answer == ask(bare, method, target, key), method
            guarded = any(handler in answer[1] for handler in (b'"keys"', b'"key"', b'"write"'))
            assert not guarded or key == KEY


def test_the_targets_reach_every_handler(bare: int) -> None:
    bodies = {ask(bare, method, target, KEY)[1] for target in TARGETS for method in METHODS}
    for handler in (b"keys", b"key", b"me", b"user", b"root", b"files", b"read", b"write"):
        assert any(b'"handler":"%b"' % handler in body for body in bodies), handler
    assert len(TARGETS) >= 60
