"""What a test and the processes it talks to have in common: a folder with a ledger and files that handlers wait for."""

import asyncio
from collections.abc import Callable
from pathlib import Path

AGAIN_S = 0.005


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it is so; how long that may take is the caller's to say."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
        await asyncio.sleep(AGAIN_S)


class Ground:
    """What user code notes, the test reads; what user code waits for, the test opens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, event: str) -> None:
        with (self.folder / "ledger").open("a") as ledger:
            ledger.write(f"{event}\n")

    @property
    def notes(self) -> list[str]:
        ledger = self.folder / "ledger"
        return ledger.read_text().splitlines() if ledger.exists() else []

    def open(self, name: str) -> None:
        (self.folder / f"{name} is open").touch()

    def is_open(self, name: str) -> bool:
        return (self.folder / f"{name} is open").exists()

    async def opened(self, name: str) -> None:
        await eventually(lambda: self.is_open(name))
