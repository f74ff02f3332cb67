"""Chooses the engine on which instances run. No other module does."""

from app_toolkit.client.client import Engine
from app_toolkit.engines.ray.engine import RayEngine


def engine(admin_url: str | None = None) -> Engine:
    """Return the engine. This imports nothing that takes long: see `Engine.preload`.

    `admin_url`: that of an instance to operate over its admin API; None: over its cluster.
    """
    if admin_url is not None:
        from app_toolkit.client.http import HTTPEngine

        return HTTPEngine()
    return RayEngine()
