"""What this machine has: CPUs, GPUs and memory, within the limits of this process."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from app_toolkit.config import settings
from app_toolkit.engines.processes.capacity import Capacity

CGROUPS = Path("/sys/fs/cgroup")
"""Where the control groups of version 2 are."""

NO_GPUS = {"-1", "NoDevFiles", "none", "void"}
"""The values of `CUDA_VISIBLE_DEVICES` that name no GPU."""

DRIVER_S = 10.0
"""Seconds that the driver of the GPUs may take to list them."""


def capacity() -> Capacity:
    """Return the resources that replicas may reserve. It may take seconds, because the driver of the GPUs is asked.

    Raises `ConfigError` if the resources that the environment states are invalid.
    """
    stated = settings.start_options().resources or {}
    devices = gpus()
    if "GPU" in stated:
        devices = tuple(str(number) for number in range(int(stated["GPU"])))
    amounts = {name: amount for name, amount in stated.items() if name != "GPU"}
    return Capacity({"memory": float(memory()), **amounts}, devices)


def cpus() -> float:
    """Return the number of CPUs that this process may use. It may be a fraction in a container."""
    number = float(len(os.sched_getaffinity(0)))
    for text in _limits("cpu.max"):
        quota, period = text.split()
        if quota != "max":
            number = min(number, int(quota) / int(period))
    return number


def memory() -> int:
    """Return the memory that this process and all others may use together, in bytes."""
    limits = [int(text) for text in _limits("memory.max") if text != "max"]
    return min([psutil.virtual_memory().total, *limits])


def gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = settings.visible_devices()
    if visible is not None:
        return tuple(device for device in visible if device not in NO_GPUS)
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=DRIVER_S, check=True)
    except (OSError, subprocess.SubprocessError):  # there is a driver, and no device
        return ()
    number = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return tuple(str(device) for device in range(number))


def group() -> Path | None:
    """Return the folder of the control group of this process; None: it has none of version 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return CGROUPS / line.removeprefix("0::").strip().lstrip("/")
    return None


def _limits(file: str) -> Iterator[str]:
    """Yield the values of a file of the control group of this process, and of those that contain it."""
    folder = group()
    while folder is not None and folder.is_relative_to(CGROUPS):
        with suppress(OSError):
            yield (folder / file).read_text().strip()
        folder = folder.parent
