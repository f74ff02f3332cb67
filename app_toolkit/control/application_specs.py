"""Decides whether an application may be applied beside the others of an instance, and computes its replica sets."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app_toolkit.config.models import (
    ApplicationSpec,
    ClassSpec,
    DeploymentSpec,
    HTTPOptions,
    ResourceOptions,
    Route,
    SplitSpec,
)
from app_toolkit.config.redaction import secrets_of
from app_toolkit.contract.identity import AnySetKey, LiveRevisionKey, ReplicaSetKey
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.control.diff import Change, Diff, difference, options_changed
from app_toolkit.control.reconcile import ReplicaSetSpec
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Resources
from app_toolkit.types import ReplicaId

MOST_ROUTES = 3
"""The routes that a message names."""


def check_all(
    specs: Iterable[ApplicationSpec],
    named: HTTPOptions,
    owner: str | None,
    existing: Iterable[ApplicationSpec],
    listening: HTTPOptions,
    holder: Callable[[LiveRevisionKey], str | None],
) -> HTTPOptions:
    """Raise `ConfigError` if `owner` may not apply these applications, in this order.

    `existing`, `listening` and `owner` are the same as in `check`. `named`: the options of the proxies that change.
    `holder` returns the owner of the lease that holds an application. Returns the options of the proxies after that.
    """
    existing = list(existing)
    for spec in specs:
        changed = proxy_options(listening, named)
        check(spec, changed, owner, existing, listening, holder(LiveRevisionKey.parse(spec.name)))
        existing.append(spec)
        listening = changed
    return listening


def check(
    spec: ApplicationSpec,
    http: HTTPOptions,
    owner: str | None,
    existing: Collection[ApplicationSpec],
    listening: HTTPOptions,
    holder: str | None,
) -> None:
    """Raise `ConfigError` if `owner` may not apply this application.

    `existing`: every revision that runs or may be started again. `http`: the new options of the proxies, `listening`:
    the present ones. `holder`: the owner of the lease that holds the application of this name.
    """
    check_root_path(spec)
    for other in existing:
        if other.name != spec.name and other.route_prefix == spec.route_prefix is not None:
            raise ConfigError(
                f"application {spec.name!r} cannot have the route prefix {spec.route_prefix!r}: {other.name!r} has it"
            )
    if holder not in (None, owner):
        raise ConfigError(f"the application {spec.name!r} is held by another run of this instance: choose another name")
    others = sorted({other.name for other in existing if other.route_prefix is not None} - {spec.name})
    if http != listening and others:
        changes = ", ".join(map(str, options_changed(listening, http)))
        raise ConfigError(
            f"the proxies of this instance also serve {', '.join(map(repr, others))}, so these options of theirs "
            f"cannot change: {changes}; deploy {spec.name!r} without them, or delete the other applications first"
        )


def check_root_path(spec: ApplicationSpec) -> None:
    """Raise `ConfigError` if the app would find none of its routes, because it has a `root_path` of its own."""
    prefix, root_path = spec.route_prefix, spec.root_path
    if prefix not in (None, "/") and root_path not in ("", prefix):
        raise ConfigError(
            f"application {spec.name!r} has the route prefix {prefix!r}, and its app has root_path={root_path!r}, so "
            "no request would find a route: remove root_path from the app, because the route prefix is its root path"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What deploying applications would change."""

    differences: tuple[Diff, ...]
    """One for each application."""
    options: tuple[Change, ...]
    """The options of the proxies and the admin server that would change."""


def compare(
    specs: Iterable[ApplicationSpec],
    running: Mapping[str, ApplicationSpec],
    listening: HTTPOptions,
    named: HTTPOptions,
) -> Comparison:
    """Return what deploying these applications would change.

    Parameters:
        specs: The applications.
        running: The applications that run, by name.
        listening: The present options of the proxies.
        named: The options of the proxies that change: only options that are set here.
    """
    differences = tuple(difference(running.get(spec.name), spec) for spec in specs)
    return Comparison(differences, options_changed(listening, proxy_options(listening, named)))


def proxy_options(listening: HTTPOptions, named: HTTPOptions) -> HTTPOptions:
    """Return the options of the proxies after those that are set in `named` have changed. The others stay.

    A certificate and its key are one pair: if only `ssl_certfile` is set, the key is in the same file.
    """
    options = {name: getattr(named, name) for name in named.model_fields_set}
    if "ssl_certfile" in options:
        options.setdefault("ssl_keyfile", None)
    return HTTPOptions(**{**listening.model_dump(), **options})


