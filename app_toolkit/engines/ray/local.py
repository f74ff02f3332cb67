"""A Ray cluster of one node that belongs to this process."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from app_toolkit import private
from app_toolkit.config import settings
from app_toolkit.engines.ray import guard
from app_toolkit.engines.ray.output import Output
from app_toolkit.errors import ConfigError, InsecurePath


class LocalRay:
    """A local Ray in a session of its own. It ends with `close`, and also when this process is killed.

    The output of its workers is written to standard output and standard error of this process, or the log records of
    all its processes to standard output.
    """

    address: str
    """The address of Ray's control store, `HOST:PORT`."""

    def __init__(self, num_cpus: float | None, parent: Path, log_format: str | None = None) -> None:
        """Start Ray with `num_cpus` logical CPUs (None: Ray's default) and its files in a new folder below `parent`.

        `log_format`: write log records in this format; None: write the output of workers.

        Raises `ConfigError` with the last line of Ray's output if Ray does not start, and `InsecurePath` if another
        user could replace the folder.
        """
        # Ray makes its folder accessible to all users, so its parent folder is private.
        self._private = _private_folder(parent)
        folder = self._private / "ray"
        folder.mkdir()
        self._output: Output | None = None
        resources = _arguments({} if num_cpus is None else {"CPU": num_cpus}, settings.start_options().resources or {})
        self._guard = subprocess.Popen(
            [sys.executable, "-P", guard.__file__, str(folder), *resources],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert self._guard.stdout is not None
            if self._guard.stdout.readline() != guard.STARTED:
                raise ConfigError(f"Ray did not start: {_last_line(folder / guard.OUTPUT)}")
            # `ray start` writes this file for later commands of Ray.
            self.address = (folder / "ray_current_cluster").read_text().strip()
            self._output = Output(folder / "session_latest" / "logs", log_format)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes of Ray, wait for that, and remove its files. Does nothing the second time."""
        if self._guard.returncode is not None:
            return
        self._guard.terminate()  # the guard may still be waiting for `ray start`
        self._guard.communicate()
        if self._guard.returncode != 0:  # the guard was killed, and Ray still runs
            guard.end(self._guard.pid)
        if self._output is not None:
            self._output.close()
        shutil.rmtree(self._private, ignore_errors=True)


def _arguments(amounts: Mapping[str, float], stated: Mapping[str, float]) -> list[str]:
    """Return the arguments of `ray start` for these resources of the node. Those that are stated come first."""
    amounts = {**amounts, **stated}
    numbers = {"CPU": "num-cpus", "GPU": "num-gpus", "memory": "memory"}
    arguments = [f"--{option}={amounts[name]:.0f}" for name, option in numbers.items() if name in amounts]
    custom = {name: amount for name, amount in amounts.items() if name not in numbers}
    return [*arguments, f"--resources={json.dumps(custom)}"] if custom else arguments


def _private_folder(parent: Path) -> Path:
    """Create a private folder below `parent`, which is created if it does not exist."""
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="ray-", dir=parent))
    except OSError as error:
        raise ConfigError(
            f"the local Ray cannot keep its files in {parent}: {error.strerror}; set RAY_TMPDIR to a folder that user "
            f"{os.geteuid()} can write to"
        ) from None
    try:
        return private.folder(made)
    except InsecurePath as error:
        with suppress(OSError):
            made.rmdir()
        raise InsecurePath(
            f"no private folder for the local Ray: {error}; set RAY_TMPDIR to a folder that only user {os.geteuid()} "
            "and root can replace"
        ) from None


def _last_line(file: Path) -> str:
    with suppress(OSError, IndexError):
        return file.read_text(errors="replace").strip().splitlines()[-1]
    return "it wrote nothing"
