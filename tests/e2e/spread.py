"""An application of one small ingress, of which many replicas start quickly."""

import asyncio
import os

from app_toolkit import Toolkit

app = Toolkit(title="Spread")


@app.get("/pid")
async def pid() -> int:
    return os.getpid()


@app.get("/sleep/{seconds}")
async def sleep(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()
