"""Deployments that follow their load: as `auto` says, and as few as none."""

import asyncio
import os
from typing import Annotated

from fastapi import APIRouter, Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.config.models import AutoscalingConfig

SMALL = {"num_cpus": 0.1}


FOLLOWS = AutoscalingConfig(min_replicas=0, upscale_delay_s=60)
"""From none to one at once, and to more much later."""


class Writer(Deployment, autoscaling_config=FOLLOWS.model_dump(), max_ongoing_requests=2, resources=SMALL):
    def __init__(self) -> None:
        self.most = self.inside = 0

    async def write(self) -> tuple[int, int]:
        """Its process, and how many calls it has had inside at a time. The first one waits for a second call."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        while self.most < 2:  # noqa: ASYNC110 - the calls tell each other nothing
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        self.inside -= 1
        return os.getpid(), self.most


asleep = APIRouter()
writer = Writer.bind()
app = Toolkit(title="Following", deployment=DeploymentConfig(name="auto", num_replicas="auto"))


@app.get("/auto")
@asleep.get("/asleep")
async def here() -> int:
    return os.getpid()


@app.get("/writer")
async def written(model: Annotated[Writer, Depends(writer)]) -> tuple[int, int]:
    return await model.write()


app.include_router(asleep, deployment=DeploymentConfig(name="asleep", autoscaling_config=FOLLOWS))
