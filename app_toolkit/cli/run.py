"""The command `run`: serves apps in the foreground, until a signal asks it to stop."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Self

from app_toolkit.cli.plan import plan_application, plan_each, plan_here, planning_of, plannings_of, results
from app_toolkit.cli.reload import Reloading
from app_toolkit.cli.screen import Screen, report
from app_toolkit.cli.target import resolve
from app_toolkit.config.files import ConfigFile, applied
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import PlanOptions
from app_toolkit.config.project import read_project
from app_toolkit.config.settings import start_options
from app_toolkit.control.status import InstanceStatus
from app_toolkit.declare.planning import shared_logs, stream_log_warnings, with_sources
from app_toolkit.engines.processes import machine
from app_toolkit.errors import ConfigError, InstanceEnded, ToolkitError
from app_toolkit.host.interrupts import Interrupts
from app_toolkit.operate import launch
from app_toolkit.operate.client import Client, Engine, Planning
from app_toolkit.operate.launch import Manifest
from app_toolkit.operate.progress import ended, is_serving, rows, serving_at


@dataclass(frozen=True, slots=True)
class RunOptions:
    target: str | None
    app_dir: Path | None
    http: HTTPOptions
    plan: PlanOptions
    named: HTTPOptions = field(default_factory=HTTPOptions)
    """Those options in `http` that a source sets for app_toolkit. Only these change proxies that run already."""
    address: str | None = None
    file: ConfigFile | None = None
    """The application file whose applications are served, instead of a target; None: there is a target."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of the environment variables to which the file refers. They may be secrets, so they are put into specs
    only when these leave this process."""

    reload: bool = False
    """Whether to update the applications after each change of their Python files."""

    command_line: Callable[[], None] | None = None
    """Runs the command line of this process, in a fork of it. None: it cannot run there."""

    def at(self, address: tuple[str, int] | None) -> Self:
        """Return the options with the host and the port of an inherited socket. None: the same options."""
        if address is None:
            return self
        bound = {"host": address[0], "port": address[1]}
        return replace(self, http=self.http.model_copy(update=bound), named=self.named.model_copy(update=bound))

    def plan_one(self, name: str) -> ApplicationSpec:
        """Import and plan the target, or the application of this name in the file.

        Raises `SystemExit` after an error of the app was reported.
        """
        try:
            if self.file is not None:
                return plan_application(self.file, name)
            entrypoint = read_project(Path.cwd()).entrypoint
            target = resolve(self.target, folder=Path.cwd(), entrypoint=entrypoint, app_dir=self.app_dir)
            return plan_here(target, self.plan)
        except ToolkitError as error:
            report(error)
            raise SystemExit(ConfigError.exit_code) from None

    def applied(self, spec: ApplicationSpec) -> ApplicationSpec:
        """Return the spec with each reference replaced by the value of its variable."""
        return spec if self.file is None else applied(spec, self.variables)


def run(options: RunOptions, screen: Screen, engine: Engine) -> None:
    """Plan, start, deploy and serve until Ctrl-C, SIGTERM or SIGHUP, and then drain.

    Raises `ConfigError` if an app cannot be served, after everything that was deployed is drained, and `SystemExit` if
    a second signal has ended the drain.
    """
    if options.reload and (options.address is not None or not engine.runs_here):
        raise ConfigError("--reload needs replicas on processes of this machine: use it with --engine processes")
    options = options if options.address is not None else options.at(engine.inherited_address())
    launch.check(engine, options.address, options.http)
    is_begun = options.address is None and engine.begin_instance(options.http, options.plan_one)
    with Interrupts() as interrupts, _in_instance(options, engine) if is_begun else plannings(options) as planned:
        engine.preload()  # while child processes import the apps
        try:
            with screen.working("Importing the app"):
                specs = results(planned, interrupts.not_interrupted)
            if specs is None:
                return
            manifest = manifest_of(options, specs, screen)
            with screen.working("Starting the instance" if options.address is None else "Joining the instance"):
                client = launch.start(engine, specs, options.address)
        except KeyboardInterrupt:
            return
        interrupts.listen()  # the engine may have replaced the handlers

        def plan_again() -> Manifest | None:
            with plannings(options) as planned:
                specs = results(planned, interrupts.not_interrupted)
            return None if specs is None else manifest_of(options, specs, screen)

        folders = [spec.app_dir for spec in manifest.specs]
        try:
            with Reloading(folders, plan_again, screen) if options.reload else nullcontext() as reloading:
                if _deploy_and_serve(client, manifest, screen, interrupts, reloading):
                    return
            _drain(client, screen)
        except KeyboardInterrupt:
            is_local = options.address is None
            rest = "The remaining requests are aborted." if is_local else "The instance completes the drain."
            screen.say(f"Stopped waiting. {rest}")
            raise SystemExit(interrupts.exit_code) from None
        except InstanceEnded as error:
            screen.say(f"The instance has ended: {error}.")
        except Exception:
            _drain(client, screen)
            raise
        finally:
            client.close()


def manifest_of(options: RunOptions, specs: Sequence[ApplicationSpec], screen: Screen) -> Manifest:
    """Return what is to be deployed, with a snapshot of the Python files. Show warnings about it."""
    planned, code, warnings = with_sources(specs)
    for warning in (*warnings, *stream_log_warnings(planned)):
        screen.say(warning)
    if options.address is None:
        _warn_of_few_cpus([*shared_logs(planned), *planned], screen)
    return Manifest([options.applied(spec) for spec in planned], code, options.http, options.named)


def _in_instance(options: RunOptions, engine: Engine) -> AbstractContextManager[Iterable[Planning]]:
    """Start planning as `plannings` does, in processes of the instance that has begun."""
    return plan_each([options.plan.name] if options.file is None else options.file.applications, engine.planning)


@contextmanager
def plannings(options: RunOptions, fork: Callable[[], None] | None = None) -> Iterator[Iterable[Planning]]:
    """Start planning the target, or all applications of the file. `fork`: as of `PlanCommand`."""
    if options.file is not None:
        with plannings_of(options.file, fork=fork) as several:
            yield several
    else:
        with planning_of(options.target, options.app_dir, options.plan, fork) as planning:
            yield [planning]


def _warn_of_few_cpus(specs: Sequence[ApplicationSpec], screen: Screen) -> None:
    available, reserved = machine.cpus(), sum(spec.num_cpus for spec in specs)
    if reserved > available and "CPU" not in (start_options().resources or {}):
        screen.say(
            f"The replicas reserve {reserved:g} CPUs; this machine has {available:g}. The replicas will share them. "
            "Reduce `num_replicas` or `num_cpus` if the app is slow."
        )


def _deploy_and_serve(
    client: Client, manifest: Manifest, screen: Screen, interrupts: Interrupts, reloading: Reloading | None
) -> bool:
    """Deploy, and show the progress. Return False after a signal, and True once the instance needs no command."""
    commands = launch.commands_with_lease(client, manifest)
    revisions = launch.apply(client, takewhile(lambda _: interrupts.not_interrupted(), commands))
    names, serving, dashboard = [*revisions], False, None
    with screen.progress() as show:
        for status in client.watch(interrupts.not_interrupted):
            show(rows(status, names))
            has_served = serving
            if not (serving or interrupts.asked):
                for name, revision in revisions.items():
                    application = status.application(name)
                    if (
                        application is not None and application.revision > revision
                    ):  # for example, it was scaled meanwhile
                        revisions[name] = revision = application.revision
                    if error := ended(status, name, revision):
                        raise error
                if serving := is_serving(status, names):
                    for command in commands:
                        for sentence in serving_at(status, command.spec):
                            screen.say(sentence)
                    if client.is_local:
                        client.report_ready()
                    screen.say("Press Ctrl-C to drain and stop.")
            if status.admin_url not in (None, dashboard):  # after the URL of the app, which may be new in this status
                dashboard = status.admin_url
                screen.say(f"Dashboard at {dashboard}")
            if has_served and not interrupts.asked:
                if reloading is not None:
                    reloading.step(client, status)
                elif not _dashboard_starts(status, manifest.http) and client.hand_over():
                    return True
    return False


def _dashboard_starts(status: InstanceStatus, http: HTTPOptions) -> bool:
    """Return whether the URL of the dashboard is not known yet, and may still be."""
    return http.admin and status.admin_url is None and status.admin_failure is None


def _drain(client: Client, screen: Screen) -> None:
    with screen.waiting("Draining. Press Ctrl-C again to stop at once."):
        client.leave()
