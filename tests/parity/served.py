"""The same application with three ingresses: `inputs` is served by the app's own."""

from app_toolkit import DeploymentConfig, Toolkit

from .app import build

app = build(Toolkit, {"outputs": DeploymentConfig(name="outputs"), "live": DeploymentConfig(name="live")})
