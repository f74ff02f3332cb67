"""One application in several versions: two that work, one that fails 5 % of its requests, and one that cannot start."""

import itertools
from typing import Annotated

from fastapi import Depends, HTTPException

from app_toolkit import Deployment, DeploymentConfig, Toolkit


class Model(
    Deployment,
    num_replicas=2,
    health_check_period_s=0.5,
    health_check_failure_threshold=2,
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
    app = Toolkit(title="Versions", deployment=DeploymentConfig(name="app", health_check_period_s=0.5))

    @app.get("/")
    async def answer(model: Annotated[Model, Depends(bound)]) -> str:
        return await model.answer()

    @app.get("/both")
    async def both(model: Annotated[Model, Depends(bound)]) -> list[str]:
        """The version of the ingress, and that of the class that it calls."""
        if version == "flaky" and next(count) % 20 == 0:
            raise HTTPException(500)
        return [version, await model.answer()]

    return app


one, two, flaky, raises = map(make, ("one", "two", "flaky", "raises"))
