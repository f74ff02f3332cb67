"""`deploy`: applications onto a cluster that runs, and stays; what that changes is shown before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app_toolkit.cli.addresses import check_cluster_answers
from app_toolkit.cli.instance import Engine, Instance, until_serving
from app_toolkit.cli.plan import results
from app_toolkit.cli.run import RunOptions, plannings, say_where
from app_toolkit.cli.screen import Screen
from app_toolkit.config.files import applied
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core.difference import difference, options_changed
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


@dataclass(frozen=True, slots=True)
class Deployed:
    """One application with all that its replicas need."""

    spec: ApplicationSpec
    """With the values of all references. These are secrets, so nobody shows it."""
    code: Mapping[str, bytes]


def deploy(options: DeployOptions, screen: Screen, engine: Callable[[], Engine]) -> None:
    """Plan, pack, show what changes, and apply.

    Raises `ConfigError` where that cannot be, and with `wait` where what was deployed does not come up: it is not
    taken back then. An application that cannot be applied takes none back that was applied before it.
    """
    assert options.address is not None
    check_cluster_answers(options.address)
    with plannings(options) as planned:
        ray = engine()  # imports Ray, while children import the apps
        specs = results(planned, lambda: True) or []
    wanted = [_deployed(spec, options) for spec in specs]
    instance = ray.find(options.address)
    try:
        _show(instance, wanted, options, screen)
        if options.dry_run:
            return
        if instance is None:
            instance = ray.start(address=options.address, num_cpus=None, held=False)
        for each in wanted:
            instance.deploy(each.spec, options.http if options.moves else None, each.code, held=False)
        if not options.wait:
            screen.say("Applied. `app-toolkit status --watch` shows how it goes on.")
            return
        try:
            with screen.progress() as progress:
                until_serving(instance, [spec.name for spec in specs], options.timeout_s, progress.show)
        except KeyboardInterrupt:
            screen.say("Not waiting: the cluster goes on with it.")
            raise
        for spec in specs:
            say_where(instance, spec, screen)
    finally:
        if instance is not None:
            instance.close()


def _deployed(spec: ApplicationSpec, options: DeployOptions) -> Deployed:
    return Deployed(*with_files(spec if options.file is None else applied(spec, options.variables)))


def _show(instance: Instance | None, wanted: Sequence[Deployed], options: DeployOptions, screen: Screen) -> None:
    """What applying these would change."""
    running, listening = ({}, None) if instance is None else instance.wanted()
    for each in wanted:
        screen.difference(difference(running.get(each.spec.name), each.spec), each.spec.route_prefix)
    if options.moves and listening is not None and (changes := options_changed(listening, options.http)):
        screen.say(f"proxies: restarted ({', '.join(map(str, changes))})")
