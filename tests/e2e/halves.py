"""Two replicas share a GPU, and their ingress has none."""

import os
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, Toolkit
from app_toolkit.observability.context import replica_context

AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")


class Half(Deployment, num_replicas=4, ray_actor_options={"num_cpus": 0, "num_gpus": 0.5}):
    async def devices(self) -> tuple[str, str | None]:
        return replica_context().replica_id, AT_IMPORT


half = Half.bind()
app = Toolkit(title="Halves")


@app.get("/devices")
async def devices(model: Annotated[Half, Depends(half)]) -> tuple[str, str | None]:
    return await model.devices()


@app.get("/own-devices")
async def own_devices() -> str | None:
    return AT_IMPORT
