"""Chooses the engine on which instances run. No other module does."""

import sys

from app_toolkit.client.client import Engine
from app_toolkit.config.options import EngineName
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.ray.engine import RayEngine


def engine(admin_url: str | None = None, address: str | None = None) -> Engine:
    """Return the engine of an instance that runs. This imports nothing that takes long: see `Engine.preload`.

    Parameters:
        admin_url: That of an instance to operate over its admin API; None: over its engine.
        address: That of the instance. `auto` and None: the Ray cluster that this process belongs to, otherwise the
            instance on processes of this machine, if there is one, otherwise the Ray cluster of this machine.
    """
    if admin_url is not None:
        from app_toolkit.client.http import HTTPEngine

        return HTTPEngine()
    return ProcessEngine() if _is_on_processes(address) else RayEngine()


def engine_of_run(name: EngineName | None, address: str | None) -> Engine:
    """Return the engine on which `run` serves applications.

    `name`: None: the one of the instance at the address. Without an address, the Ray cluster that this process belongs
    to, otherwise processes of this machine, or a local Ray on systems other than Linux.
    """
    if name is None and address is not None:
        return engine(address=address)
    if name is None:
        name = "ray" if RayEngine().is_joined() or sys.platform != "linux" else "processes"
    return ProcessEngine() if name == "processes" else RayEngine()


def _is_on_processes(address: str | None) -> bool:
    if address in (None, "auto") and RayEngine().is_joined():
        return False
    return ProcessEngine().runs(address)
