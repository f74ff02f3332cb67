"""What a class on Ray finds around itself."""

import os
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, Toolkit, batch
from app_toolkit.observability.context import replica_context

AT_IMPORT = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "COLOUR")}


class Place(
    Deployment,
    user_config={"words": ["one", "two"]},
    health_check_period_s=0.2,
    health_check_failure_threshold=1,
    ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": {"COLOUR": "blue"}}},
):
    def __init__(self) -> None:
        self.cold = False
        self.told: list[str] = [f"constructed in {replica_context().deployment}"]

    async def start(self) -> None:
        self.told.append("started")

    def reconfigure(self, config: dict[str, list[str]]) -> None:
        self.told += config["words"]

    async def check_health(self) -> None:
        if self.cold:
            raise RuntimeError("I have a cold")

    @batch(max_batch_size=2, batch_wait_timeout_s=60)
    async def meet(self, names: list[str]) -> list[list[str]]:
        return [sorted(names)] * len(names)

    async def catch_cold(self) -> None:
        self.cold = True

    async def story(self) -> list[str]:
        return self.told

    async def surroundings(self) -> dict[str, str | None]:
        return AT_IMPORT

    async def replica(self) -> str:
        return replica_context().replica_id


place = Place.bind()
ToPlace = Annotated[Place, Depends(place)]
app = Toolkit(title="Classes")


@app.get("/story")
async def story(model: ToPlace) -> list[str]:
    return await model.story()


@app.get("/surroundings")
async def surroundings(model: ToPlace) -> dict[str, str | None]:
    return await model.surroundings()


@app.get("/replica")
async def replica(model: ToPlace) -> str:
    return await model.replica()


@app.get("/meet/{name}")
async def meet(name: str, model: ToPlace) -> list[str]:
    return await model.meet(name)


@app.post("/cold")
async def cold(model: ToPlace) -> None:
    await model.catch_cold()
