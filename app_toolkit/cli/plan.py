"""Planning: in this process, or in a child so that the user's code stays out of this one."""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from app_toolkit.cli.target import Target, load
from app_toolkit.config.files import ConfigFile
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import PlanOptions
from app_toolkit.errors import ConfigError, OverrideError, PlanningError, TargetError
from app_toolkit.interfaces import Deployable
from app_toolkit.planning import plan
from app_toolkit.types import ASGIApp

LOOK_S = 0.2
"""How often a wait for the child looks whether it is still wanted."""

AT_ONCE = 4
"""How many applications of a file are imported at a time."""


def plan_here(target: Target, options: PlanOptions, *, written: bool = False) -> ApplicationSpec:
    """Import the app and lay it out, where it is `written` as a file would. What the app prints meanwhile goes to
    standard error.

    Raises `TargetError` and `PlanningError`.
    """
    with _stdout_kept_clean():
        app, where = load(target)
        return plan(
            app,
            target=where,
            app_dir=str(target.app_dir),
            overrides={} if written else None,
            **options.model_dump(),
        )


def plan_application(file: ConfigFile, name: str) -> ApplicationSpec:
    """The same for one application of a file, as written; from then on its working folder is the current one.

    Raises `ConfigError` with the lines of the file that cannot be.
    """
    with _stdout_kept_clean():
        return application_here(file, name)[1]


def application_here(file: ConfigFile, name: str) -> tuple[ASGIApp | Deployable, ApplicationSpec]:
    """One application of a file, and its plan. Changes into its working folder. Raises as `plan_application` does."""
    application = file.application(name)
    missing = []
    for option, folder in (("app_dir", application.app_dir), ("working_dir", application.working_dir)):
        if not Path(folder).is_dir():
            place = ("applications", name, option)
            missing.append(f"{file.document.at(place)}: {file.document.called(place)}: {folder} is no folder")
    if missing:
        raise ConfigError("\n".join(missing))
    module, _, attribute = application.options.target.partition(":")
    os.chdir(application.working_dir)
    try:
        app, where = load(Target(module, attribute, Path(application.app_dir)))
        return app, plan(
            app,
            target=where,
            app_dir=application.app_dir,
            name=name,
            route_prefix=application.options.route_prefix,
            working_dir=application.working_dir,
            overrides=application.deployments,
        )
    except OverrideError as error:
        raise file.blame(name, error) from None
    except (TargetError, PlanningError) as error:
        place = ("applications", name, "target")
        error.args = (f"{file.document.at(place)}: {error}",)  # what was noted of it stays
        raise


class Planning:
    """The same in a child process, which runs beside whatever the parent does meanwhile.

    The child tells the user itself, on the shared standard error, what is wrong with the app.
    """

    def __init__(self, named: str, arguments: Sequence[str]) -> None:
        """`named`: what is planned, for people; `arguments` of the command `plan`."""
        self._named = named
        self.process = subprocess.Popen(
            # -P: the current folder is not put on the import path, as it is not for replicas.
            [sys.executable, "-P", "-m", "app_toolkit.cli", "plan", "--format", "json", *arguments],
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
                output, _ = self.process.communicate(timeout=LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            code = self.process.returncode
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
        if self.process.poll() is None:
            self.process.kill()
        with self.process:  # closes its pipe and waits
            pass


def planning_of(target: str | None, app_dir: Path | None, options: PlanOptions) -> Planning:
    """The plan of one app, as options say."""
    arguments = ["--name", options.name, "--route-prefix", options.route_prefix]
    if options.num_replicas is not None:
        arguments += ["--num-replicas", str(options.num_replicas)]
    if app_dir is not None:
        arguments += ["--app-dir", str(app_dir)]
    return Planning(target or "the app", arguments if target is None else [*arguments, "--", target])


@contextmanager
def plannings_of(file: ConfigFile, *, rest: bool = False) -> Iterator[Iterator[Planning]]:
    """The plans of all applications of a file, `AT_ONCE` of them under way; the next starts when one was waited for.

    Each has a process of its own, because their modules may have the same names. `rest`: the file has mistakes, which
    are told already.
    """
    with ExitStack() as stack:
        names = iter(file.applications)

        def start(name: str) -> Planning:
            arguments = ["--application", name, *(["--rest"] if rest else []), "--", file.document.source]
            return stack.enter_context(Planning(name, arguments))

        started = deque(map(start, islice(names, AT_ONCE)))

        def each() -> Iterator[Planning]:
            while started:
                yield started.popleft()
                started.extend(map(start, islice(names, 1)))

        yield each()


def results(plannings: Iterable[Planning], wanted: Callable[[], bool]) -> list[ApplicationSpec] | None:
    """What all of them come to; None as soon as it is not `wanted` any more.

    Raises as `Planning.result` does, once each has told what is wrong with its app.
    """
    specs, failure = [], None
    for planning in plannings:
        try:
            spec = planning.result(wanted)
        except (SystemExit, PlanningError) as error:
            failure = failure or error
            continue
        if spec is None:
            return None
        specs.append(spec)
    if failure is not None:
        raise failure
    return specs


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
