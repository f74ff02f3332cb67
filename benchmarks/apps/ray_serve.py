"""The same app on Ray Serve: ray_serve.py PORT REPLICAS [MAX_ONGOING_REQUESTS]

The default of MAX_ONGOING_REQUESTS is Ray Serve's. The other options of tuned Ray Serve are environment variables.
"""

import sys
import threading
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from routes import router

port, replicas, *ongoing = map(int, sys.argv[1:])
options: dict[str, Any] = {"num_replicas": replicas}
if ongoing:
    options["max_ongoing_requests"] = ongoing[0]

api = FastAPI()
api.include_router(router)


@serve.deployment(**options)
@serve.ingress(api)
class Ingress:
    pass


# Each replica reserves a CPU, and Ray does not place more replicas than it has CPUs.
ray.init(address="local", num_cpus=replicas + 2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(Ingress.bind())
print("ready", flush=True)
threading.Event().wait()
