"""Calls that wait in every place where one can, until the test lets them go on."""

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, Toolkit, batch
from tests.engines.contract.ground import Ground


class Writer(Deployment, num_replicas=2, max_ongoing_requests=16, ray_actor_options={"num_cpus": 0.1}):
    @batch(max_batch_size=12, batch_wait_timeout_s=60)
    async def write(self, folders: list[str]) -> list[str]:
        await Ground(Path(folders[0])).opened("hold")
        return folders


writer = Writer.bind()
app = Toolkit(title="Held")


@app.get("/write/{count}")
async def write(count: int, ground: str, model: Annotated[Writer, Depends(writer)]) -> list[str]:
    return await asyncio.gather(*(model.write(ground) for _ in range(count)))
