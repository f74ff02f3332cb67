"""{{ cookiecutter.project_name }}: the routers, and the deployment that serves each of them."""

from app_toolkit import Toolkit

from {{ cookiecutter.package_name }} import predictions

app = Toolkit(title="{{ cookiecutter.project_name }}")
app.include_router(predictions.router)
