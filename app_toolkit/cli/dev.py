"""The command `dev`: serves in one process, and restarts the process when a file changes."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from threading import Thread
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.supervisors import ChangeReload

from app_toolkit.cli.plan import application_here
from app_toolkit.cli.screen import report
from app_toolkit.cli.target import Target, load
from app_toolkit.config.files import SUFFIXES, ConfigFile, applied, read_file
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.project import read_project
from app_toolkit.config.redaction import secrets_of
from app_toolkit.config.secrets import is_secret_name
from app_toolkit.config.settings import (
    read_served,
    read_variables,
    set_development,
    set_served,
    start_options,
    values_of,
)
from app_toolkit.declare.planning import apply_options, planned_options
from app_toolkit.declare.toolkit import Toolkit, route_table
from app_toolkit.edge.addresses import check_port_is_free
from app_toolkit.engines.one_process.applications import Applications
from app_toolkit.engines.one_process.engine import in_one_process
from app_toolkit.errors import ConfigError, ToolkitError
from app_toolkit.host.data_folder import use_data_of_project
from app_toolkit.interfaces import Deployable
from app_toolkit.observability.log_formats import FORMATTERS
from app_toolkit.observability.logs import show_logs
from app_toolkit.observability.secrets import add_secrets
from app_toolkit.types import ASGIApp, LoopKind
from app_toolkit.userapp.ending import bounded_end, descendants, end_processes
from app_toolkit.userapp.loading import configure_logging

END_S = 5.0
"""Seconds that threads of the app and functions of `atexit` may take after the app has stopped."""


@dataclass(frozen=True, slots=True)
class Served:
    """The target or file that the serving process serves. `str` and `read` pass it through an environment variable."""

    target: Target | None = None
    file: Path | None = None
    """An application file, instead of a target."""
    application: str | None = None
    """The only application of the file to serve; None: all."""

    def __str__(self) -> str:
        target = self.target
        names = target and [target.module, target.attribute, str(target.app_dir), target.file and str(target.file)]
        file = self.file and str(self.file)
        return json.dumps({"target": names, "file": file, "application": self.application})

    @classmethod
    def read(cls, value: str) -> "Served":
        plain: dict[str, Any] = json.loads(value)
        target = None
        if plain["target"] is not None:
            module, attribute, app_dir, file = plain["target"]
            target = Target(module, attribute, Path(app_dir), file and Path(file))
        return cls(target, plain["file"] and Path(plain["file"]), plain["application"])


def dev(
    served: Served, *, host: str, port: int, reload: bool, reload_dirs: Sequence[Path], loop: LoopKind = "uvloop"
) -> None:
    """Serve a target, or the applications of a file, with uvicorn until Ctrl-C.

    `reload_dirs`: the folders in which files are watched; empty: the current folder. Raises `ConfigError` if the port
    is in use. If the target cannot be served at first, the process ends with exit code 2. If it cannot be served after
    a change of a file, the process waits for the next change.
    """
    check_port_is_free(host, port)
    set_development()
    set_served(str(served))
    started = start_options()
    # uvicorn's own formatters do not escape control characters
    shown = {"()": FORMATTERS[started.log_format], "level": started.log_level}
    config = uvicorn.Config(
        f"{__name__}:app",
        factory=True,
        host=host,
        port=port,
        reload=reload,
        reload_dirs=[str(folder.resolve()) for folder in reload_dirs] or None,
        loop=f"app_toolkit.observability.watchdog:watched_{loop}",
        log_config={**LOGGING_CONFIG, "formatters": dict.fromkeys(LOGGING_CONFIG["formatters"], shown)},
        reload_includes=["*.py", *([served.file.name] if served.file else [])] if reload else None,
    )
    server = uvicorn.Server(config)
    if not reload:
        _serve(server, must_start=True)
        return
    reloading = Reload(config, target=partial(_serve, server), sockets=[config.bind_socket()])
    with suppress(KeyboardInterrupt):
        reloading.run()
    if reloading.failed:
        sys.exit(ConfigError.exit_code)


def loop_of(file: ConfigFile, application: str | None) -> LoopKind:
    """Return the event loop of the applications of a file. Raises `ConfigError` if they have different ones.

    `application`: the only application of the file to serve; None: all.
    """
    names = [application] if application is not None else [*file.applications]
    loop, *others = {file.application(name).options.loop for name in names}
    if others:
        raise ConfigError(
            f"{file.document.source}: its applications have different values of loop, and `dev` serves them in one "
            "process: serve one of them with --application NAME"
        )
    return loop


def _serve(server: uvicorn.Server, sockets: list[socket] | None = None, *, must_start: bool = False) -> None:
    with bounded_end(END_S), suppress(KeyboardInterrupt):  # as `uvicorn.run` does
        server.run(sockets)
        if must_start and not server.started:
            sys.exit(ConfigError.exit_code)


class Reload(ChangeReload):  # type: ignore[valid-type, misc]
    """A uvicorn reloader that ends if the first process could not serve its target, and leaves no process behind."""

    failed = False

    def startup(self) -> None:
        super().startup()
        Thread(target=self._end_with, args=(self.process,), name="app-toolkit dev", daemon=True).start()

    def restart(self) -> None:
        self._end_process()
        super().restart()

    def shutdown(self) -> None:
        self._end_process()
        super().shutdown()

    def _end_process(self) -> None:
        """End the process that serves. uvicorn leaves the processes that the app has started."""
        started_by_app = descendants(self.process.pid)
        self.process.terminate()
        self.process.join()
        end_processes(started_by_app)

    def _end_with(self, first: Any) -> None:
        first.join()
        if first is self.process and first.exitcode == ConfigError.exit_code:
            self.failed = True
            self.should_exit.set()


def app() -> ASGIApp:
    """Return the app to serve. uvicorn calls this in the serving process, within its event loop."""
    add_secrets(values_of(is_secret_name))
    started = start_options()
    show_logs(started.log_level, started.log_format)
    try:
        served = Served.read(read_served())
        with _interruptible():
            if served.file is not None:
                return _applications(_read(served.file), served.application)
            assert served.target is not None, "one of both is said"
            use_data_of_project(served.target.app_dir)
            app, _ = load(served.target)
        if isinstance(app, Toolkit) and app.application_config.logging_config is not None:
            configure_logging(app.application_config.logging_config, str(served.target.app_dir))
        return in_one_process(app, routes=route_table)
    except ToolkitError as error:
        report(error)
        sys.exit(ConfigError.exit_code)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process while it imports an app. The handlers of uvicorn only set a flag."""
    ending: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in ending.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is ending[number]:  # otherwise the app has installed one
                signal.signal(number, handler)


