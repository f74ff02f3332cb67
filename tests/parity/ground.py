"""What the parts of the application share: fixed files, marks in the client's folder, what runs here."""

import contextvars
from pathlib import Path
from typing import Annotated

import anyio
from fastapi import Query

FILES = Path(__file__).parent / "files"

ran: set[str] = set()
"""Names of the lifespans that run in this process now."""

signals: dict[str, str] = {}
"""Signal → `installed`, or why its handler could not be installed."""

signal_mark: dict[str, Path] = {}
"""Signal → the folder of the client that had it sent last."""

trail: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("trail", default=())

Mark = Annotated[Path, Query(description="a folder of the client: what this request leaves behind lies there")]


def touch(mark: Path, name: str, text: str = "") -> None:
    """The file appears whole: whoever polls for it reads all of it."""
    unfinished = mark / f".{name}"
    unfinished.write_text(text)
    unfinished.rename(mark / name)


def append(mark: Path, name: str, line: str) -> None:
    with (mark / name).open("a") as file:
        file.write(f"{line}\n")


async def until_exists(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes the file
        await anyio.sleep(0.005)