def callee(applications: Mapping[str, ApplicationSpec], application: str, name: str) -> ClassSpec | SplitSpec:
    """Return the deployment or the split of this name, which handles call. Raises `ConfigError` if there is none."""
    spec = applications.get(application)
    if spec is None:
        names = ", ".join(sorted(applications)) or "none"
        raise ConfigError(f"there is no application {application!r}; those that run: {names}")
    for deployment in spec.deployments:
        if deployment.kind == "class" and deployment.config.name == name:
            return deployment
    for split in spec.splits:
        if split.name == name:
            return split
    names = ", ".join((*spec.callees, *(split.name for split in spec.splits))) or "none"
    raise ConfigError(f"application {application!r} has no deployment {name!r} to call; it has {names}")


def scaled(spec: ApplicationSpec, deployment: str, num_replicas: int) -> ApplicationSpec:
    """Return the application with this number of replicas of a deployment.

    Raises `ConfigError` if there is no such deployment, it is autoscaled, or the number is out of bounds, or if it has
    streams in the memory of its only replica, and nobody has asked for that.
    """
    before = spec.deployment(deployment)
    options = before.config.model_dump()
    if options["num_replicas"] == "auto":
        raise ConfigError(
            f"{spec.name}/{deployment} cannot be scaled to {num_replicas}: with num_replicas = 'auto' it follows its "
            "load; deploy it with a number, or with other bounds"
        )
    config = type(before.config)(**{**options, "num_replicas": num_replicas})
    changed = before.model_copy(update={"config": config})
    after = spec.model_copy(
        update={"deployments": tuple(changed if old is before else old for old in spec.deployments)}
    )
    _check_streams(after)
    return after


def without(spec: ApplicationSpec, deployment: str) -> ApplicationSpec:
    """Return the application without a deployment, its routes and the splits that it is a member of.

    Raises `ConfigError` if there is no such deployment, if it is the only one or answers what no route matches, or if
    another deployment of the application calls it.
    """
    spec.deployment(deployment)  # raises if there is none
    others = tuple(other for other in spec.deployments if other.config.name != deployment)
    if not others:
        raise ConfigError(f"nothing would be left of application {spec.name!r}: delete all of it")
    if spec.default == deployment:
        raise ConfigError(
            f"{deployment!r} cannot be deleted: it answers what no route of application {spec.name!r} matches; "
            "delete all of it"
        )
    if callers := [other.config.name for other in others if deployment in other.calls]:
        raise ConfigError(f"{deployment!r} cannot be deleted: it is called by {' and '.join(callers)}")
    splits = tuple(split for split in spec.splits if deployment not in split.shares)
    return spec.model_copy(
        update={"deployments": others, "routes": _routes_without(spec.routes, deployment), "splits": splits}
    )


def _routes_without(routes: Sequence[Route], owner: str) -> tuple[Route, ...]:
    """Return the routes with an owner, followed by the others, to which those of `owner` belong now.

    The code of the other ingresses still has its routes. So the proxies have to answer 404 to requests for them: a
    replica would answer 421, because its code assigns the route to another ingress.
    """
    served = [route for route in routes if route.owner not in (None, owner)]
    kept = {(route.kind, route.pattern, route.methods) for route in served}
    freed = (route.model_copy(update={"owner": None}) for route in routes if route.owner in (None, owner))
    return (*served, *dict.fromkeys(route for route in freed if (route.kind, route.pattern, route.methods) not in kept))


def beside(spec: ApplicationSpec, main: ApplicationSpec) -> ApplicationSpec:
    """Return the application as a live revision: its streams are in the log of the main revision, if it names none.

    Raises `ConfigError` if that log is in memory without being asked for, because clients move between the revisions.
    """
    if not spec.automatic_stream_log:
        return spec
    streams = tuple(
        route for deployment in spec.deployments if deployment.kind == "ingress" for route in deployment.streams
    )
    if streams and main.automatic_stream_log and main.stream_log == "memory":
        raise ConfigError(
            f"application {main.name!r} cannot have several live revisions: the streams of {in_short(streams)} are in "
            "the memory of each; deploy it with `--stream-log shared` first"
        )
    return spec.model_copy(update={"stream_log": main.stream_log, "automatic_stream_log": main.automatic_stream_log})


