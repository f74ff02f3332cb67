"""What every contender of the load step serves, how its replicas follow the load, and how it tells of them."""

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

HANDLER_S = 0.1
TARGET = 5
OPTIONS: dict[str, Any] = {"max_ongoing_requests": 2 * TARGET, "ray_actor_options": {"num_cpus": 0.1}}
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
"""Each line says when there were how many; in the folder in which a contender is started."""


def tell(look: Callable[[], tuple[int, int]]) -> None:
    """Write down how many replicas start and how many run, whenever that has changed, until a SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    told = None
    with open(REPLICAS, "w", buffering=1) as file:
        while True:
            at, found = time.time(), look()
            if found != told:
                told = found
                file.write(json.dumps({"at": at, "starting": found[0], "running": found[1]}) + "\n")
            time.sleep(LOOK_S)
