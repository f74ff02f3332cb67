"""An app whose processes end in several ways, and which notes how they do."""

import atexit
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

NOTES: list[Path] = []


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    note("lifespan")


app = FastAPI(lifespan=lifespan)


def note(what: str) -> None:
    for path in NOTES:
        with path.open("a") as file:
            file.write(f"{what}\n")


atexit.register(note, "atexit")


@app.get("/notes")
def begin_notes(path: str) -> None:
    NOTES.append(Path(path))


@app.post("/exit/{code}")
def exit(code: int) -> None:
    os._exit(code)


@app.post("/signal/{number}")
def signal(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)
