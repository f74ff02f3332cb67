"""Routes that block their event loop."""

import os
import time

from app_toolkit import DeploymentConfig, Toolkit

IMPATIENT = DeploymentConfig(
    name="app",
    health_check_period_s=0.5,
    health_check_timeout_s=1.0,
    health_check_failure_threshold=2,
)
app = Toolkit(deployment=IMPATIENT)


@app.get("/block")
async def block() -> None:
    time.sleep(60)  # noqa: ASYNC251


@app.get("/pid")
async def pid() -> int:
    return os.getpid()