def in_short(routes: Sequence[str]) -> str:
    """Return the first routes for a message, without those whose path begins with the path of another one."""
    paths = [route.split(" ", 1)[1] for route in routes]
    shown = [
        route
        for route, path in zip(routes, paths, strict=True)
        if not any(path.startswith(f"{other.rstrip('/')}/") for other in paths if other not in (path, "/"))
    ]
    more = len(shown) - MOST_ROUTES
    return " and ".join([*shown[:MOST_ROUTES], *([f"{more} more"] if more > 0 else [])])


def _check_streams(spec: ApplicationSpec) -> None:
    """Raise `ConfigError` if an ingress with streams in its memory would have several replicas without being asked."""
    if not spec.automatic_stream_log or spec.stream_log != "memory":
        return
    for deployment in spec.deployments:
        if deployment.kind == "ingress" and deployment.streams and deployment.config.max_replicas > 1:
            raise ConfigError(
                f"{spec.name}/{deployment.config.name} cannot have {deployment.config.max_replicas} replicas: the "
                f"streams of {in_short(deployment.streams)} are in the memory of each; deploy it with "
                "`--stream-log shared` first"
            )


class Revision(NamedTuple):
    """An application as it was applied."""

    number: int
    spec: ApplicationSpec


def replica_set_keys(live: LiveRevisionKey, spec: ApplicationSpec) -> list[ReplicaSetKey]:
    """Return the keys of the replica sets of all deployments of a live revision, in the order of the deployments."""
    return [live.replica_set(deployment.config.name) for deployment in spec.deployments]


def replica_set_specs(
    live: LiveRevisionKey,
    revisions: Iterable[Revision],
    *,
    spread: bool,
    edge: Mapping[str, Any] | None = None,
) -> dict[AnySetKey, ReplicaSetSpec]:
    """Return the replica sets of a live revision, by key.

    Parameters:
        live: The key of the live revision.
        revisions: The revisions that may have replicas in it. If several have the same deployment, the last one
            defines it.
        spread: Whether the callers are on several nodes.
        edge: The options with which the replicas of ingresses accept clients. None: proxies accept them.
    """
    return {
        key: _replica_set_spec(key, spec, deployment, number, edge, spread=spread)
        for number, spec in revisions
        for key, deployment in zip(replica_set_keys(live, spec), spec.deployments, strict=True)
    }


def options_hash(options: Mapping[str, Any]) -> str:
    """Return a short hash of the options of a process that accepts clients."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def _resources(options: ResourceOptions) -> Resources:
    engine_options = options.ray.model_dump(exclude_none=True)
    return Resources(options.num_cpus, options.num_gpus, options.memory, options.custom, options.nice, engine_options)


def _without_secrets(resources: Resources, secrets: Collection[str]) -> tuple[Resources, Mapping[str, str]]:
    """Return the resources without the environment variables that contain secrets, and these variables.

    An engine may write the environment of a process to its own logs. So the replica sets these variables itself.
    """
    environment = resources.engine_options.get("runtime_env", {})
    variables = environment.get("env_vars", {})
    hidden = {name: value for name, value in variables.items() if any(secret in value for secret in secrets)}
    if not hidden:
        return resources, {}
    shown = {name: value for name, value in variables.items() if name not in hidden}
    return replace(
        resources, engine_options={**resources.engine_options, "runtime_env": {**environment, "env_vars": shown}}
    ), hidden


def _replica_set_spec(
    key: ReplicaSetKey,
    spec: ApplicationSpec,
    deployment: DeploymentSpec,
    revision: int,
    edge: Mapping[str, Any] | None,
    *,
    spread: bool,
) -> ReplicaSetSpec:
    config = deployment.config
    edge = edge if deployment.kind == "ingress" else None
    secrets = secrets_of(deployment)
    resources, variables = _without_secrets(_resources(config.resources), secrets)
    return ReplicaSetSpec(
        key=key,
        template_hash=spec.template_hash(config.name),
        target=config.starting_replicas,
        template=ReplicaSpec(
            id=ReplicaId(""),
            application=spec.name,
            config=config,
            target=spec.target,
            app_dir=spec.app_dir,
            root_path=(spec.route_prefix or "").rstrip("/"),
            reloadable=replace(config.reloadable_options, secrets=secrets),
            revision=revision,
            created=key.revision,
            callees=spec.callees,
            working_dir=spec.working_dir,
            code=spec.code,
            artifact=spec.artifact,
            sources=spec.sources,
            restarted=spec.restarts.get(config.name, 0),
            application_config=spec.application_config,
            variables=variables,
            edge=edge,
        ),
        edge="" if edge is None else options_hash(edge),
        idempotent=deployment.idempotent if deployment.kind == "class" else (),
        resources=resources,
        spread=spread,
    )
