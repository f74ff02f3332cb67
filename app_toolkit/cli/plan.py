"""Plans applications: in this process, or in a child process so that user code is not imported into this one."""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TextIO

from app_toolkit.cli.forked import ForkedCommand
from app_toolkit.cli.target import Target, load
from app_toolkit.config.files import ConfigFile
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import PlanOptions
from app_toolkit.control.traffic import with_split
from app_toolkit.declare.planning import plan
from app_toolkit.errors import ConfigError, OverrideError, PlanningError, TargetError
from app_toolkit.host.data_folder import use_data_of_project
from app_toolkit.interfaces import Deployable
from app_toolkit.operate.client import CANCEL_POLL_S, Planning
from app_toolkit.types import ASGIApp
from app_toolkit.userapp.ending import descendants, end_processes

AT_ONCE = 4
"""The number of applications of a file that are imported at the same time."""


def plan_here(target: Target, options: PlanOptions, *, written: bool = False) -> ApplicationSpec:
    """Import the app and plan its application.

    `written`: return the options as a file has them (`as_written`). Raises `TargetError` and `PlanningError`.
    """
    use_data_of_project(target.app_dir)
    app, where = load(target)
    return plan(
        app,
        target=where,
        app_dir=str(target.app_dir),
        overrides={} if written else None,
        **options.keywords,
    )


def plan_application(file: ConfigFile, name: str) -> ApplicationSpec:
    """Plan one application of a file, as written.

    Changes into the working folder of the application. Raises `ConfigError` with the lines of the file that cause it.
    """
    return application_here(file, name)[1]


def application_here(file: ConfigFile, name: str) -> tuple[ASGIApp | Deployable, ApplicationSpec]:
    """Import one application of a file, and return its target and its plan.

    Changes into the working folder of the application. Raises as `plan_application` does.
    """
    application = file.application(name)
    missing = []
    for option, folder in (("app_dir", application.app_dir), ("working_dir", application.working_dir)):
        if not Path(folder).is_dir():
            place = ("applications", name, option)
            missing.append(f"{file.document.at(place)}: {file.document.display_name(place)}: {folder} is not a folder")
    if missing:
        raise ConfigError("\n".join(missing))
    module, _, attribute = application.options.target.partition(":")
    use_data_of_project(Path(application.app_dir))
    os.chdir(application.working_dir)
    try:
        app, where = load(Target(module, attribute, Path(application.app_dir)))
        spec = plan(
            app,
            target=where,
            app_dir=application.app_dir,
            name=name,
            route_prefix=application.options.route_prefix,
            config=application.config,
            working_dir=application.working_dir,
            overrides=application.deployments,
        )
        return app, _with_splits(spec, file)
    except OverrideError as error:
        raise file.locate(name, error) from None
    except (TargetError, PlanningError) as error:
        place = ("applications", name, "target")
        error.args = (f"{file.document.at(place)}: {error}",)  # keeps the notes of the error
        raise


def _with_splits(spec: ApplicationSpec, file: ConfigFile) -> ApplicationSpec:
    """Return the application with the weights of its splits that the file sets."""
    for split, weights in file.application(spec.name).options.splits.items():
        try:
            spec = with_split(spec, split, weights)
        except ConfigError as error:
            place = ("applications", spec.name, "splits", split)
            raise ConfigError(f"{file.document.at(place)}: {file.document.display_name(place)}: {error}") from None
    return spec


