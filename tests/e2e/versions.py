"""One application in several versions: two that are good, and one for each way of not being so."""

from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit


class Model(
    Deployment,
    num_replicas=2,
    health_check_period_s=0.5,
    health_check_failure_threshold=2,
    ray_actor_options={"num_cpus": 0.1},
):
    def __init__(self, version: str) -> None:
        if version == "raises":
            raise FileNotFoundError("there are no weights of this version")
        self.version = version
        self.checks = 0

    async def check_health(self) -> None:
        """The first one belongs to the start."""
        self.checks += 1
        if self.version == "unwell" and self.checks > 1:
            raise RuntimeError("I have a cold")

    async def answer(self) -> str:
        return self.version


def make(version: str) -> Toolkit:
    bound = Model.bind(version)
    app = Toolkit(title="Versions", deployment=DeploymentConfig(name="app", health_check_period_s=0.5))

    @app.get("/")
    async def answer(model: Annotated[Model, Depends(bound)]) -> str:
        return await model.answer()

    return app


one, two, raises, unwell = map(make, ("one", "two", "raises", "unwell"))
