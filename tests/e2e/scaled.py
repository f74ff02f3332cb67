"""An ingress and a class that follow their load, and an ingress that calls the class."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, WebSocket

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.config.models import AutoscalingConfig

MOST = 2
SMALL = {"num_cpus": 0.1}
WORK_S = 0.4
"""Far longer than a request takes on its way, so that most of the clients are inside at any moment."""

FOLLOWS = AutoscalingConfig(
    min_replicas=0,
    max_replicas=MOST,
    target_ongoing_requests=2,
    look_back_period_s=0.5,
    upscale_delay_s=0.25,
    downscale_delay_s=0.5,
)


class Worker(Deployment, autoscaling_config=FOLLOWS.model_dump(), resources=SMALL):
    async def work(self) -> str:
        await asyncio.sleep(WORK_S)
        return "done"


front = APIRouter()
worker = Worker.bind()
app = Toolkit(title="Scaled")


@front.get("/front")
async def itself() -> str:
    await asyncio.sleep(WORK_S)
    return "done"


@front.websocket("/front/quiet")
async def quiet(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.receive()


@app.get("/worker")
async def by_another(model: Annotated[Worker, Depends(worker)]) -> str:
    return await model.work()


app.include_router(front, deployment=DeploymentConfig(name="front", autoscaling_config=FOLLOWS))
