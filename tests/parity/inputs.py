"""What a request can carry: parameters, headers, cookies and bodies of every kind."""

import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import (
    APIRouter,
    Cookie,
    Depends,
    Form,
    Header,
    HTTPException,
    Path,
    Query,
    Request,
    Response,
    Security,
    UploadFile,
)
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from starlette.convertors import Convertor, register_url_convertor

from .ground import Mark, append, ran, trail


class Even(Convertor[int]):
    """Even numbers only, so that the odd ones are a 404 of the router."""

    regex = "[0-9]*[02468]"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("even", Even())


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, str]]:
    ran.add("inputs")
    yield {"of_inputs": "state of inputs"}
    ran.discard("inputs")


class Timed(APIRoute):
    """A route class with a handler of its own, and FastAPI's matching."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            response = await inner(request)
            response.headers["x-timed"] = request.method
            return response

        return handler


router = APIRouter(prefix="/inputs", tags=["inputs"], lifespan=lifespan)


@router.get("/lifespans")
async def lifespans(request: Request) -> dict[str, Any]:
    return {"process": os.getpid(), "ran": sorted(ran), "state": request.state.of_inputs}


# Not in the schema: FastAPI names an operation after the first of a set of methods, whichever that is today.
@router.api_route(
    "/method", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"], include_in_schema=False
)
async def method(request: Request) -> dict[str, str]:
    return {"method": request.method}


@router.get("/numbers/{n}")
async def read_number(n: Annotated[int, Path(ge=0, le=1000)]) -> dict[str, int]:
    return {"n": n}


@router.get("/convertors/int/{n:int}")
async def by_int(n: int) -> dict[str, int]:
    return {"int": n}


@router.get("/convertors/even/{n:even}")
async def by_even(n: int) -> dict[str, int]:
    return {"even": n}


@router.get("/words/{word}")
async def by_word(word: str, request: Request) -> dict[str, str]:
    return {"word": word, "path": request.scope["path"], "raw": request.scope["raw_path"].decode("latin-1")}


@router.get("/rest/{rest:path}")
async def by_rest(rest: str, request: Request) -> dict[str, str]:
    return {"rest": rest, "path": request.scope["path"], "raw": request.scope["raw_path"].decode("latin-1")}


@router.get("/query")
async def query(
    needed: str,
    number: int | None = None,
    several: Annotated[list[str], Query()] = [],  # noqa: B006
    renamed: Annotated[str | None, Query(alias="with-dash", max_length=5)] = None,
    flag: bool = False,
) -> dict[str, Any]:
    return {"needed": needed, "number": number, "several": several, "renamed": renamed, "flag": flag}


@router.get("/raw-query")
async def raw_query(request: Request) -> dict[str, Any]:
    return {"raw": request.scope["query_string"].decode("latin-1"), "items": request.query_params.multi_items()}


@router.get("/headers")
async def headers(
    x_token: Annotated[str, Header()],
    x_many: Annotated[list[str], Header()] = [],  # noqa: B006
    under_score: Annotated[str | None, Header(convert_underscores=False)] = None,
) -> dict[str, Any]:
    return {"x-token": x_token, "x-many": x_many, "under_score": under_score}


@router.get("/all-headers")
async def all_headers(request: Request) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]


@router.get("/cookies")
async def cookies(
    request: Request, session: Annotated[str | None, Cookie()] = None, count: Annotated[int, Cookie()] = 0
) -> dict[str, Any]:
    return {"session": session, "count": count, "all": request.cookies}


@router.get("/connection")
async def connection(request: Request) -> dict[str, Any]:
    return {
        "client": request.client,
        "server": request.scope["server"],
        "scheme": request.url.scheme,
        "url": str(request.url),
        "base_url": str(request.base_url),
        "http_version": request.scope["http_version"],
        "root_path": request.scope["root_path"],
        "type": request.scope["type"],
        "asgi": request.scope["asgi"],
    }


class Part(BaseModel):
    name: str
    weight: float = Field(gt=0)


class Item(BaseModel):
    name: str
    parts: list[Part] = []
    note: str | None = None


@router.post("/json")
async def post_json(item: Item) -> Item:
    return item


@router.post("/form")
async def post_form(name: Annotated[str, Form()], tag: Annotated[list[str], Form()] = []) -> dict[str, Any]:  # noqa: B006
    return {"name": name, "tag": tag}


@router.post("/upload")
async def upload(
    file: UploadFile,
    more: list[UploadFile] = [],  # noqa: B006
    note: Annotated[str, Form()] = "",
) -> dict[str, Any]:
    read = [(each.filename, each.content_type, await each.read()) for each in (file, *more)]
    return {
        "files": [(name, kind, len(data), hashlib.sha256(data).hexdigest()) for name, kind, data in read],
        "note": note,
    }


@router.post("/raw")
async def raw(request: Request) -> dict[str, Any]:
    body = await request.body()
    return {"size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "head": body[:20].hex()}


@router.post("/stream")
async def stream(request: Request) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    async for piece in request.stream():
        digest.update(piece)
        size += len(piece)
    return {"size": size, "sha256": digest.hexdigest()}


@router.post("/unread")
async def unread() -> Response:
    return Response("not read", status_code=413, media_type="text/plain")


@router.post("/limited", max_body_size=100)
async def limited(request: Request) -> int:
    return len(await request.body())


async def original() -> str:
    return "the original"


@router.get("/overridden")
async def overridden(value: Annotated[str, Depends(original)]) -> str:
    return value


async def logged(mark: Mark) -> AsyncIterator[str]:
    append(mark, "log", "async set up")
    try:
        yield "resource"
    except HTTPException:
        append(mark, "log", "saw the error")
        raise
    finally:
        append(mark, "log", "async torn down")


def logged_sync(mark: Mark) -> Iterator[str]:
    append(mark, "log", "sync set up")
    yield "resource"
    append(mark, "log", "sync torn down")


@router.get("/resources", dependencies=[Depends(logged), Depends(logged_sync)])
async def resources(mark: Mark, fail: bool = False) -> str:
    append(mark, "log", "endpoint")
    if fail:
        raise HTTPException(409, "failed on purpose", {"x-why": "asked to"})
    return "used"


@router.get("/bearer")
async def bearer(token: Annotated[Any, Security(HTTPBearer())]) -> str:
    return str(token.credentials)


@router.get("/in-a-thread")
def in_a_thread() -> dict[str, Any]:
    return {"worker": threading.current_thread().name == "AnyIO worker thread", "trail": trail.get()}


@router.get("/in-the-loop")
async def in_the_loop() -> dict[str, Any]:
    seen = trail.get()
    trail.set((*seen, "left behind"))
    return {"worker": threading.current_thread().name == "AnyIO worker thread", "trail": seen}


timed = APIRouter(prefix="/timed", route_class=Timed)


@timed.get("/thing")
async def timed_get() -> str:
    return "thing"


@timed.delete("/thing", status_code=202)
async def timed_delete() -> str:
    return "deleted"


router.include_router(timed)
