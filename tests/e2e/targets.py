"""One of each kind that a target may name. Each says whether its lifespan has run, if it has one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from app_toolkit import Deployment


@asynccontextmanager
async def life(app: Any) -> AsyncIterator[None]:
    app.state.up = True
    yield


fast = FastAPI(lifespan=life)


@fast.get("/kind")
def kind(request: Request) -> dict[str, Any]:
    return {"kind": "fast", "up": request.app.state.up}


def create_app(kind: str = "factory") -> FastAPI:
    app = FastAPI(lifespan=life)

    @app.get("/kind")
    def read(request: Request) -> dict[str, Any]:
        return {"kind": kind, "up": request.app.state.up}

    return app


async def _of_starlette(request: Request) -> JSONResponse:
    return JSONResponse({"kind": "starlette", "up": request.app.state.up})


star = Starlette(routes=[Route("/kind", _of_starlette)], lifespan=life)


async def raw(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http", "an app that knows no lifespans raises"
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"kind": "raw", "up": false}'})


class Raw:
    """A class of apps, as frameworks have them."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await raw(scope, receive, send)


instance = Raw()


class Greeter(Deployment, resources={"num_cpus": 0.1}):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.up = False

    async def start(self) -> None:
        self.up = True

    def reconfigure(self, user_config: dict[str, str]) -> None:
        self.kind = user_config["kind"]

    async def __call__(self, request: Request) -> dict[str, Any]:
        return {"kind": self.kind, "up": self.up}


bound = Greeter.bind("bound")


def answer(request: Request) -> dict[str, Any]:
    return {"kind": "function", "up": False}


KINDS: dict[str, dict[str, Any]] = {
    "fast": {"kind": "fast", "up": True},
    "create_app": {"kind": "factory", "up": True},
    "star": {"kind": "starlette", "up": True},
    "raw": {"kind": "raw", "up": False},
    "instance": {"kind": "raw", "up": False},
    "bound": {"kind": "bound", "up": True},
    "answer": {"kind": "function", "up": False},
}
"""What each answers at `/kind`."""


def file(folder: str) -> str:
    """All of them as applications of a file, below prefixes of their own."""
    applications = (
        f"  {name.replace('_', '-')}: {{target: 'targets:{name}', route_prefix: /{name}, app_dir: {folder}}}\n"
        for name in KINDS
    )
    return "applications:\n" + "".join(applications)
