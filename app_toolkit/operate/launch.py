"""Starts instances and deploys applications, for the command line and for Python."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from app_toolkit.config.models import AdminOptions, ApplicationSpec, HTTPOptions
from app_toolkit.config.options import TrafficOptions
from app_toolkit.config.settings import start_options
from app_toolkit.control.application_specs import check_all
from app_toolkit.control.command import Operation
from app_toolkit.control.diff import Change, Diff, difference
from app_toolkit.control.operations import AddCandidate, Deploy
from app_toolkit.control.queries import Compare, GetApplications, GetStatus
from app_toolkit.declare.planning import logical_cpus, shared_logs
from app_toolkit.edge import addresses
from app_toolkit.errors import ConfigError
from app_toolkit.operate.admin.security import check_exposure
from app_toolkit.operate.client import Client, Engine

logger = logging.getLogger("app_toolkit")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Applications to deploy together, with everything that their replicas and proxies need."""

    specs: Sequence[ApplicationSpec] = field(repr=False)  # may contain secrets
    code: Mapping[str, bytes] = field(repr=False)
    """The code and files to which the specs refer, by hash."""
    http: HTTPOptions
    """The options of the proxies if the instance has none yet."""
    named: HTTPOptions
    """The options of the proxies that a source sets for app_toolkit. Only these change proxies that run already."""

    def logs(self, running: Collection[str], owner: str | None = None) -> list[Deploy]:
        """Return the command for the shared stream log, if an application needs it and it does not run.

        It does not change proxies that run, because it serves no HTTP.
        """
        missing = [spec for spec in shared_logs(self.specs) if spec.name not in running]
        return [Deploy(spec, owner=owner, expected=0, initial=self.http) for spec in missing]

    def commands(self, owner: str | None = None) -> list[Deploy]:
        """Return the commands for the applications, without the shared stream log."""
        return [
            Deploy(spec, self.named, {hash: self.code[hash] for hash in spec.packed}, owner, initial=self.http)
            for spec in self.specs
        ]


@dataclass(frozen=True, slots=True)
class Changes:
    """The commands that deploy a manifest to a running instance, and what they change."""

    applications: Sequence[tuple[Deploy, Diff]]
    proxies: Sequence[Change]
    """The options of running proxies that change. The proxies restart if there are any."""
    admin: Sequence[Change] = ()
    """The options of the running admin server that change. The admin server restarts if there are any."""

    @property
    def commands(self) -> list[Deploy]:
        return [command for command, _ in self.applications]


def check(engine: Engine, address: str | None, http: HTTPOptions) -> None:
    """Raise `ConfigError` if no instance can be started or found, before anything is imported.

    `address`: that of a cluster; None: a local cluster will be started, and its proxy listens as `http` says.
    """
    if address is not None and start_options().log_file == "-":
        raise ConfigError(
            f"log_file = '-' shows only the log records of an instance that this process starts, not those of "
            f"{address}: leave it out, and use `app-toolkit logs --follow`"
        )
    if http.edge == "replica" and "edge" not in engine.capabilities:
        raise ConfigError("edge = 'replica' needs the engine on processes of one machine: use edge = 'proxy' here")
    if address is None:
        addresses.check(http, is_bound=engine.inherited_address() is not None)
        if http.admin:
            check_exposure(http.admin_host)
            if http.admin_port is not None:
                addresses.check_port_is_free(http.admin_host, http.admin_port)
    else:
        engine.check(address)


def start(
    engine: Engine, specs: Sequence[ApplicationSpec], address: str | None, http: HTTPOptions | None = None
) -> Client:
    """Join the cluster at `address`, or with None, start a local one with enough CPUs for these applications.

    Start an instance if none runs there, and take a lease. Log in one line which options have no effect in this engine.
    `http`: the options of the proxies of a new instance; see `Engine.start`.
    """
    warn_of_options(engine, specs)
    return engine.start(address=address, num_cpus=logical_cpus(specs) if address is None else None, http=http)


def warn_of_options(engine: Engine, specs: Iterable[ApplicationSpec]) -> None:
    """Log in one line which options of these applications have no effect in this engine."""
    lines = [
        f"{deployment.config.name}: {', '.join(options)}"
        for spec in specs
        for deployment in spec.deployments
        if (options := deployment.config.without_effect(engine.capabilities))
    ]
    if lines:
        logger.warning("in this engine these options have no effect: %s", "; ".join(lines))


def changes(
    client: Client | None,
    manifest: Manifest,
    beside: Mapping[str, TrafficOptions] = MappingProxyType({}),
) -> Changes:
    """Return what deploying the manifest changes. `client`: that of the running instance; None: there is none.

    `beside`: the same as in `apply`. Raises `ConfigError` if the instance would refuse what `apply` does.
    """
    logs = manifest.logs(())
    if logs and client is not None:
        logs = manifest.logs({application.name for application in client.execute(GetStatus()).applications})
    commands = [*logs, *manifest.commands()]
    specs = tuple(command.spec for command in commands)
    if client is None:
        check_all(specs, manifest.named, None, (), manifest.http, lambda name: None)
        return Changes([(command, difference(None, command.spec)) for command in commands], ())
    candidates = tuple(
        AddCandidate.instead_of(replace(command, code={}), beside[command.spec.name], client.owner)
        for command in commands
        if command.spec.name in beside
    )
    comparison = client.execute(Compare(specs, manifest.named, candidates))
    applications = list(zip(commands, comparison.differences, strict=True))
    admin = [change for change in comparison.options if change.option in AdminOptions.model_fields]
    return Changes(applications, [change for change in comparison.options if change not in admin], admin)


def apply(
    client: Client, commands: Iterable[Deploy], beside: Mapping[str, TrafficOptions] = MappingProxyType({})
) -> dict[str, int]:
    """Have the instance perform the commands, in their order. Return the number of each new revision by application.

    `Client.wait_until_serving` waits for these revisions. `beside`: the applications whose revision starts beside the
    running one, with its traffic. Raises `ConfigError` if one of them does
    not run, or a revision is refused.
    """
    revisions: dict[str, int] = {}
    for command in commands:
        operation: Operation[int] = command
        name = command.spec.name
        if name in beside:
            operation = AddCandidate.instead_of(command, beside[name], client.owner)
        revisions |= operation.started(client.change(operation))
    return revisions


def commands_with_lease(client: Client, manifest: Manifest) -> list[Deploy]:
    """Return the commands that deploy the manifest with the lease of this client."""
    running, _ = client.execute(GetApplications())
    return [*manifest.logs(running, client.owner), *manifest.commands(client.owner)]
