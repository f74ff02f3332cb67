"""CPU profiles: CPU time per request by process, and py-spy's samples of the Python functions."""

import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load import load
from benchmarks.servers import Server

RATE = 200
"""Samples per second. A higher rate would distort the profile."""

LOOP = "Runner.run (asyncio/runners.py"
"""A frame in the stack of every thread that serves requests, in uvicorn and in app_toolkit. Other threads only wait."""

IN_C = "the event loop in C: uvloop, and the kernel's epoll, read and write"
SHOWN = 12


def profile(server: Server, role: str, seconds: int) -> dict[str, Any]:
    """Profile one process of a role with 32 clients. Without py-spy, the result has no samples."""
    process = server.of_role(role)[0]
    before = process.cpu_times()
    found = load(server.url, 32, seconds)
    after = process.cpu_times()
    count = len(server.of_role(role))  # all processes of the role share the requests
    spent = {
        "user_us": (after.user - before.user) * count / found.requests * 1e6,
        "system_us": (after.system - before.system) * count / found.requests * 1e6,
    }
    return {"cpu": spent, **_samples(server, process, seconds)}


def _samples(server: Server, process: psutil.Process, seconds: int) -> dict[str, Any]:
    spy = Path(sys.executable).with_name("py-spy")
    command = str(spy) if spy.exists() else shutil.which("py-spy")
    if command is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        stacks = Path(folder) / "stacks"
        # The load starts before the samples and ends after them.
        client = threading.Thread(target=load, args=(server.url, 32, seconds + 2))
        client.start()
        subprocess.run(
            [
                *(command, "record", "--function", "--format=raw", f"--rate={RATE}"),
                *(f"--duration={seconds}", f"--pid={process.pid}", f"--output={stacks}"),
            ],
            capture_output=True,
            check=True,
        )
        client.join()
        return shares(stacks.read_text().splitlines())


def shares(stacks: Iterable[str]) -> dict[str, Any]:
    """Return the share of self time per function and per package, from lines `frame;frame;frame COUNT`."""
    functions: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if LOOP not in stack:
            continue
        leaf = stack.rpartition(";")[2]
        functions[function_of(leaf)] += int(count)
        parts[part_of(leaf)] += int(count)
    total = functions.total()
    return {
        "samples": total,
        "functions": {name: count / total for name, count in functions.most_common(SHOWN)},
        "parts": {name: count / total for name, count in parts.most_common(SHOWN)},
    }


def function_of(frame: str) -> str:
    """Return a frame like `Exchange.begin (app_toolkit/exchange/exchange.py:127)` without its line number."""
    return IN_C if frame.startswith(LOOP) else frame.rpartition(":")[0] + ")"


def part_of(frame: str) -> str:
    """Return the package of a frame; for app_toolkit, the subpackage."""
    if frame.startswith(LOOP):
        return IN_C
    folders = frame.rpartition("(")[2].split("/")[:-1]
    if not folders or folders[0] == "asyncio":
        return "the standard library"
    return "/".join(folders[:2]) if folders[0] == "app_toolkit" else folders[0]
