"""Chooses the engine on which instances run. No other module does."""

from app_toolkit.client.client import Engine
from app_toolkit.engines.ray.engine import RayEngine


def engine() -> Engine:
    """Return the engine. This imports nothing that takes long: see `Engine.preload`."""
    return RayEngine()
