"""{{ cookiecutter.project_name }}: the routers, and the deployment that serves each of them."""

from app_toolkit import DeploymentConfig, Toolkit

from {{ cookiecutter.package_name }} import events, items

app = Toolkit(title="{{ cookiecutter.project_name }}")
app.include_router(items.router)
app.include_router(events.router, deployment=DeploymentConfig(name="events", num_replicas=2))
