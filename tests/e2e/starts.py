"""A class whose replicas cannot start while a file lies beside this one, and a route that calls it."""

from pathlib import Path
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, Toolkit

STOPPER = Path(__file__).with_name("stopper")


class Writer(Deployment, name="writer"):
    def __init__(self) -> None:
        if STOPPER.exists():
            raise RuntimeError("the password hunter2 is wrong")

    async def write(self) -> str:
        return "written"


writer = Writer.bind()
app = Toolkit()


@app.get("/write")
async def write(model: Annotated[Writer, Depends(writer)]) -> str:
    return await model.write()
