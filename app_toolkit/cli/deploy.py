"""The command `deploy`: shows what it would change, and deploys applications to a running cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from app_toolkit import launch
from app_toolkit.cli.connecting import connecting
from app_toolkit.cli.plan import results
from app_toolkit.cli.run import RunOptions, plannings
from app_toolkit.cli.screen import Screen
from app_toolkit.client.client import WAIT_S, Engine
from app_toolkit.client.progress import serving_at
from app_toolkit.core.identity import candidate_name
from app_toolkit.errors import ConfigError
from app_toolkit.launch import Manifest
from app_toolkit.planning import stream_log_warnings, with_files


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
    traffic: float | None = None
    """The percentage of the requests that a new live revision gets. None: with no `tag`, the revision replaces the main
    revision."""
    tag: str | None = None
    """The tag of a new live revision. None: it has no tag."""
    mirror: float | None = None
    """The percentage of the requests that a new live revision gets copies of. None: it gets none."""

    @property
    def beside(self) -> bool:
        """Whether the new revision runs beside the main revision."""
        return self.traffic is not None or self.tag is not None or self.mirror is not None


def deploy(options: DeployOptions, screen: Screen, engine: Engine) -> None:
    """Plan, pack, show the changes, and apply them.

    Raises `ConfigError` if an application cannot be applied, and with `wait`, if it does not become available. Neither
    error reverts a deployment: not that of the application, nor those of applications that were applied before.
    """
    assert options.address is not None
    address = options.address
    launch.check(engine, address, options.http)
    with plannings(options) as planned:
        engine.preload()  # while child processes import the apps
        specs = results(planned, lambda: True) or []
    for warning in stream_log_warnings(specs):
        screen.say(warning)
    packed = [with_files(options.applied(spec)) for spec in specs]
    code = {hash: archive for _, archives in packed for hash, archive in archives.items()}
    manifest = Manifest([spec for spec, _ in packed], code, options.http, options.named)
    with connecting(address):
        client = engine.find(address)
    try:
        if client is None and (options.only or options.beside):
            needs = "--only needs" if options.only else "--traffic, --tag and --mirror need"
            raise ConfigError(f"{needs} a running application, and there is no application {specs[0].name!r}")
        changes = launch.changes(client, manifest, options.only)
        for command, change in changes.applications:
            if options.beside:
                screen.say(f"application {command.spec.name}: a new revision beside the running one")
            else:
                screen.difference(change, command.spec.route_prefix)
        if changes.proxies and options.beside:
            named = ", ".join(map(str, changes.proxies))
            raise ConfigError(f"a live revision cannot change options of the proxies: {named}; deploy these first")
        if changes.proxies:
            screen.say(f"proxies: will be restarted ({', '.join(map(str, changes.proxies))})")
        if options.dry_run:
            return
        if client is None:
            with connecting(address):
                client = engine.start(address=address, with_lease=False)
        if options.beside:
            numbers = launch.add_candidates(client, manifest, options.traffic, options.tag, options.mirror)
            revisions = {candidate_name(name, number): 1 for name, number in numbers.items()}
            for name, number in numbers.items():
                screen.say(f"Revision {number} of {name} gets {options.traffic or 0:g} % of the requests once it runs.")
                if options.mirror:
                    screen.say(f"It gets copies of {options.mirror:g} % of the requests of the other revisions.")
        else:
            revisions = launch.apply(client, changes.commands)
        if not options.wait:
            screen.say("Applied. `app-toolkit status --watch` shows the progress.")
            return
        try:
            with screen.progress() as show:
                status = client.wait_until_serving(revisions, options.timeout_s, show)
        except KeyboardInterrupt:
            screen.say("Stopped waiting. The cluster continues the update.")
            raise
        for command in changes.commands:
            for sentence in serving_at(status, command.spec):
                screen.say(sentence)
    finally:
        if client is not None:
            client.close()
