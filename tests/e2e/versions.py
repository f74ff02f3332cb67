"""One application in several versions: three work, one fails 5 % of its requests, and one cannot start."""

import asyncio
import functools
import itertools
import os
from typing import Annotated

from fastapi import Depends, HTTPException

from app_toolkit import Deployment, DeploymentConfig, Toolkit, get_handle

IMPORTED = os.getpid()
"""The process that has imported this module. Replicas can be forks of it."""


class Model(
    Deployment,
    num_replicas=2,
    health_check_period_s=0.5,
    health_check_failure_threshold=2,
    max_queue_wait_s=2,  # a removed revision stays for at least this long
    resources={"num_cpus": 0.1},
):
    def __init__(self, version: str) -> None:
        if version == "raises":
            raise FileNotFoundError("there are no weights of this version")
        self.version = version

    async def answer(self) -> str:
        return self.version


def make(version: str) -> Toolkit:
    bound = Model.bind(version)
    count = itertools.count(1)
    app = Toolkit(
        title="Versions",
        deployment=DeploymentConfig(
            name="app", health_check_period_s=0.5, max_queue_wait_s=2, graceful_shutdown_timeout_s=2
        ),
    )

    @app.get("/")
    async def answer(model: Annotated[Model, Depends(bound)]) -> str:
        return await model.answer()

    @app.get("/imported")
    async def imported() -> int:
        return IMPORTED

    @app.get("/both")
    async def both(model: Annotated[Model, Depends(bound)]) -> list[str]:
        """The version of the ingress, and that of the class that it calls."""
        if version == "flaky" and next(count) % 20 == 0:
            raise HTTPException(500)
        return [version, await model.answer()]

    return app


def make_caller() -> Toolkit:
    app = Toolkit(title="Caller", deployment=DeploymentConfig(name="caller"))
    get = functools.cache(get_handle)

    @app.get("/ask/{application}")
    async def ask(application: str) -> str:
        """The version of the model that the main revision of another application has."""
        model = await asyncio.to_thread(get, application, "model")
        return str(await model.answer())

    return app


caller = make_caller()
one, two, three, flaky, raises = map(make, ("one", "two", "three", "flaky", "raises"))
