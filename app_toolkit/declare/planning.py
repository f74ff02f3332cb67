"""Translates an app into plain data: its ingresses, the owner of each route, and the deployments that they call."""

import hashlib
import importlib
import logging
import math
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI

from app_toolkit.calls.handle import methods_of
from app_toolkit.calls.http import serves_http
from app_toolkit.config.files import as_written
from app_toolkit.config.models import (
    ApplicationConfig,
    ApplicationSpec,
    ClassConfig,
    ClassSpec,
    DeploymentConfig,
    IngressSpec,
    Route,
    SplitSpec,
    merge_overrides,
)
from app_toolkit.config.settings import DATA
from app_toolkit.contract.methods import is_idempotent
from app_toolkit.control.application_specs import check_root_path, in_short
from app_toolkit.control.diff import listed
from app_toolkit.declare.deployment import configure, unfit
from app_toolkit.declare.toolkit import Toolkit, route_table, unfit_batches
from app_toolkit.errors import ConfigError, OverrideError
from app_toolkit.exchange.placement.user_policy import import_policy
from app_toolkit.interfaces import Deployable
from app_toolkit.types import ASGIApp
from app_toolkit.userapp.artifact import Selection, is_installed, pack, select
from app_toolkit.userapp.cors import cors_of
from app_toolkit.userapp.graph import called, calls, find, keeping_streams, splits
from app_toolkit.userapp.sources import take

logger = logging.getLogger("app_toolkit.planning")

C = TypeVar("C", bound=DeploymentConfig)

SHARED_LOG = "stream-log"
"""The application with the shared stream log of an instance."""

SHARED_LOG_MODULE = "app_toolkit.streaming.service"
"""The module whose `log` is the shared stream log. It imports this module."""

TOO_MANY_FILES = (
    "The folder {folder} has more files than a snapshot takes: replicas import the rest of its Python files from disk. "
    "Keep data in another folder, or name the app's own folder (app_dir)."
)


