"""An application in two versions: they count how often they are constructed, and the second waits to be let go on."""

import os
import time
from pathlib import Path
from typing import Annotated

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.observability.context import replica_context
from benchmarks.chaos.system import LEDGER
from tests.engines.contract.ground import AGAIN_S, Ground


def ground() -> Ground:
    """Beside the session's ledger: where both the test and the replicas look."""
    return Ground(Path(os.environ[LEDGER]).with_name("counted"))


class Model(Deployment, num_replicas=2, health_check_period_s=0.5, ray_actor_options={"num_cpus": 0.1}):
    def __init__(self, version: str) -> None:
        self.version = version
        ground().note(f"{version} in {replica_context().replica_id}")
        while version == "two" and not ground().is_open("two"):
            time.sleep(AGAIN_S)

    async def answer(self) -> str:
        return self.version


def make(version: str) -> Toolkit:
    bound = Model.bind(version)
    app = Toolkit(title="Counted", deployment=DeploymentConfig(name="app", health_check_period_s=0.5))

    @app.get("/")
    async def answer(model: Annotated[Model, Depends(bound)]) -> str:
        return await model.answer()

    return app


one, two = map(make, ("one", "two"))
