"""Run concurrent clients of an app in rounds. Print how many were served, and the errors of the others.

Each client connects from a different loopback address, as users do.

python clients.py MODULE:FUNCTION URL CLIENTS ROUNDS
"""

import asyncio
import importlib
import json
import logging
import os
import socket
import sys
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

PATIENCE_S = 30.0
WARM = 12
"""Clients before those that count, so that every replica has served one."""
WARM_S = 5.0

NUMBER: ContextVar[int] = ContextVar("number")
"""The number of the current client."""


class Socket(socket.socket):
    """A socket that connects from 127.0.1.NUMBER. The packages have no common option for the local address."""

    def connect(self, address: Any) -> None:
        number = NUMBER.get(None)
        if self.family == socket.AF_INET and number is not None and address[0] == "127.0.0.1":
            self.bind((f"127.0.1.{number + 1}", 0))
        super().connect(address)


async def main(where: str, url: str, clients: int, rounds: int) -> None:
    module, _, function = where.partition(":")
    client = getattr(importlib.import_module(module), function)
    socket.socket = Socket  # type: ignore[misc]
    logging.disable()  # packages log what they also raise
    served = 0
    failures: Counter[str] = Counter()

    async def one(number: int) -> None:
        nonlocal served
        NUMBER.set(number)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client(url, number)
            served += 1
        except Exception as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            failures[f"{type(error).__name__}: {error}"[:160]] += 1

    # Warm up with uncounted requests, because some packages initialize at their first request.
    for number in range(WARM):
        with suppress(Exception):
            async with asyncio.timeout(WARM_S):
                await client(url, number)
    for _ in range(rounds):
        await asyncio.gather(*(one(number) for number in range(clients)))
    print(
        json.dumps({"served": served, "clients": clients * rounds, "failures": dict(failures.most_common(4))}),
        flush=True,
    )
    os._exit(0)  # threads of packages may wait forever for a response


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
