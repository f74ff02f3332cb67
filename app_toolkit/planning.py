"""From an app to plain data: which ingresses it has, who owns which route, and which deployments they call."""

import os
from collections.abc import Mapping, Sequence

from fastapi import FastAPI

from app_toolkit.config.models import ApplicationSpec, ClassSpec, DeploymentConfig, IngressSpec
from app_toolkit.replica.graph import find
from app_toolkit.toolkit import Toolkit, route_table


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
    overrides every ingress's own; the app's relative paths begin at `working_dir`, by default the current one. A plain
    FastAPI is one ingress. Raises `PlanningError` for an app that cannot be split as it asks, `ConfigError` for an
    option out of bounds.
    """
    if isinstance(app, Toolkit):
        configs: Sequence[DeploymentConfig] = tuple(app.ingresses.values())
        default = app.default_ingress.name
    else:
        configs = (DeploymentConfig(name="app"),)
        default = "app"
    if num_replicas is not None:
        configs = tuple(_with(config, {"num_replicas": num_replicas}) for config in configs)
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
            *(ClassSpec(config=bound.config) for bound in classes),
        ),
        routes=tuple(route_table(app)),
    )


def _with(config: DeploymentConfig, changes: Mapping[str, object]) -> DeploymentConfig:
    return DeploymentConfig(**{**config.model_dump(), **changes})
