"""Gives a new replica what it has reserved, and limits it to that."""

import os
import resource

from app_toolkit.config import settings
from app_toolkit.engines.processes.capacity import Grant


def apply(granted: Grant) -> None:
    """Set the environment variables, the memory limit and the priority of this process.

    Call this before user code runs, and while there is one thread: other threads would keep their priority.
    """
    settings.set_variables(settings.variables_of_threads(granted.num_cpus))
    settings.set_devices(",".join(granted.gpus))
    if granted.memory is not None:
        # Not RLIMIT_AS: memory that is only set aside counts there, so that twenty threads need 1 GB.
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = granted.memory if most == resource.RLIM_INFINITY else min(granted.memory, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    os.nice(granted.nice)
