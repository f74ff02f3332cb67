"""From an app to plain data: which ingresses it has, who owns which route, and which deployments they call."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import FastAPI

from app_toolkit.config.models import ApplicationSpec, ClassConfig, ClassSpec, DeploymentConfig, IngressSpec
from app_toolkit.deployment import Bound
from app_toolkit.interfaces import Deployable
from app_toolkit.replica.graph import find
from app_toolkit.replica.http import answers_http
from app_toolkit.router.handle import methods_of
from app_toolkit.toolkit import Toolkit, route_table

C = TypeVar("C", bound=DeploymentConfig)


def plan(
    app: FastAPI,
    *,
    target: str,
    app_dir: str,
    name: str = "default",
    route_prefix: str = "/",
    num_replicas: int | None = None,
    working_dir: str | None = None,
) -> ApplicationSpec:
    """Lay an app out as ingresses.

    `target` is `module:attribute` and `app_dir` the folder that replicas put first on their import path; `num_replicas`
    overrides every ingress's own, and what decides it; the app's relative paths begin at `working_dir`, by default the
    current one. A plain FastAPI is one ingress. Raises `PlanningError` for an app that cannot be split as it asks,
    `ConfigError` for an option out of bounds.
    """
    if isinstance(app, Toolkit):
        configs: Sequence[DeploymentConfig] = tuple(app.ingresses.values())
        default = app.default_ingress.name
    else:
        configs = (DeploymentConfig(name="app"),)
        default = "app"
    if num_replicas is not None:
        configs = tuple(_of_number(config, num_replicas) for config in configs)
    classes = find(app)
    return ApplicationSpec(
        name=name,
        target=target,
        app_dir=app_dir,
        working_dir=working_dir or os.getcwd(),
        route_prefix=route_prefix,
        title=app.title,
        default=default,
        deployments=(
            *(IngressSpec(config=config) for config in configs),
            *map(_class_spec, classes),
        ),
        routes=tuple(route_table(app)),
    )


def plan_bound(
    bound: Bound[Any],
    code: bytes,
    *,
    app_dir: str,
    name: str = "default",
    route_prefix: str = "/",
    num_replicas: int | None = None,
    working_dir: str | None = None,
) -> ApplicationSpec:
    """Lay out a bound deployment and those that it calls as an application of their own.

    Where its class has a `__call__`, that answers HTTP below `route_prefix`; else nothing does. `code` is what `pack`
    made of it; the rest as of `plan`, but that `num_replicas` overrides its own alone. Raises as `plan` does.
    """
    http = answers_http(bound.cls)
    return ApplicationSpec(
        name=name,
        target=f"{bound.cls.__module__}:{bound.cls.__qualname__}",
        code=hashlib.sha256(code).hexdigest(),
        app_dir=app_dir,
        working_dir=working_dir or os.getcwd(),
        route_prefix=route_prefix if http else None,
        title=bound.name,
        default=bound.name if http else None,
        deployments=tuple(_class_spec(each, num_replicas if each is bound else None) for each in find(bound)),
    )


def _class_spec(bound: Deployable, num_replicas: int | None = None) -> ClassSpec:
    config: ClassConfig = bound.config
    if num_replicas is not None:
        config = _of_number(config, num_replicas)
    return ClassSpec(config=config, methods=methods_of(bound.cls))


def _of_number(config: C, num_replicas: int) -> C:
    return type(config)(**{**config.model_dump(), "num_replicas": num_replicas, "autoscaling_config": None})
