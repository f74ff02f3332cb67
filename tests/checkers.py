"""The type checker, as a contributor runs it."""

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What it says of these, or of what pyproject.toml names. One at a time, because all share a cache."""
    cache = ROOT / ".mypy_cache"
    cache.mkdir(exist_ok=True)
    with (cache / "in-use").open("w") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "mypy", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
