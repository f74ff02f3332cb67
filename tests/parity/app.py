"""One FastAPI application with everything that a server could treat differently.

`build(FastAPI)` is the reference; `build(Toolkit, deployments)` gives some of its routers replicas of their
own. What a request leaves behind for a later one lies in a folder that the client names, since the two may
meet different processes.
"""

import contextvars
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import inputs, live, outputs
from .ground import FILES, ran, signal_mark, signals, touch, trail

ROUTERS = {"inputs": inputs.router, "outputs": outputs.router, "live": live.router}


class Started(TypedDict):
    """What the app's lifespan leaves in `request.state`."""

    greeting: str
    numbers: list[int]


in_lifespan = contextvars.ContextVar("in_lifespan", default="unset")


def handled(name: str) -> None:
    touch(signal_mark[name], f"{name}-handled")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[Started]:
    in_lifespan.set("set")
    ran.add("app")
    app.state.colour = "green"
    try:
        previous = signal.signal(signal.SIGUSR1, lambda number, frame: handled("SIGUSR1"))
        signals["SIGUSR1"] = "installed"
    except ValueError as error:
        previous = None
        signals["SIGUSR1"] = str(error)
    loop = live.running_loop()
    try:
        loop.add_signal_handler(signal.SIGUSR2, handled, "SIGUSR2")
        signals["SIGUSR2"] = "installed"
    except (RuntimeError, ValueError) as error:
        signals["SIGUSR2"] = str(error)
    yield {"greeting": "hello", "numbers": [1, 2, 3]}
    if signals["SIGUSR2"] == "installed":
        loop.remove_signal_handler(signal.SIGUSR2)
    if previous is not None:
        signal.signal(signal.SIGUSR1, previous)
    ran.discard("app")


class Trail:
    """A middleware without a framework: a contextvar inwards, a response header outwards."""

    def __init__(self, app: ASGIApp, step: str) -> None:
        self.app = app
        self.step = step

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-trail", self.step.encode())]
            await send(message)

        token = trail.set((*trail.get(), self.step))
        try:
            await self.app(scope, receive, marked)
        finally:
            trail.reset(token)


class Around(BaseHTTPMiddleware):
    """What `@app.middleware("http")` adds, except where a client asks to be without it.

    It changes how an app sees its client leave, and ends a broken stream as if it were whole.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = self.app if (b"x-direct", b"yes") in scope.get("headers", ()) else super().__call__
        await inner(scope, receive, send)

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("x-stop-here") == "yes":
            return PlainTextResponse("stopped by the middleware", status_code=418)
        response = await call_next(request)
        response.headers["x-around"] = request.url.path.encode("unicode_escape").decode("ascii")
        return response


class Refusal(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class Anything:
    """An ASGI app as a Starlette endpoint: it gets every method."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = PlainTextResponse(f"any: {scope['method']}", headers={"x-any": "thing"})
        await response(scope, receive, send)


class Duplex:
    """Answers each piece of a request's body while the rest is still to come."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-duplex", b"yes")]})
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            piece = message.get("body", b"").upper()
            await send({"type": "http.response.body", "body": piece, "more_body": more})


def build(cls: type[FastAPI], deployments: Mapping[str, Any] | None = None) -> FastAPI:
    app = cls(title="Parity", version="1.2.3", lifespan=lifespan)
    app.dependency_overrides[inputs.original] = lambda: "the override"

    app.add_middleware(GZipMiddleware, minimum_size=500)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["https://front.test"],
        allow_methods=["GET", "PUT"],
        allow_headers=["x-token"],
        expose_headers=["x-trail"],
        allow_credentials=True,
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["parity.test", "127.0.0.1"])
    app.add_middleware(Trail, step="inner")
    app.add_middleware(Trail, step="outer")
    app.add_middleware(Around)

    @app.exception_handler(Refusal)
    async def refusal(request: Request, error: Refusal) -> JSONResponse:
        return JSONResponse({"refused": error.code, "path": request.url.path}, error.code, {"x-refusal": "yes"})

    for name, router in ROUTERS.items():
        if deployments and name in deployments:
            app.include_router(router, deployment=deployments[name])  # type: ignore[call-arg]
        else:
            app.include_router(router)

    @app.get("/")
    async def root() -> dict[str, str]:
        return {"app": "parity"}

    @app.get("/lifespans")
    async def lifespans() -> list[str]:
        return sorted(ran)

    @app.get("/state")
    async def state(request: Request) -> dict[str, Any]:
        return {
            "greeting": request.state.greeting,
            "numbers": request.state.numbers,
            "colour": request.app.state.colour,
            "same app": request.app is app,
            "contextvar of the lifespan": in_lifespan.get(),
        }

    @app.get("/links")
    async def links(request: Request) -> dict[str, str]:
        return {
            "own": str(request.url_for("root")),
            "inputs": str(request.url_for("read_number", n=7)),
            "outputs": str(request.url_for("one_line", line="a b?ä")),
            "live": str(request.url_for("release", step=3)),
            "static": str(request.url_for("static", path="letters.txt")),
            "mounted": str(request.url_for("mounted:inside", word="w")),
            "query": str(request.url_for("root").include_query_params(q="ä")),
            "relative": str(app.url_path_for("read_number", n=8)),
        }

    @app.get("/refuse/{code}")
    async def refuse(code: int) -> None:
        raise Refusal(code)

    @app.get("/slash/")
    async def slash() -> str:
        return "with a slash"

    @app.get("/no-slash")
    async def no_slash() -> str:
        return "without a slash"

    # A path that two ingresses share: its prefix is that of `outputs`, and the app's own ingress serves it.
    @app.post("/outputs/json")
    async def post_beside_outputs() -> str:
        return "the app's own POST"

    @app.get("/outputs/of-the-app")
    async def below_outputs() -> str:
        return "the app's own GET"

    async def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.method} {request.url.path}")

    app.add_route("/starlette/plain", plain, methods=["GET", "PURGE"])
    app.router.routes.append(Route("/starlette/any", Anything()))

    app.router.routes.append(Route("/starlette/duplex", Duplex()))

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    app.router.routes.append(WebSocketRoute("/starlette/ws", echo))

    async def inside(request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "word": request.path_params["word"],
                "root_path": request.scope["root_path"],
                "path": request.scope["path"],
                "url": str(request.url),
                "base_url": str(request.base_url),
            }
        )

    async def inside_ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_json([websocket.scope["root_path"], websocket.scope["path"]])
        await websocket.close(4001)

    app.mount(
        "/mounted",
        Starlette(
            routes=[
                Route("/inside/{word}", inside, name="inside"),
                WebSocketRoute("/ws", inside_ws),
                Mount("/deeper", routes=[Route("/inside/{word}", inside)]),
            ]
        ),
        name="mounted",
    )

    sub = FastAPI(title="Sub")

    @sub.middleware("http")
    async def around_sub(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers["x-around-sub"] = request.method
        return response

    @sub.get("/items/{item}")
    async def sub_item(item: int, request: Request) -> dict[str, Any]:
        return {"item": item, "root_path": request.scope["root_path"], "url": str(request.url)}

    app.mount("/sub", sub)
    app.mount("/static", StaticFiles(directory=FILES, html=True), name="static")
    app.frontend("/site", directory=FILES / "front")
    return app
