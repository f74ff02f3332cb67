"""Planning: in this process, or in a child so that the user's code stays out of this one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Self

from app_toolkit.cli.target import Target, load
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import PlanOptions
from app_toolkit.errors import ConfigError, PlanningError
from app_toolkit.planning import plan

LOOK_S = 0.2
"""How often a wait for the child looks whether it is still wanted."""


def plan_here(target: Target, options: PlanOptions) -> ApplicationSpec:
    """Import the app and lay it out. What the app prints meanwhile goes to standard error.

    Raises `TargetError` and `PlanningError`.
    """
    with _stdout_kept_clean():
        app, where = load(target)
        return plan(
            app,
            target=where,
            app_dir=str(target.app_dir),
            name=options.name,
            route_prefix=options.route_prefix,
            num_replicas=options.num_replicas,
        )


class Planning:
    """The same in a child process, which runs beside whatever the parent does meanwhile.

    The child tells the user itself, on the shared standard error, what is wrong with the app.
    """

    def __init__(self, target: str | None, app_dir: Path | None, options: PlanOptions) -> None:
        self._named = target or "the app"
        self._process = subprocess.Popen(
            _command(target, app_dir, options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A Ctrl-C is for the parent; it ends the child.
            start_new_session=True,
        )

    def result(self, wanted: Callable[[], bool]) -> ApplicationSpec | None:
        """Wait for the plan; None as soon as it is not `wanted` any more.

        Raises `SystemExit` with the child's code where the child has said what is wrong, and `PlanningError`
        where it ended in another way.
        """
        while wanted():
            try:
                output, _ = self._process.communicate(timeout=LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            code = self._process.returncode
            if code == ConfigError.exit_code:
                raise SystemExit(code)
            if code != 0:
                raise PlanningError(f"planning {self._named} ended with exit code {code}")
            # Whatever an app still prints as it ends stands after the plan.
            try:
                spec, _ = json.JSONDecoder().raw_decode(output.decode())
            except ValueError:
                raise PlanningError(f"planning {self._named} ended before there was a plan") from None
            return ApplicationSpec(**spec)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with self._process:  # closes its pipe and waits
            pass


def _command(target: str | None, app_dir: Path | None, options: PlanOptions) -> list[str]:
    # -P: the current folder is not put on the import path, as it is not for replicas.
    command = [sys.executable, "-P", "-m", "app_toolkit.cli", "plan", "--format", "json"]
    command += ["--name", options.name, "--route-prefix", options.route_prefix]
    if options.num_replicas is not None:
        command += ["--num-replicas", str(options.num_replicas)]
    if app_dir is not None:
        command += ["--app-dir", str(app_dir)]
    return command if target is None else [*command, "--", target]


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Standard output is the plan's: what else is written there, by Python or not, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
