"""Applications side by side: which may be applied, what may be called of them, and of which groups they are made."""

from collections.abc import Collection, Iterable, Mapping

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec, HTTPOptions
from app_toolkit.core.reconcile import GroupSpec
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import ReplicaSpec
from app_toolkit.types import Kind, ReplicaId


def check(
    spec: ApplicationSpec,
    http: HTTPOptions | None,
    owner: str | None,
    there: Collection[ApplicationSpec],
    unreadable: Collection[str],
    listening: HTTPOptions,
    holder: str | None,
) -> None:
    """Whether `owner` may apply this beside what is `there`, and have the proxies listen like `http` (None: as before).

    `there` has every version that may run, or come back; of those that are `unreadable` nobody knows the
    prefix, so until they are applied again, or deleted, nobody else may have one that he does not have yet.

    `listening` is how they listen now, `holder` whose lease holds the application of this name. Raises `ConfigError`.
    """
    for other in there:
        if other.name != spec.name and other.route_prefix == spec.route_prefix is not None:
            raise ConfigError(
                f"application {spec.name!r} cannot have the route prefix {spec.route_prefix!r}: {other.name!r} has it"
            )
    mine = [other.route_prefix for other in there if other.name == spec.name]
    if unreadable and spec.name not in unreadable and spec.route_prefix not in (None, *mine):
        raise ConfigError(
            f"application {spec.name!r} cannot have the route prefix {spec.route_prefix!r} while nobody knows whether "
            f"another one has it: deploy again, or delete, {', '.join(map(repr, sorted(unreadable)))} first"
        )
    if holder not in (None, owner):
        raise ConfigError(f"the application {spec.name!r} is held by another run on this cluster: choose another name")
    if http is not None and http != listening and any(other.name != spec.name for other in there):
        raise ConfigError(
            f"the proxy of this instance listens on {listening.host}:{listening.port} for other "
            f"applications and cannot be moved to {http.host}:{http.port}"
        )


def methods(there: Mapping[str, ApplicationSpec], application: str, deployment: str) -> Mapping[str, Kind]:
    """What callers may call of a deployment, by name. Raises `ConfigError` where there is none of that name."""
    spec = there.get(application)
    if spec is None:
        names = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"there is no application {application!r}; those that run: {names}")
    for each in spec.deployments:
        if each.kind == "class" and each.config.name == deployment:
            return each.methods
    names = ", ".join(spec.callees) or "none"
    raise ConfigError(f"application {application!r} has no deployment {deployment!r} to call; it has {names}")


def scaled(spec: ApplicationSpec, deployment: str, num_replicas: int) -> ApplicationSpec:
    """The same application with so many replicas of a deployment. Raises `ConfigError` where that cannot be."""
    each = spec.deployment(deployment)
    options = each.config.model_dump()
    if options["num_replicas"] == "auto":
        raise ConfigError(
            f"{spec.name}/{deployment} cannot be scaled to {num_replicas}: with num_replicas = 'auto' it follows its "
            "load; deploy it with a number, or with other bounds"
        )
    config = type(each.config)(**{**options, "num_replicas": num_replicas})
    other = each.model_copy(update={"config": config})
    return spec.model_copy(update={"deployments": tuple(other if old is each else old for old in spec.deployments)})


def group_names(spec: ApplicationSpec) -> list[str]:
    """One for each of its deployments, in their order."""
    return [f"{spec.name}/{deployment.config.name}" for deployment in spec.deployments]


def application_of(group: str) -> str:
    """The application that a deployment's group belongs to."""
    return group.partition("/")[0]


def group_specs(applications: Iterable[ApplicationSpec], *, spread: bool) -> dict[str, GroupSpec]:
    """The groups that these applications are made of, by name. `spread`: their callers are on several nodes."""
    return {
        name: _group_spec(name, spec, deployment, spread=spread)
        for spec in applications
        for name, deployment in zip(group_names(spec), spec.deployments, strict=True)
    }


def _group_spec(name: str, spec: ApplicationSpec, deployment: DeploymentSpec, *, spread: bool) -> GroupSpec:
    config, origin = deployment.config, deployment.origin or spec
    revision = spec.revision(config.name)
    return GroupSpec(
        group=name,
        revision=revision,
        target=config.starting_replicas,
        template=ReplicaSpec(
            id=ReplicaId(""),
            application=spec.name,
            deployment=config.name,
            revision=revision,
            target=origin.target,
            app_dir=origin.app_dir,
            root_path=(spec.route_prefix or "").rstrip("/"),
            live=config.live,
            graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
            on_disconnect=config.on_disconnect,
            kind=deployment.kind,
            callees=spec.callees,
            sync_threads=getattr(config, "sync_threads", 1),
            working_dir=origin.working_dir,
            code=origin.code,
            artifact=origin.artifact,
            sources=origin.sources,
        ),
        policy=config.policy,
        idempotent=deployment.idempotent if deployment.kind == "class" else (),
        options=config.ray_actor_options,
        max_per_node=config.max_replicas_per_node,
        max_surge=config.max_surge,
        max_unavailable=config.max_unavailable,
        startup_timeout_s=config.startup_timeout_s,
        graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
        health_check_period_s=config.health_check_period_s,
        health_check_timeout_s=config.health_check_timeout_s,
        health_check_failure_threshold=config.health_check_failure_threshold,
        spread=spread,
        autoscaling=config.autoscaling_config,
    )
