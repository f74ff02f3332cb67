"""Routes that block their event loop."""

import os
import time

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.config.models import RayActorOptions

IMPATIENT = DeploymentConfig(
    name="app",
    health_check_period_s=0.5,
    health_check_timeout_s=1.0,
    health_check_failure_threshold=2,
)
app = Toolkit(deployment=IMPATIENT)
debugged = Toolkit(
    deployment=IMPATIENT.model_copy(
        update={"ray_actor_options": RayActorOptions(runtime_env={"env_vars": {"APP_TOOLKIT_DEBUGGER": "1"}})}
    )
)


@app.get("/block")
async def block() -> None:
    time.sleep(60)  # noqa: ASYNC251


@app.get("/pause")
@debugged.get("/pause")
async def pause() -> int:
    found = 42
    breakpoint()
    return found


@app.get("/pid")
async def pid() -> int:
    return os.getpid()
