"""`deploy`: applications onto a cluster that runs, and stays; what that changes is shown before."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app_toolkit.cli.connecting import connecting
from app_toolkit.cli.instance import Engine, Instance, until_serving
from app_toolkit.cli.plan import results
from app_toolkit.cli.run import RunOptions, plannings, say_where
from app_toolkit.cli.screen import Screen
from app_toolkit.config.files import applied
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.core import partial
from app_toolkit.core.difference import Difference, difference, of_part, options_changed
from app_toolkit.engines.ray import cluster
from app_toolkit.errors import ConfigError
from app_toolkit.planning import with_files

WAIT_S = 600.0
"""How long `--wait` waits by default; to start a large model takes minutes."""


@dataclass(frozen=True, slots=True)
class DeployOptions(RunOptions):
    """Those of `run`, and what is to be done with them. There is an address."""

    moves: bool = False
    """Whether somebody has said how the proxies are to listen; else they stay as they are."""
    dry_run: bool = False
    """Show what would change, and change nothing."""
    wait: bool = False
    """Until all is up, or has failed."""
    timeout_s: float = WAIT_S
    only: Sequence[str] = ()
    """Of the one application: these deployments, by their names or by endpoints. Empty: all of it."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """One application with all that its replicas need."""

    spec: ApplicationSpec
    """With the values of all references. These are secrets, so nobody shows it."""
    code: Mapping[str, bytes]
    difference: Difference
    """What applying it changes."""
    expected: int | None = None
    """The revision number that it has to have until then; None: any."""


def deploy(options: DeployOptions, screen: Screen, engine: Callable[[], Engine]) -> None:
    """Plan, pack, show what changes, and apply.

    Raises `ConfigError` where that cannot be, and with `wait` where what was deployed does not come up: it is not
    taken back then. An application that cannot be applied takes none back that was applied before it.
    """
    assert options.address is not None
    address = options.address
    if address != "auto":  # which the engine looks for
        cluster.find(address)
    with plannings(options) as planned:
        ray = engine()  # imports Ray, while children import the apps
        specs = results(planned, lambda: True) or []
    packed = [with_files(spec if options.file is None else applied(spec, options.variables)) for spec in specs]
    with connecting(address):
        instance = ray.find(address)
    try:
        running, listening = ({}, None) if instance is None else instance.wanted()
        if not options.only:
            wanted = [Deployed(spec, code, difference(running.get(spec.name), spec)) for spec, code in packed]
        elif instance is None:
            raise ConfigError(f"there is no application {specs[0].name!r} of which a part could be deployed")
        else:
            wanted = [part(instance, spec, code, options.only) for spec, code in packed]
        _show(wanted, listening, options, screen)
        if options.dry_run:
            return
        if instance is None:
            with connecting(address):
                instance = ray.start(address=address, num_cpus=None, held=False)
        for each in wanted:
            http = options.http if options.moves else None
            instance.deploy(each.spec, http, each.code, held=False, expected=each.expected)
        if not options.wait:
            screen.say("Applied. `app-toolkit status --watch` shows how it goes on.")
            return
        try:
            with screen.progress() as progress:
                until_serving(instance, [spec.name for spec in specs], options.timeout_s, progress.show)
        except KeyboardInterrupt:
            screen.say("Not waiting: the cluster goes on with it.")
            raise
        for each in wanted:
            say_where(instance, each.spec, screen)
    finally:
        if instance is not None:
            instance.close()


def part(instance: Instance, plan: ApplicationSpec, code: Mapping[str, bytes], only: Iterable[str]) -> Deployed:
    """The application that lives, with `only` these deployments as planned, by their names or by endpoints.

    Raises `ConfigError` where there is no such application, it has no such deployment, and where the parts would not
    fit together.
    """
    living, revision = instance.application(plan.name)
    names = partial.named(only, living, plan)
    spec = partial.taken_over(living, plan, names)
    needed = {hash: packed for hash, packed in code.items() if hash in spec.packed}
    return Deployed(spec, needed, of_part(difference(living, spec), names), revision)


def _show(wanted: Sequence[Deployed], listening: HTTPOptions | None, options: DeployOptions, screen: Screen) -> None:
    """What applying these would change."""
    for each in wanted:
        screen.difference(each.difference, each.spec.route_prefix)
    if options.moves and listening is not None and (changes := options_changed(listening, options.http)):
        screen.say(f"proxies: restarted ({', '.join(map(str, changes))})")
