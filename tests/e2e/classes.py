"""A class on Ray that shows its environment."""

import os
from typing import Annotated, Any

import ray
from fastapi import Depends

from app_toolkit import Deployment, Toolkit, remote
from app_toolkit.observability.context import replica_context

AT_IMPORT = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "COLOUR")}


class Place(
    Deployment,
    user_config={"words": ["one", "two"]},
    resources={"num_cpus": 1, "ray": {"runtime_env": {"env_vars": {"COLOUR": "blue"}}}},
):
    def __init__(self) -> None:
        self.events: list[str] = [f"constructed in {replica_context().deployment}"]

    async def start(self) -> None:
        self.events.append("started")

    def reconfigure(self, config: dict[str, list[str]]) -> None:
        self.events += config["words"]

    async def story(self) -> list[str]:
        return self.events

    async def surroundings(self) -> dict[str, str | None]:
        return AT_IMPORT

    async def replica(self) -> str:
        return replica_context().replica_id


@ray.remote(num_cpus=0)
def double(number: int) -> int:
    return 2 * number


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count


OWN = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "7"}


class OfRay(Deployment, resources={"num_cpus": 0.1, "ray": {"runtime_env": {"env_vars": OWN}}}):
    """Uses Ray as any code on it does."""

    def __init__(self) -> None:
        self.counter: Any = Counter.remote()

    async def surroundings(self) -> dict[str, str | None]:
        return AT_IMPORT

    async def awaits(self, number: int) -> int:
        found: int = await double.remote(number)
        return found

    def gets(self, number: int) -> int:
        found: int = ray.get(double.remote(number))
        return found

    async def counts(self, number: int) -> int:
        found: int = await self.counter.add.remote(number)
        return found

    async def puts(self, number: int) -> int:
        found: int = await double.remote(ray.put(number))
        return found


place = Place.bind()
of_ray = OfRay.bind()
ToPlace = Annotated[Place, Depends(place)]


app = Toolkit(title="Classes")


@app.get("/story")
async def story(model: ToPlace) -> list[str]:
    return await model.story()


@app.get("/surroundings")
async def surroundings(model: ToPlace) -> dict[str, str | None]:
    return await model.surroundings()


@app.get("/own-surroundings")
async def own_surroundings(model: Annotated[OfRay, Depends(of_ray)]) -> dict[str, str | None]:
    return await model.surroundings()


@app.get("/replica")
async def replica(model: ToPlace) -> str:
    return await model.replica()


@app.get("/of-ray/{number}")
async def uses_ray(number: int, model: Annotated[OfRay, Depends(of_ray)]) -> dict[str, int]:
    return {
        "await": await model.awaits(number),
        "get": await remote(model.gets, number),
        "put": await model.puts(number),
        "actor": await model.counts(number),
        "actor again": await model.counts(number),
        "in a route": await double.remote(number),
    }


@app.get("/of-ray-in-a-thread/{number}")
def uses_ray_in_a_thread(number: int) -> int:
    found: int = ray.get(double.remote(number))
    return found
