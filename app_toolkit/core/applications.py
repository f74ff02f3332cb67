"""Decides whether an application may be applied beside the others of an instance, and computes its replica sets."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app_toolkit.config.files import applied_again
from app_toolkit.config.models import (
    ApplicationSpec,
    ClassSpec,
    DeploymentSpec,
    HTTPOptions,
    ResourceOptions,
    SplitSpec,
)
from app_toolkit.core import partial
from app_toolkit.core.diff import Change, Diff, difference, of_part, options_changed
from app_toolkit.core.identity import AnySetKey, ApplicationKey, ReplicaSetKey
from app_toolkit.core.reconcile import ReplicaSetSpec
from app_toolkit.core.redaction import secrets_of
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import ReplicaSpec, Resources
from app_toolkit.types import ReplicaId

MOST_ROUTES = 3
"""The routes that a message names."""


def check_all(
    specs: Iterable[ApplicationSpec],
    named: HTTPOptions,
    owner: str | None,
    there: Iterable[ApplicationSpec],
    listening: HTTPOptions,
    holder: Callable[[ApplicationKey], str | None],
) -> HTTPOptions:
    """Raise `ConfigError` if `owner` may not apply these applications, in this order.

    `there`, `listening` and `owner` are as of `check`. `named`: the options of the proxies that change. `holder`
    returns the owner of the lease that holds an application. Returns the options of the proxies after that.
    """
    there = list(there)
    for spec in specs:
        changed = proxy_options(listening, named)
        check(spec, changed, owner, there, listening, holder(ApplicationKey.parse(spec.name)))
        there.append(spec)
        listening = changed
    return listening


def check(
    spec: ApplicationSpec,
    http: HTTPOptions,
    owner: str | None,
    there: Collection[ApplicationSpec],
    listening: HTTPOptions,
    holder: str | None,
) -> None:
    """Raise `ConfigError` if `owner` may not apply this application.

    `there`: every revision that runs or may be started again. `http`: the new options of the proxies, `listening`: the
    present ones. `holder`: the owner of the lease that holds the application of this name.
    """
    if ApplicationKey.parse(spec.name).is_candidate and all(other.name != spec.name for other in there):
        raise ConfigError(f"there is no application {spec.name!r}, and no other one can have this name")
    check_root_path(spec)
    for other in there:
        if _main(other) != _main(spec) and other.route_prefix == spec.route_prefix is not None:
            raise ConfigError(
                f"application {spec.name!r} cannot have the route prefix {spec.route_prefix!r}: {other.name!r} has it"
            )
    if holder not in (None, owner):
        raise ConfigError(f"the application {spec.name!r} is held by another run of this instance: choose another name")
    others = sorted({_main(other) for other in there if other.route_prefix is not None} - {_main(spec)})
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
    revisions: Mapping[str, int]
    """The present revision number of each application; 0: it does not run."""


def compare(
    specs: Iterable[ApplicationSpec],
    running: Mapping[str, tuple[ApplicationSpec, int]],
    present: HTTPOptions,
    named: HTTPOptions,
    only: Collection[str] = (),
) -> Comparison:
    """Return what deploying these applications would change.

    Parameters:
        specs: The applications.
        running: The applications that run, with their revision numbers, by name.
        present: The options of the proxies.
        named: Those of them that are set change.
        only: As of `changed`.

    Raises:
        ConfigError: A part of an application cannot be deployed.
    """
    differences: list[Diff] = []
    revisions: dict[str, int] = {}
    for spec in specs:
        before, revisions[spec.name] = running.get(spec.name, (None, 0))
        if not only:
            differences.append(difference(before, spec))
            continue
        after = changed(before, spec, only)
        assert before is not None
        differences.append(of_part(difference(before, after), partial.named(only, before, spec)))
    return Comparison(tuple(differences), options_changed(present, proxy_options(present, named)), revisions)


def changed(
    running: ApplicationSpec | None, spec: ApplicationSpec, only: Collection[str] = (), *, as_written: bool = False
) -> ApplicationSpec:
    """Return the application after a deployment.

    Parameters:
        running: The application that runs; None: there is none.
        spec: The one that is deployed.
        only: The deployments of it that replace those that run, by their names or by endpoints. Empty: all.
        as_written: Whether `spec` is as written. Its references and masked secrets then have the values that they have
            in `running`.

    Raises:
        ConfigError: No application runs, and one is needed; or the two do not fit together; or several replicas would
            have streams in their memory without being asked for.
    """
    if not only and not as_written:
        return spec
    if running is None:
        raise ConfigError(f"there is no application {spec.name!r}")
    if as_written:
        spec = applied_again(spec, running)
    if only:
        spec = partial.taken_over(running, spec, partial.named(only, running, spec))
    _check_streams(spec)
    return spec


def proxy_options(present: HTTPOptions, named: HTTPOptions) -> HTTPOptions:
    """Return the options of the proxies after those that are set in `named` have changed. The others stay.

    A certificate and its key are one pair: if only `ssl_certfile` is set, the key is in the same file.
    """
    given = {name: getattr(named, name) for name in named.model_fields_set}
    if "ssl_certfile" in given:
        given.setdefault("ssl_keyfile", None)
    return HTTPOptions(**{**present.model_dump(), **given})


def callee(there: Mapping[str, ApplicationSpec], application: str, name: str) -> ClassSpec | SplitSpec:
    """Return the deployment or the split of this name, which handles call. Raises `ConfigError` if there is none."""
    spec = there.get(application)
    if spec is None:
        names = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"there is no application {application!r}; those that run: {names}")
    for each in spec.deployments:
        if each.kind == "class" and each.config.name == name:
            return each
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
    each = spec.deployment(deployment)
    options = each.config.model_dump()
    if options["num_replicas"] == "auto":
        raise ConfigError(
            f"{spec.name}/{deployment} cannot be scaled to {num_replicas}: with num_replicas = 'auto' it follows its "
            "load; deploy it with a number, or with other bounds"
        )
    config = type(each.config)(**{**options, "num_replicas": num_replicas})
    other = each.model_copy(update={"config": config})
    after = spec.model_copy(update={"deployments": tuple(other if old is each else old for old in spec.deployments)})
    _check_streams(after)
    return after


def beside(spec: ApplicationSpec, main: ApplicationSpec) -> ApplicationSpec:
    """Return the application as a live revision: its streams are in the log of the main revision, if it names none.

    Raises `ConfigError` if that log is in memory without being asked for, because clients move between the revisions.
    """
    if not spec.automatic_stream_log:
        return spec
    streams = tuple(route for each in spec.deployments if each.kind == "ingress" for route in each.streams)
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
    for each in spec.deployments:
        if each.kind == "ingress" and each.streams and each.config.max_replicas > 1:
            raise ConfigError(
                f"{spec.name}/{each.config.name} cannot have {each.config.max_replicas} replicas: the streams of "
                f"{in_short(each.streams)} are in the memory of each; deploy it with `--stream-log shared` first"
            )


def _main(spec: ApplicationSpec) -> str:
    """Return the name of the application without the revision of a candidate."""
    return ApplicationKey.parse(spec.name).application


def replica_set_keys(spec: ApplicationSpec) -> list[ReplicaSetKey]:
    """Return the keys of the replica sets of all deployments, in the order of the deployments."""
    key = ApplicationKey.parse(spec.name)
    return [key.replica_set(deployment.config.name) for deployment in spec.deployments]


def replica_set_specs(
    applications: Iterable[ApplicationSpec],
    *,
    spread: bool,
    number_of: Callable[[ApplicationSpec], int] = lambda spec: 0,
    edge: Mapping[str, Any] | None = None,
) -> dict[AnySetKey, ReplicaSetSpec]:
    """Return the replica sets of these applications, by key.

    `spread`: whether their callers are on several nodes. `number_of` returns the number of a revision; 0: not known.
    `edge`: the options with which the replicas of ingresses accept clients. None: proxies accept them.
    """
    return {
        key: _replica_set_spec(key, spec, deployment, number_of(spec), edge, spread=spread)
        for spec in applications
        for key, deployment in zip(replica_set_keys(spec), spec.deployments, strict=True)
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
    config, origin = deployment.config, deployment.origin or spec
    template_hash = spec.template_hash(config.name)
    edge = edge if deployment.kind == "ingress" else None
    secrets = secrets_of(deployment)
    resources, variables = _without_secrets(_resources(config.resources), secrets)
    return ReplicaSetSpec(
        key=key,
        template_hash=template_hash,
        target=config.starting_replicas,
        template=ReplicaSpec(
            id=ReplicaId(""),
            application=spec.name,
            deployment=config.name,
            template_hash=template_hash,
            target=origin.target,
            app_dir=origin.app_dir,
            root_path=(spec.route_prefix or "").rstrip("/"),
            live=replace(config.reloadable_options, secrets=secrets),
            graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
            revision=revision,
            on_disconnect=config.on_disconnect,
            kind=deployment.kind,
            callees=spec.callees,
            sync_threads=getattr(config, "sync_threads", 1),
            working_dir=origin.working_dir,
            code=origin.code,
            artifact=origin.artifact,
            sources=origin.sources,
            stream_log=spec.stream_log,
            loop=spec.loop,
            fork=spec.fork,
            logging_config=spec.logging_config,
            variables=variables,
            edge=edge,
        ),
        edge="" if edge is None else options_hash(edge),
        policy=config.policy,
        idempotent=deployment.idempotent if deployment.kind == "class" else (),
        resources=resources,
        max_per_node=config.max_replicas_per_node,
        max_surge=config.max_surge,
        max_unavailable=config.max_unavailable,
        min_healthy_s=config.min_healthy_s,
        startup_timeout_s=config.startup_timeout_s,
        graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
        health_check_period_s=config.health_check_period_s,
        health_check_timeout_s=config.health_check_timeout_s,
        health_check_failure_threshold=config.health_check_failure_threshold,
        spread=spread,
        autoscaling=config.autoscaling_config,
        recycling=config.recycling,
    )