def _applications(file: ConfigFile, only: str | None) -> ASGIApp:
    """Return an app that serves the applications of a file, with the options of the file.

    They share the process, its modules and its working folder. Raises `ConfigError` if their working folders differ, or
    if two of them have different modules of the same name. `only`: serve only this application.
    """
    names = [only] if only is not None else [*file.applications]
    folders = {file.application(name).working_dir for name in names}
    if len(folders) > 1:
        raise ConfigError(
            f"{file.document.source}: its applications have different working folders ({', '.join(sorted(folders))}), "
            "and `dev` serves them in one process: serve one of them with --application NAME"
        )
    _refuse_equal_modules(file, names)
    variables = read_variables(file.variables)
    file.check(variables)
    targets, plans = [], []
    for name in names:
        target, plan = application_here(file, name)
        targets.append(target)
        plans.append(applied(plan, variables))
    _refuse_different_options(file, targets, plans)
    apps = {}
    for target, spec in zip(targets, plans, strict=True):
        add_secrets(secret for deployment in spec.deployments for secret in secrets_of(deployment))
        apply_options(target, spec)
        apps[file.application(spec.name).options.route_prefix] = in_one_process(
            target, spec.deployments[0].config, routes=route_table, stream_log=spec.stream_log
        )
    _configure_logging(file, plans)
    return Applications(apps)


def _refuse_different_options(
    file: ConfigFile, targets: Sequence[ASGIApp | Deployable], plans: Sequence[ApplicationSpec]
) -> None:
    """Raise `ConfigError` if two applications share an app or a deployment, which can only have the options of one."""
    planned: dict[tuple[int, str], tuple[str, object]] = {}
    for target, spec in zip(targets, plans, strict=True):
        for owner, options in planned_options(target, spec).items():
            first, before = planned.setdefault(owner, (spec.name, options))
            if before != options:
                raise ConfigError(
                    f"{file.document.source}: its applications {first!r} and {spec.name!r} give the same deployment "
                    f"{owner[1]!r} different options, and `dev` serves them in one process: serve one of them with "
                    "--application NAME"
                )


def _configure_logging(file: ConfigFile, plans: Sequence[ApplicationSpec]) -> None:
    """Apply the logging configuration of the applications. Raises `ConfigError` if they have different ones."""
    first, *others = plans
    if any(plan.logging_config != first.logging_config for plan in others):
        raise ConfigError(
            f"{file.document.source}: its applications have different values of logging_config, and `dev` serves them "
            "in one process: serve one of them with --application NAME"
        )
    if first.logging_config is not None:
        configure_logging(first.logging_config, first.app_dir)


def _refuse_equal_modules(file: ConfigFile, names: Sequence[str]) -> None:
    """Raise `ConfigError` if two applications have modules of the same name, because a process has only one of them."""
    folders: dict[str, str] = {}
    for name in names:
        application = file.application(name)
        module = application.options.target.partition(":")[0].partition(".")[0]
        if folders.setdefault(module, application.app_dir) != application.app_dir:
            raise ConfigError(
                f"{file.document.source}: {folders[module]} and {application.app_dir} both have a module {module!r}, "
                "and `dev` serves them in one process: serve one of them with --application NAME"
            )


def _read(path: Path) -> ConfigFile:
    file = read_file(path) if path.suffix in SUFFIXES else read_project(path.parent).file
    if file is None:
        raise ConfigError(f"{path} has no [tool.app_toolkit.applications] any more")
    return file