class PlanCommand(Planning):
    """The planning of one application by the command `plan`, in a child process."""

    process: "subprocess.Popen[bytes] | ForkedCommand"

    def __init__(self, named: str, arguments: Sequence[str], fork: Callable[[], None] | None = None) -> None:
        """Start the child.

        Parameters:
            named: The name of the app in messages.
            arguments: Those of the command `plan`.
            fork: Runs the command line in a fork of this process. None: in a new process.
        """
        self._named = named
        if fork is not None:
            self.process = ForkedCommand(["plan", "--format", "json", *arguments], fork)
            return
        self.process = subprocess.Popen(
            # -P: do not put the current folder on the import path, because replicas do not have it there either.
            [sys.executable, "-P", "-m", "app_toolkit.cli", "plan", "--format", "json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Ctrl-C must reach only the parent, which then ends the child.
            start_new_session=True,
        )

    def result(self, goes_on: Callable[[], bool]) -> ApplicationSpec | None:
        has_ended = False
        while goes_on():
            try:
                output, _ = self.process.communicate(timeout=CANCEL_POLL_S)
            except subprocess.TimeoutExpired as unfinished:
                if not has_ended:
                    has_ended = self.process.poll() is not None
                    continue
                # A process that the app has started holds the pipe. The child has written everything.
                output = unfinished.output or b""
            code = self.process.returncode
            if code == ConfigError.exit_code:
                raise SystemExit(code)
            if code != 0:
                raise PlanningError(f"planning {self._named} ended with exit code {code}")
            try:
                spec = json.loads(output)
            except ValueError:
                raise PlanningError(f"planning {self._named} ended before there was a plan") from None
            return ApplicationSpec(**spec)
        return None

    def close(self) -> None:
        if self.process.poll() is None:
            started_by_app = descendants(self.process.pid)
            self.process.kill()
            end_processes(started_by_app)
        with suppress(ProcessLookupError):  # what the app has started, if the child was killed or ended at once
            os.killpg(self.process.pid, signal.SIGKILL)
        with self.process:  # closes the pipe, and waits for the process
            pass


def planning_of(
    target: str | None, app_dir: Path | None, options: PlanOptions, fork: Callable[[], None] | None = None
) -> PlanCommand:
    """Start planning one app with these options. `fork`: as of `PlanCommand`."""
    arguments = [
        word
        for name, value in options.model_dump(exclude_none=True).items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    if app_dir is not None:
        arguments += ["--app-dir", str(app_dir)]
    return PlanCommand(target or "the app", arguments if target is None else [*arguments, "--", target], fork)


def plannings_of(
    file: ConfigFile, *, rest: bool = False, fork: Callable[[], None] | None = None
) -> AbstractContextManager[Iterator[Planning]]:
    """Plan all applications of a file, as `plan_each` does.

    `rest`: the file has mistakes that have been reported, so plan only the part that can be read. `fork`: as of
    `PlanCommand`.
    """

    def start(name: str) -> Planning:
        arguments = ["--application", name, *(["--rest"] if rest else []), "--", file.document.source]
        return PlanCommand(name, arguments, fork)

    return plan_each(file.applications, start)


@contextmanager
def plan_each(names: Iterable[str], start: Callable[[str], Planning]) -> Iterator[Iterator[Planning]]:
    """Plan applications, `AT_ONCE` at the same time. The next one starts when another is consumed.

    Each has a process of its own, because their modules may have the same names. `start`: starts planning one of them.
    """
    with ExitStack() as stack:
        plannings = (stack.enter_context(start(name)) for name in names)
        running = deque(islice(plannings, AT_ONCE))

        def in_order() -> Iterator[Planning]:
            while running:
                yield running.popleft()
                running.extend(islice(plannings, 1))

        yield in_order()


def results(plannings: Iterable[Planning], goes_on: Callable[[], bool]) -> list[ApplicationSpec] | None:
    """Return all plans. Return None as soon as `goes_on` returns False.

    Raises as `Planning.result` does, after every child has reported the errors of its app.
    """
    specs, failure = [], None
    for planning in plannings:
        try:
            spec = planning.result(goes_on)
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
def reserved_stdout(*, until_exit: bool) -> Iterator[TextIO]:
    """Reserve standard output for the plan, and return the stream to write it to.

    What the app writes to standard output goes to standard error, also from code that is not Python. `until_exit`: this
    does not end with the block, because threads and functions of `atexit` of the app may write later.
    """
    stdout = sys.stdout
    stdout.flush()
    with open(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors) as reserved:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        try:
            yield reserved
        finally:
            if not until_exit:
                sys.stdout = stdout
                os.dup2(reserved.fileno(), 1)
