"""What a response can be: kinds, status codes, headers, cookies, files, errors."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

from .ground import FILES, ran


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, str]]:
    ran.add("outputs")
    yield {"of_outputs": "state of outputs"}
    ran.discard("outputs")


router = APIRouter(prefix="/outputs", tags=["outputs"], lifespan=lifespan)

MEGABYTES = bytes(range(256)) * 4 * 1024 * 5


@router.get("/lifespans")
async def lifespans(request: Request) -> dict[str, Any]:
    return {"process": os.getpid(), "ran": sorted(ran), "state": request.state.of_outputs}


@router.get("/json")
async def as_json() -> dict[str, Any]:
    return {"text": "äöü €", "null": None, "list": [1, 2.5, True]}


@router.get("/plain", response_class=PlainTextResponse)
async def as_plain() -> str:
    return "grüße"


@router.get("/bytes")
async def as_bytes() -> Response:
    return Response(bytes(range(256)), media_type="application/octet-stream")


@router.get("/empty")
async def empty() -> Response:
    return Response()


@router.get("/redirect/{code}")
async def redirect(code: int) -> RedirectResponse:
    return RedirectResponse("/outputs/json?a=b c#d", status_code=code)


@router.get("/redirect-to-name")
async def redirect_to_name(request: Request) -> RedirectResponse:
    return RedirectResponse(request.url_for("read_number", n=5))


@router.get("/status/{code}")
async def status(code: int) -> Response:
    return Response("" if code in (204, 205, 304) else f"status {code}", status_code=code)


@router.delete("/nothing", status_code=204)
async def nothing() -> None:
    return None


@router.post("/created", status_code=201)
async def created(response: Response) -> dict[str, int]:
    response.headers["location"] = "/outputs/created/1"
    return {"id": 1}


@router.get("/cookies")
async def cookies() -> Response:
    response = JSONResponse({"cookies": "set"})
    response.set_cookie("b", "1", path="/", httponly=True)
    response.set_cookie("a", "2", max_age=60, samesite="strict", secure=True)
    response.set_cookie("b", "3", path="/outputs")
    response.delete_cookie("old")
    return response


@router.get("/headers")
async def headers() -> Response:
    response = Response("headers", media_type="text/plain")
    for name, value in [
        ("x-second", "2"),
        ("x-first", "1"),
        ("x-second", "2 again"),
        ("vary", "accept"),
        ("vary", "cookie"),
        ("x-empty", ""),
        ("x-latin", "caf\u00e9 \u00fc"),
        ("x-long", "l" * 4000),
        ("x-first", "1, with a comma"),
        ("link", "</a>; rel=preload"),
        ("link", "</b>; rel=preload"),
    ]:
        response.raw_headers.append((name.encode(), value.encode("latin-1")))
    return response


@router.get("/many-headers")
async def many_headers() -> Response:
    return Response("many", headers={f"x-number-{n}": str(n) for n in range(80)})


@router.get("/own-date-and-server")
async def own_date_and_server() -> Response:
    return Response("own", headers={"date": "Thu, 01 Jan 1970 00:00:00 GMT", "server": "own"})


@router.get("/etag")
async def etag(request: Request) -> Response:
    tag = '"version-1"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag, "cache-control": "max-age=5"})
    return Response("tagged", headers={"etag": tag, "cache-control": "max-age=5"})


@router.get("/file")
async def file() -> FileResponse:
    return FileResponse(FILES / "letters.txt", filename="grüße.txt")


@router.head("/file")
async def file_head() -> FileResponse:
    return FileResponse(FILES / "letters.txt", filename="grüße.txt")


@router.get("/missing-file")
async def missing_file() -> FileResponse:
    return FileResponse(FILES / "not there")


@router.get("/stream")
async def stream(pieces: int = 5) -> StreamingResponse:
    async def produce() -> AsyncIterator[bytes]:
        for n in range(pieces):
            yield f"piece {n}\n".encode()

    return StreamingResponse(produce(), media_type="text/plain")


@router.get("/stream-in-a-thread")
def stream_in_a_thread() -> StreamingResponse:
    def produce() -> Iterator[str]:
        yield "one "
        yield ""
        yield "two"

    return StreamingResponse(produce(), headers={"content-length": "7"})


@router.get("/big")
async def big() -> Response:
    return Response(MEGABYTES, media_type="application/octet-stream")


@router.get("/big-stream")
async def big_stream() -> StreamingResponse:
    async def produce() -> AsyncIterator[bytes]:
        for start in range(0, len(MEGABYTES), 100_000):
            yield MEGABYTES[start : start + 100_000]

    return StreamingResponse(produce(), media_type="application/octet-stream")


@router.get("/lines/{line}")
async def one_line(line: str) -> str:
    return line


@router.get("/http-exception")
async def http_exception() -> None:
    raise HTTPException(403, {"why": ["not", "allowed"]}, {"x-why": "not allowed", "www-authenticate": "Basic"})


@router.get("/unhandled")
async def unhandled() -> None:
    raise LookupError("a secret of the server")


@router.get("/unhandled-in-a-thread")
def unhandled_in_a_thread() -> None:
    raise LookupError("a secret of the server")


@router.get("/broken-stream")
async def broken_stream() -> StreamingResponse:
    async def produce() -> AsyncIterator[bytes]:
        yield b"only this"
        raise LookupError("in the middle of a stream")

    return StreamingResponse(produce(), media_type="text/plain")


@router.get("/too-short")
async def too_short() -> Response:
    return Response("short", headers={"content-length": "100"})


# FastAPI does not put a router's prefix before what is mounted on it.
router.mount("/own-files", StaticFiles(directory=FILES), name="own-files")
