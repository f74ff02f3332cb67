"""An app that imports, and whose startup raises."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    raise RuntimeError("the model file is missing")
    yield


app = FastAPI(lifespan=lifespan)
