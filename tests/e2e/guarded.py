"""An app that shows its environment."""

import logging
import os

from fastapi import FastAPI

app = FastAPI()


@app.get("/environment")
async def environment() -> list[str]:
    logging.getLogger("guarded").info("the environment is %s", dict(os.environ))
    return [*os.environ.values()]