def plan(
    app: ASGIApp | Deployable,
    *,
    target: str,
    app_dir: str,
    name: str = "default",
    route_prefix: str = "/",
    config: ApplicationConfig | None = None,
    num_replicas: int | None = None,
    working_dir: str | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> ApplicationSpec:
    """Translate an app into the specification of an application.

    `target`: `module:attribute`. `app_dir`: the folder that replicas put first on their import path. `config`: the
    options that are set in it replace those of the app. `num_replicas`: for each ingress that does not set
    `num_replicas` or `autoscaling_config`; a warning names the others. `working_dir`: the folder for relative paths of
    the app; by default the current folder. `overrides`: options by deployment, as in a file.

    An app that is not a `Toolkit` is one ingress and owns every path. A deployment is planned as by `plan_bound`.
    Raises `PlanningError` if the app cannot be split as it requires, `ConfigError` for a wrong option, and
    `OverrideError` with all wrong overrides.
    """
    if isinstance(app, Deployable):
        return plan_bound(
            app,
            None,
            target=target,
            app_dir=app_dir,
            name=name,
            route_prefix=route_prefix,
            config=config,
            num_replicas=num_replicas,
            working_dir=working_dir,
            overrides=overrides,
        )
    configs, default = _ingresses(app)
    if num_replicas is not None:
        configs = tuple(_of_number(config, num_replicas) for config in configs)
    classes = find(app) if isinstance(app, FastAPI) else ()
    configured = {config.name: config for config in (*configs, *(bound.config for bound in classes))}
    if overrides is not None:
        configured = _overridden(app, configured, {bound.name: bound.cls for bound in classes}, overrides)
    if isinstance(app, FastAPI):
        title, routes = app.title, tuple(route_table(app, {config.name: configured[config.name] for config in configs}))
        root_path = app.root_path
    else:
        title, routes, root_path = name, (_everything(default),), ""
    ingresses = [_ingress_spec(app, configured[config.name]) for config in configs]
    of_code = app.application_config.chosen if isinstance(app, Toolkit) else {}
    options = {**of_code, **({} if config is None else config.chosen)}
    spec = ApplicationSpec(
        name=name,
        target=target,
        app_dir=app_dir,
        working_dir=working_dir or os.getcwd(),
        route_prefix=route_prefix,
        root_path=root_path,
        cors=cors_of(app),
        title=title,
        automatic_stream_log="stream_log" not in options,
        **{"stream_log": _automatic_stream_log(ingresses), **options},
        default=default,
        deployments=(*ingresses, *(_class_spec(bound, configured[bound.name]) for bound in classes)),
        routes=routes,
        splits=_split_specs(app) if isinstance(app, FastAPI) else (),
    )
    check_root_path(spec)
    return spec


def _ingresses(app: ASGIApp) -> tuple[tuple[DeploymentConfig, ...], str]:
    """Return the ingresses of an app, and the name of its default ingress."""
    if isinstance(app, Toolkit):
        return tuple(app.ingresses.values()), app.default_ingress.name
    return (DeploymentConfig(name="app"),), "app"


def plan_bound(
    bound: Deployable,
    code: bytes | None,
    *,
    app_dir: str,
    target: str | None = None,
    name: str = "default",
    route_prefix: str = "/",
    config: ApplicationConfig | None = None,
    num_replicas: int | None = None,
    working_dir: str | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> ApplicationSpec:
    """Translate a bound deployment, and those that it calls, into the specification of an application.

    If its class has a `__call__`, that answers HTTP below `route_prefix`. Otherwise the application serves no HTTP.
    `code`: the result of `pack`; None: replicas import `target`. The other parameters are those of `plan`, except that
    `num_replicas` is only for `bound`. Raises as `plan` does.
    """
    http = serves_http(bound.cls)
    options = {} if config is None else config.chosen
    classes = find(bound)
    configs: dict[str, Any] = {bound.name: bound.config for bound in classes}
    if num_replicas is not None:
        configs[bound.name] = _of_number(bound.config, num_replicas)
    if overrides is not None:
        configs = _overridden(bound, configs, {bound.name: bound.cls for bound in classes}, overrides)
    return ApplicationSpec(
        name=name,
        target=target or f"{bound.cls.__module__}:{bound.cls.__qualname__}",
        code=hashlib.sha256(code).hexdigest() if code is not None else "",
        app_dir=app_dir,
        working_dir=working_dir or os.getcwd(),
        route_prefix=route_prefix if http else None,
        title=bound.name,
        automatic_stream_log="stream_log" not in options,
        **options,
        default=bound.name if http else None,
        deployments=tuple(_class_spec(bound, configs[bound.name]) for bound in classes),
        routes=(_everything(bound.name),) if http else (),
        splits=_split_specs(bound),
    )


def apply_options(app: ASGIApp | Deployable, spec: ApplicationSpec) -> None:
    """Replace the options of an app in this process, and the shares of its splits, by those of its plan."""
    configs = {deployment.config.name: deployment.config for deployment in spec.deployments}
    if isinstance(app, Toolkit):
        app.apply_options({name: configs[name] for name in app.ingresses}, spec.stream_log)
    if isinstance(app, FastAPI | Deployable):
        for bound in find(app):
            bound.config = configs[bound.name]
        for split in splits(app):
            planned = spec.split(split.name)
            split.shares, split.mirrors = planned.shares, planned.mirrors


def planned_options(app: ASGIApp | Deployable, spec: ApplicationSpec) -> dict[tuple[int, str], object]:
    """Return what `apply_options` gives to each object, by the object and the name of its deployment or split."""
    configs = {deployment.config.name: deployment.config for deployment in spec.deployments}
    options: dict[tuple[int, str], object] = {}
    if isinstance(app, Toolkit):
        options |= {(id(app), name): (configs[name], spec.stream_log) for name in app.ingresses}
    if isinstance(app, FastAPI | Deployable):
        options |= {(id(bound), bound.name): configs[bound.name] for bound in find(app)}
        options |= {(id(split), split.name): spec.split(split.name) for split in splits(app)}
    return options


def _everything(owner: str) -> Route:
    """Return the single route of an app that answers every path."""
    return Route(kind="both", pattern=".*", path="/", owner=owner)


def with_files(
    spec: ApplicationSpec, include: Sequence[str] = ()
) -> tuple[ApplicationSpec, dict[str, bytes], list[str]]:
    """Return the application with its files: replicas unpack and import these, and need no folder of this machine.

    Also return the archives for the store by their hashes, and sentences about files with data. A `working_dir` outside
    of `app_dir` becomes `app_dir`. An installed app is not packed: every node must have it. `include`: as of `select`.
    Raises `ConfigError` as `select` does.
    """
    folder = Path(spec.app_dir)
    if is_installed(folder):
        return spec, {}, []
    selection = select(folder, include)
    artifact = pack(selection)
    working_dir = Path(spec.working_dir)
    below = working_dir.relative_to(folder) if working_dir.is_relative_to(folder) else Path()
    folders = {"app_dir": ".", "working_dir": below.as_posix()}
    changed = spec.model_copy(update={"artifact": artifact.hash, "files": artifact.files, **folders})
    return changed, {artifact.hash: artifact.archive}, list(_about_data(selection))


def about_data(spec: ApplicationSpec, include: Sequence[str] = ()) -> list[str]:
    """Return the sentences of `with_files` about files with data, or one about its error."""
    folder = Path(spec.app_dir)
    try:
        return [] if is_installed(folder) else list(_about_data(select(folder, include)))
    except ConfigError as error:
        return [f"Not deployable: {error}."]


def _about_data(selection: Selection) -> Iterator[str]:
    """Yield sentences about files that the app may miss, and folders that it may want to write to."""
    if left_out := selection.left_out:
        yield (
            f"Not packed by deploy: {listed(left_out)}. The option `include` packs files. Data belongs in the folder "
            f"that {DATA} names."
        )
    if folders := selection.data_folders:
        yield (
            f"Packed by deploy, and read-only for the app: {listed([f'{name}/' for name in folders])}. "
            f"Data belongs in the folder that {DATA} names."
        )


def with_sources(specs: Sequence[ApplicationSpec]) -> tuple[list[ApplicationSpec], dict[str, bytes], list[str]]:
    """Return the applications with a snapshot of the Python files of their folders.

    Also return the archives for the store by their hashes, and a warning for each folder that has too many files.
    Installed packages, also editable ones, are not a part of an application's folder.
    """
    snapshots = {spec.app_dir: take(Path(spec.app_dir)) for spec in specs if not is_installed(Path(spec.app_dir))}
    changed = [
        spec.model_copy(update={"sources": snapshots[spec.app_dir].hash, "files": snapshots[spec.app_dir].files})
        if spec.app_dir in snapshots
        else spec
        for spec in specs
    ]
    code = {snapshot.hash: snapshot.archive for snapshot in snapshots.values()}
    return (
        changed,
        code,
        [TOO_MANY_FILES.format(folder=folder) for folder, snapshot in snapshots.items() if not snapshot.complete],
    )


def logical_cpus(specs: Sequence[ApplicationSpec]) -> float:
    """Return the number of CPUs for a local cluster: enough for all plans, as a reservation is not full utilization.

    A shared stream log that the plans need is included.
    """
    return max(math.ceil(sum(spec.num_cpus for spec in (*shared_logs(specs), *specs))), os.cpu_count() or 1)


def _overridden(
    app: ASGIApp | Deployable,
    configs: Mapping[str, DeploymentConfig],
    classes: Mapping[str, type],
    overrides: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the options of all deployments with the overrides of a file."""
    result = {name: as_written(config) for name, config in configs.items()}
    mistakes: list[tuple[tuple[str, ...], str]] = []
    for name, options in overrides.items():
        if name not in configs:
            mistakes.append(((name,), f"the app has no deployment {name!r}, only {', '.join(configs)}"))
            continue
        cls = classes.get(name)
        unfitting = list(_unfit_for_ingress(app, name, options) if cls is None else unfit(cls, options))
        mistakes += [((name, *where), why) for where, why in unfitting]
        wrong = {where[0] for where, _ in unfitting}
        merged = merge_overrides(
            result[name], {option: value for option, value in options.items() if option not in wrong}
        )
        try:
            result[name] = type(result[name])(**merged) if cls is None else configure(cls, merged)
        except ConfigError as error:
            mistakes.append(((name,), str(error)))
    if mistakes:
        raise OverrideError(mistakes)
    return result


def _unfit_for_ingress(app: object, name: str, given: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    for option in given.keys() - DeploymentConfig.model_fields.keys():
        yield (option,), f"{option!r} is an option of classes, and this is an ingress"
    endpoints = app if isinstance(app, FastAPI) else FastAPI(openapi_url=None)  # another app's endpoints are not known
    for endpoint, why in unfit_batches(endpoints, name, given.get("batch", ())):
        yield ("batch", endpoint), f"batch.{endpoint}: {why}"


def _class_spec(bound: Deployable, config: ClassConfig) -> ClassSpec:
    methods = methods_of(bound.cls)
    if config.routing_policy not in (None, "prefix"):
        try:
            import_policy(config.routing_policy)
        except ConfigError as error:
            raise ConfigError(f"class {bound.cls.__name__}: {error}") from error.__cause__
    return ClassSpec(
        config=config,
        methods=methods,
        idempotent=tuple(name for name in methods if is_idempotent(getattr(bound.cls, name))),
        calls=called(bound.needs),
    )


def _split_specs(app: FastAPI | Deployable) -> tuple[SplitSpec, ...]:
    return tuple(
        SplitSpec(
            name=split.name, shares=dict(split.shares), mirrors=dict(split.mirrors), methods=methods_of(split.cls)
        )
        for split in splits(app)
    )


def _ingress_spec(app: ASGIApp, config: DeploymentConfig) -> IngressSpec:
    if not isinstance(app, FastAPI):
        return IngressSpec(config=config)
    routes = [
        route for route in app.router.routes if not isinstance(app, Toolkit) or app.owner_of(route) == config.name
    ]
    kept = [*keeping_streams(routes)]
    return IngressSpec(
        config=config,
        calls=calls(app, routes),
        streams=tuple(route for route, kind in kept if kind == "application"),
        streams_in_memory=tuple(route for route, kind in kept if kind == "memory"),
    )


def _automatic_stream_log(ingresses: Iterable[IngressSpec]) -> str:
    """Return the log of an application that names none: all replicas that clients may reach must know its streams."""
    return "shared" if any(ingress.streams and ingress.config.max_replicas > 1 for ingress in ingresses) else "memory"


def stream_log_warnings(specs: Iterable[ApplicationSpec]) -> Iterator[str]:
    """Yield a sentence for each ingress that may have several replicas and keeps streams in the memory of each."""
    for spec in specs:
        for deployment in spec.deployments:
            if deployment.kind != "ingress" or deployment.config.max_replicas == 1:
                continue
            of_application = deployment.streams if spec.stream_log == "memory" else ()
            cures = {
                of_application: 'set stream_log to "shared" (`--stream-log shared`)',
                deployment.streams_in_memory: "leave out the `log` of these routes",
            }
            number = "has" if deployment.config.autoscaling_config is None else "may have"
            for routes, cure in cures.items():
                if routes:
                    yield (
                        f"The streams of {in_short(routes)} are in the memory of one replica, and "
                        f"{deployment.config.name!r} of application {spec.name!r} {number} "
                        f"{deployment.config.max_replicas}: {cure}, or clients that come back to another replica lose "
                        "their streams."
                    )


def shared_logs(specs: Sequence[ApplicationSpec]) -> list[ApplicationSpec]:
    """Return the application with the shared stream log, if one of these applications needs it and it is none of them.

    The caller leaves it out if an application of its name runs already.
    """
    if all(spec.stream_log != "shared" for spec in specs) or any(spec.name == SHARED_LOG for spec in specs):
        return []
    log: Deployable = importlib.import_module(SHARED_LOG_MODULE).log
    # Each node has this code, because replicas are made of it. So no files of this machine are sent.
    installed = sysconfig.get_path("purelib")
    spec = plan_bound(log, None, target=f"{SHARED_LOG_MODULE}:log", app_dir=installed, name=SHARED_LOG)
    return [spec.model_copy(update={"working_dir": ""})]


def _of_number(config: C, num_replicas: int) -> C:
    """Return the options with this number of replicas, unless the code sets a number: that one is kept."""
    if "num_replicas" not in config.model_fields_set:
        return type(config)(**merge_overrides(config, {"num_replicas": num_replicas}))
    if config.num_replicas != num_replicas:
        kept = f"deployment {config.name!r} keeps num_replicas = {config.num_replicas!r}"
        logger.warning("%s: its code sets that, so %d was not applied", kept, num_replicas)
    return config
