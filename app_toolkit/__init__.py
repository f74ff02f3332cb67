"""Ordinary FastAPI routers: one process while you develop, replica actors on Ray when you serve."""

from app_toolkit.config.models import DeploymentConfig
from app_toolkit.errors import ConfigError, RequestError, ToolkitError
from app_toolkit.replica.disconnect import on_disconnect
from app_toolkit.toolkit import Toolkit

__all__ = ["ConfigError", "DeploymentConfig", "RequestError", "Toolkit", "ToolkitError", "on_disconnect"]
