"""The autoscaled app on Ray Serve: step_ray_serve.py PORT HOW"""

import asyncio
import os
import sys

import ray
import step
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

port, how = int(sys.argv[1]), sys.argv[2]


@serve.deployment(autoscaling_config=step.FOLLOWS[how], **step.OPTIONS)
class Step:
    async def __call__(self, request: Request) -> JSONResponse:
        await asyncio.sleep(step.HANDLER_S)
        return JSONResponse(os.getpid())  # a plain number would become a chunked response


def look() -> tuple[int, int]:
    counts = serve.status().applications["default"].deployments["Step"].replica_states
    return counts.get("STARTING", 0), counts.get("RUNNING", 0)


ray.init(address="local", include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(Step.bind())
print("ready", flush=True)
step.tell(look)
