"""Ordinary JSON: what most endpoints of most applications are."""

from collections.abc import AsyncIterable, Iterable
from hashlib import sha256
from typing import Annotated

import anyio
from fastapi import APIRouter, HTTPException, Path, Query, UploadFile
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, Field

router = APIRouter(tags=["greetings"], max_body_size=20 * 1024 * 1024)

GREETINGS = {"de": "Guten Tag", "en": "Hello", "fr": "Bonjour", "sw": "Habari"}


class Greeting(BaseModel):
    text: str
    language: str


class Item(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    price: Annotated[float, Field(gt=0)]
    quantity: Annotated[int, Field(ge=1, le=1_000)] = 1


class Receipt(BaseModel):
    name: str
    total: float


class Tick(BaseModel):
    number: int
    left: int


class Stored(BaseModel):
    filename: str
    size: int
    sha256: str


Count = Annotated[int, Query(ge=1, le=1_000)]


@router.get("/hello/{name}")
async def hello(name: Annotated[str, Path(max_length=100)], language: str = "en") -> Greeting:
    if language not in GREETINGS:
        raise HTTPException(404, f"no greeting in {language!r}; there are {', '.join(GREETINGS)}")
    return Greeting(text=f"{GREETINGS[language]}, {name}!", language=language)


@router.post("/receipts")
async def receipt(item: Item) -> Receipt:
    return Receipt(name=item.name, total=round(item.price * item.quantity, 2))


@router.get("/digest")
def digest(text: Annotated[str, Query(max_length=1_000)], rounds: Annotated[int, Query(ge=1, le=100_000)] = 1) -> str:
    """Work that would hold up an event loop: a `def` endpoint runs in a thread."""
    value = text.encode()
    for _ in range(rounds):
        value = sha256(value).digest()
    return value.hex()


@router.get("/countdown", response_class=EventSourceResponse)
async def countdown(start: Count = 5, pause_s: Annotated[float, Query(ge=0, le=10)] = 1.0) -> AsyncIterable[Tick]:
    """Server-sent events: an `EventSource` in a browser reads them one by one."""
    for number in range(1, start + 1):
        yield Tick(number=number, left=start - number)
        await anyio.sleep(pause_s)


@router.get("/squares")
def squares(count: Count = 10) -> Iterable[dict[str, int]]:
    """JSON lines: one object per line, sent as it is made."""
    for number in range(1, count + 1):
        yield {"number": number, "square": number * number}


@router.post("/files")
async def upload(file: UploadFile) -> Stored:
    digest = sha256()
    size = 0
    while chunk := await file.read(64 * 1024):
        digest.update(chunk)
        size += len(chunk)
    return Stored(filename=file.filename or "", size=size, sha256=digest.hexdigest())
