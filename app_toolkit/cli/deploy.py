"""The command `deploy`: shows what it would change, and deploys applications to a running instance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app_toolkit.cli.connecting import connecting
from app_toolkit.cli.plan import results
from app_toolkit.cli.run import RunOptions, plannings
from app_toolkit.cli.screen import Screen
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import TrafficOptions
from app_toolkit.declare.planning import stream_log_warnings, with_files, with_sources
from app_toolkit.errors import ConfigError
from app_toolkit.operate import launch
from app_toolkit.operate.client import WAIT_S, Engine
from app_toolkit.operate.launch import Manifest
from app_toolkit.operate.progress import serving_at


@dataclass(frozen=True, slots=True)
class DeployOptions(RunOptions):
    """The options of `run` and those of the deployment. `address` is not None."""

    dry_run: bool = False
    """Whether to show the changes without applying them."""
    wait: bool = False
    """Whether to wait until everything is up, or the deployment has failed."""
    timeout_s: float = WAIT_S
    """The maximum wait in seconds."""
    traffic: TrafficOptions | None = None
    """The traffic of revisions that start beside the running ones. None: as the file says."""
    include: Sequence[str] = ()
    """The files to pack although files of their name are left out, in addition to those of the application file."""

    def beside(self, name: str) -> TrafficOptions | None:
        """Return the traffic of an application's new revision. None: this one replaces the running one."""
        if self.traffic is not None or self.file is None:
            return self.traffic
        application = self.file.applications.get(name)
        return None if application is None else application.options.traffic

    def included(self, name: str) -> list[str]:
        """Return the files of an application to pack although files of their name are left out."""
        return [*self.include, *(() if self.file is None else self.file.application(name).options.include)]


def deploy(options: DeployOptions, screen: Screen, engine: Engine) -> None:
    """Plan, show the changes, and apply them.

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
    manifest = _manifest_of(options, specs, screen, engine)
    with connecting(address):
        client = engine.find(address)
    try:
        beside = {spec.name: traffic for spec in specs if (traffic := options.beside(spec.name)) is not None}
        if client is None and beside:
            raise ConfigError(
                "a revision beside the running one needs a running application, and there is no application "
                f"{next(iter(beside))!r}"
            )
        changes = launch.changes(client, manifest, beside)
        for command, change in changes.applications:
            if command.spec.name in beside:
                screen.say(f"application {command.spec.name}: a new revision beside the running one")
            else:
                screen.difference(change, command.spec.route_prefix)
        if beside and (changed := [*changes.proxies, *changes.admin]):
            named = ", ".join(map(str, changed))
            raise ConfigError(f"a live revision cannot change options of the proxies: {named}; deploy these first")
        if changes.proxies:
            screen.say(f"proxies: will be restarted ({', '.join(map(str, changes.proxies))})")
        if changes.admin:
            screen.say(f"admin server: will be restarted ({', '.join(map(str, changes.admin))})")
        if options.dry_run:
            return
        if client is None:
            with connecting(address):
                client = engine.start(address=address, with_lease=False)
        revisions = launch.apply(client, changes.commands, beside)
        for name, revision in revisions.items():
            if name not in beside:
                continue
            traffic = beside[name]
            screen.say(f"Revision {revision} of {name} gets {traffic.percent:g} % of the requests once it runs.")
            if traffic.mirror:
                screen.say(f"It gets copies of {traffic.mirror:g} % of the requests of the other revisions.")
        if not options.wait:
            screen.say("Applied. `app-toolkit status --watch` shows the progress.")
            return
        try:
            with screen.progress() as show:
                status = client.wait_until_serving(revisions, options.timeout_s, show)
        except KeyboardInterrupt:
            screen.say("Stopped waiting. The instance continues the update.")
            raise
        for command in changes.commands:
            for sentence in serving_at(status, command.spec):
                screen.say(sentence)
    finally:
        if client is not None:
            client.close()


def _manifest_of(options: DeployOptions, specs: Sequence[ApplicationSpec], screen: Screen, engine: Engine) -> Manifest:
    """Return what is to be deployed: the files of the applications, or on processes of this machine, their folders with
    a snapshot of the Python files.
    """
    applied = [options.applied(spec) for spec in specs]
    code: Mapping[str, bytes]
    if engine.runs_here:
        if options.include:
            screen.say("--include has no effect here: the replicas use the folder of the app, with all of its files.")
        served, code, sentences = with_sources(applied)
    else:
        packed = [with_files(spec, options.included(spec.name)) for spec in applied]
        served = [spec for spec, _, _ in packed]
        code = {hash: archive for _, archives, _ in packed for hash, archive in archives.items()}
        sentences = [sentence for _, _, texts in packed for sentence in texts]
    for sentence in dict.fromkeys(sentences):
        screen.say(sentence)
    return Manifest(served, code, options.http, options.named)
