"""`run`: an app on Ray, kept in the foreground until somebody asks it to stop."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from app_toolkit.cli.addresses import check
from app_toolkit.cli.instance import (
    LOOK_S,
    Engine,
    Instance,
    hopeless,
    is_serving,
    logical_cpus,
    rows,
    together,
    url_of,
)
from app_toolkit.cli.plan import Planning, planning_of, plannings_of, results
from app_toolkit.cli.screen import Screen
from app_toolkit.config.files import ConfigFile, applied
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import PlanOptions
from app_toolkit.errors import InstanceEnded
from app_toolkit.planning import with_sources

CUT = (
    "The folder {folder} has more files than a snapshot takes: replicas import the rest of its Python files from disk. "
    "Keep data in another folder, or name the app's own folder (app_dir)."
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    target: str | None
    app_dir: Path | None
    http: HTTPOptions
    plan: PlanOptions
    address: str | None = None
    file: ConfigFile | None = None
    """Serve all of its applications, instead of one target."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the file refers to in the environment. Secrets: they are put in where the specs leave this process."""


class Interrupts:
    """The first Ctrl-C, SIGTERM or SIGHUP asks us to stop; a second one interrupts whatever we wait for."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under `nohup`
            self._before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        for number in self._before:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._forget_terminals()
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def _forget_terminals(self) -> None:
        """The terminal is gone: a write to it would fail, and end the drain."""
        while self._terminals:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._terminals.pop())
            os.close(nowhere)

    def nobody_asked(self) -> bool:
        return not self.asked


def run(options: RunOptions, screen: Screen, engine: Callable[[], Engine]) -> None:
    """Plan, start, deploy, and serve until a Ctrl-C, SIGTERM or SIGHUP; then drain.

    Raises `ConfigError` where an app cannot be served; nothing of it runs any more then.
    """
    check(options.http, options.address)
    with Interrupts() as interrupts, plannings(options) as planned:
        ray = engine()  # imports Ray, while children import the apps
        try:
            with screen.working("Importing the app"):
                specs = results(planned, interrupts.nobody_asked)
            if specs is None:
                return
            specs, code, cut = with_sources(specs)
            for folder in cut:
                screen.say(CUT.format(folder=folder))
            num_cpus = _logical_cpus(options, specs, screen)
            with screen.working("Starting Ray" if options.address is None else "Joining the cluster"):
                instance = ray.start(address=options.address, num_cpus=num_cpus)
        except KeyboardInterrupt:
            return
        interrupts.listen()  # Ray takes SIGTERM for itself when a process joins
        try:
            _deploy_and_serve(instance, specs, code, options, screen, interrupts)
            _drain(instance, screen)
        except KeyboardInterrupt:
            screen.say("Not waiting: what is left is ended.")
        except InstanceEnded as error:
            screen.say(f"Nothing is left to do: {error}.")
        except Exception:
            _drain(instance, screen)
            raise
        finally:
            instance.close()


@contextmanager
def plannings(options: RunOptions) -> Iterator[Iterable[Planning]]:
    """Of the one target, or of all applications of the file."""
    if options.file is not None:
        with plannings_of(options.file) as several:
            yield several
    else:
        with planning_of(options.target, options.app_dir, options.plan) as planning:
            yield [planning]


def _logical_cpus(options: RunOptions, specs: Sequence[ApplicationSpec], screen: Screen) -> float | None:
    """As many as the plans ask for: a replica books a share of a CPU, it does not fill it. Joined: None."""
    if options.address is not None:
        return None
    physical, asked = os.cpu_count() or 1, sum(spec.num_cpus for spec in specs)
    if asked > physical:
        screen.say(f"The replicas ask for {asked:g} logical CPUs; this machine has {physical} physical ones.")
    return logical_cpus(asked)


def _deploy_and_serve(
    instance: Instance,
    specs: Sequence[ApplicationSpec],
    code: Mapping[str, bytes],
    options: RunOptions,
    screen: Screen,
    interrupts: Interrupts,
) -> None:
    for spec in specs:
        if interrupts.nobody_asked():
            as_is = spec if options.file is None else applied(spec, options.variables)
            instance.deploy(as_is, options.http, {hash: code[hash] for hash in as_is.packed})
    after, serving = 0, False
    with screen.progress() as progress:
        while interrupts.nobody_asked():
            after, status = instance.progress(after, LOOK_S)
            found = {spec.name: rows(status, spec.name) for spec in specs}
            progress.show(together(found))
            if serving or interrupts.asked:
                continue
            for each in found.values():
                if error := hopeless(each):
                    raise error
            if all(is_serving(each, status) for each in found.values()):
                serving = True
                for spec in specs:
                    say_where(instance, spec, screen)
                screen.say("Ctrl-C drains and stops.")


def say_where(instance: Instance, spec: ApplicationSpec, screen: Screen) -> None:
    if spec.route_prefix is None:
        screen.say(f"Serving {spec.title or spec.name}")
    else:
        url = url_of(instance, spec)
        screen.say(f"Serving {spec.title or spec.name} at {url}")
        if any(route.path == "/docs" for route in spec.routes):
            screen.say(f"Documentation at {url}/docs")


def _drain(instance: Instance, screen: Screen) -> None:
    with screen.waiting("Draining; Ctrl-C again does not wait for it."):
        instance.leave()
