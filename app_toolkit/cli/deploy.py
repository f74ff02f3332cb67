"""The command `deploy`: shows what it would change, and deploys applications to a running cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app_toolkit.cli.connecting import connecting
from app_toolkit.cli.plan import results
from app_toolkit.cli.run import RunOptions, plannings
from app_toolkit.cli.screen import Screen
from app_toolkit.client.client import WAIT_S, Client, Engine
from app_toolkit.client.commands import Deploy, GetApplications
from app_toolkit.client.progress import serving_at
from app_toolkit.core.applications import proxy_options
from app_toolkit.core.diff import difference, options_changed
from app_toolkit.engines.ray import cluster
from app_toolkit.errors import ConfigError
from app_toolkit.planning import shared_logs, stream_log_warnings, with_files


@dataclass(frozen=True, slots=True)
class DeployOptions(RunOptions):
    """The options of `run` and those of the deployment. `address` is not None."""

    dry_run: bool = False
    """Whether to show the changes without applying them."""
    wait: bool = False
    """Whether to wait until everything is up, or the deployment has failed."""
    timeout_s: float = WAIT_S
    """The maximum wait in seconds."""
    only: Sequence[str] = ()
    """The deployments of the only application to deploy, by their names or by endpoints. Empty: all."""


def deploy(options: DeployOptions, screen: Screen, engine: Callable[[], Engine]) -> None:
    """Plan, pack, show the changes, and apply them.

    Raises `ConfigError` if an application cannot be applied, and with `wait`, if it does not become available. Neither
    error reverts a deployment: not that of the application, nor those of applications that were applied before.
    """
    assert options.address is not None
    address = options.address
    cluster.check(address)
    with plannings(options) as planned:
        ray = engine()  # imports Ray, while child processes import the apps
        specs = results(planned, lambda: True) or []
    for warning in stream_log_warnings(specs):
        screen.say(warning)
    packed = [with_files(options.applied(spec)) for spec in specs]
    with connecting(address):
        client = ray.find(address)
    try:
        logs = [] if options.only else shared_logs(specs)
        commands = _changes(
            client,
            [Deploy(spec, expected=0, initial=options.http) for spec in logs],
            [Deploy(spec, options.named, code, initial=options.http) for spec, code in packed],
            options,
            screen,
        )
        if options.dry_run:
            return
        if client is None:
            with connecting(address):
                client = ray.start(address=address, num_cpus=None, with_lease=False)
        revisions = {command.spec.name: client.execute(command) for command in commands}
        if not options.wait:
            screen.say("Applied. `app-toolkit status --watch` shows the progress.")
            return
        try:
            with screen.progress() as show:
                status = client.wait_until_serving(revisions, options.timeout_s, show)
        except KeyboardInterrupt:
            screen.say("Stopped waiting. The cluster continues the update.")
            raise
        for command in commands:
            for sentence in serving_at(status, command.spec):
                screen.say(sentence)
    finally:
        if client is not None:
            client.close()


def _changes(
    client: Client | None, logs: Sequence[Deploy], commands: Sequence[Deploy], options: DeployOptions, screen: Screen
) -> Sequence[Deploy]:
    """Show what the commands change. Return them, limited to the deployments that the user chose.

    `logs`: the deployment of the shared stream log, which is left out if it runs already.
    """
    running, listening = ({}, None) if client is None else client.execute(GetApplications())
    commands = [*(each for each in logs if each.spec.name not in running), *commands]
    if not options.only:
        changes = [(command, difference(running.get(command.spec.name), command.spec)) for command in commands]
    elif client is None:
        name = commands[0].spec.name
        raise ConfigError(f"--only needs a running application, and there is no application {name!r}")
    else:
        changes = [client.partial_deploy(command, options.only) for command in commands]
    for command, change in changes:
        screen.difference(change, command.spec.route_prefix)
    if listening is not None and (moved := options_changed(listening, proxy_options(listening, options.named))):
        screen.say(f"proxies: will be restarted ({', '.join(map(str, moved))})")
    return [command for command, _ in changes]
