"""Chooses the engine on which instances run. No other module does."""

from app_toolkit.client.client import Engine
from app_toolkit.engines.ray.engine import RayEngine


def engine(admin_url: str | None = None, *, processes: bool = False) -> Engine:
    """Return the engine. This imports nothing that takes long: see `Engine.preload`.

    `admin_url`: that of an instance to operate over its admin API; None: over its cluster. `processes`: the engine on
    processes of this machine.
    """
    if admin_url is not None:
        from app_toolkit.client.http import HTTPEngine

        return HTTPEngine()
    if processes:
        from app_toolkit.engines.processes.engine import ProcessEngine

        return ProcessEngine()
    return RayEngine()
