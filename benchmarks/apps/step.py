"""Options of the autoscaling benchmark's contenders, and the recording of their replicas."""

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

HANDLER_S = 0.1
TARGET = 5
OPTIONS: dict[str, Any] = {"max_ongoing_requests": 2 * TARGET, "resources": {"num_cpus": 0.1}}
FOLLOWS: dict[str, dict[str, Any]] = {
    "defaults": {"target_ongoing_requests": TARGET, "max_replicas": 10},
    "no-delays": {
        "target_ongoing_requests": TARGET,
        "min_replicas": 0,
        "initial_replicas": 1,
        "max_replicas": 10,
        "upscale_delay_s": 0,
        "downscale_delay_s": 0,
    },
}
LOOK_S = 0.05
REPLICAS = "replicas.jsonl"
"""The file in the working directory of the contender. Each line has the replica counts and their time."""


def tell(look: Callable[[], tuple[int, int]]) -> None:
    """Record each change of the number of starting and running replicas until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    shown = None
    with open(REPLICAS, "w", buffering=1) as file:
        while True:
            at, found = time.time(), look()
            if found != shown:
                shown = found
                file.write(json.dumps({"at": at, "starting": found[0], "running": found[1]}) + "\n")
            time.sleep(LOOK_S)
