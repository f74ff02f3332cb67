"""The autoscaled app on app_toolkit: step_toolkit.py PORT HOW"""

import asyncio
import os
import sys

import step
from fastapi import Request

from app_toolkit import Deployment, run, status

port, how = int(sys.argv[1]), sys.argv[2]


class Step(Deployment, autoscaling_config=step.FOLLOWS[how], **step.OPTIONS):
    async def __call__(self, request: Request) -> int:
        await asyncio.sleep(step.HANDLER_S)
        return os.getpid()


def look() -> tuple[int, int]:
    (application,) = status().applications
    (deployment,) = application.deployments
    return deployment.counts.get("starting", 0), deployment.counts.get("running", 0)


run(Step.bind(), host="127.0.0.1", port=port)
print("ready", flush=True)
step.tell(look)
