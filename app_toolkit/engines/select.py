"""Chooses the engine on which instances run. No other module does."""

import sys
from importlib.util import find_spec

from app_toolkit.config.options import EngineName
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.ray.engine import RayEngine
from app_toolkit.errors import ConfigError
from app_toolkit.operate.client import Engine


def engine(admin_url: str | None = None, address: str | None = None) -> Engine:
    """Return the engine of an instance that runs. This imports nothing that takes long: see `Engine.preload`.

    Parameters:
        admin_url: That of an instance to operate over its admin API; None: over its engine.
        address: That of the instance. `auto` and None: the Ray cluster that this process belongs to, otherwise the
            instance on processes of this machine, if there is one, otherwise the Ray cluster of this machine, if Ray
            is installed.

    Raises `ConfigError` if the address is that of a Ray cluster, and Ray is not installed.
    """
    if admin_url is not None:
        from app_toolkit.operate.http import HTTPEngine

        return HTTPEngine()
    return ProcessEngine() if _is_on_processes(address) else _ray_engine()


def engine_of_run(name: EngineName | None, address: str | None) -> Engine:
    """Return the engine on which `run` serves applications.

    `name`: None: the one of the instance at the address. Without an address, the Ray cluster that this process belongs
    to, otherwise processes of this machine, or a local Ray on systems other than Linux.

    Raises `ConfigError` if it is Ray, and Ray is not installed.
    """
    if name is None and address is not None:
        return engine(address=address)
    if name is None:
        name = "ray" if RayEngine().is_joined() or sys.platform != "linux" else "processes"
    return ProcessEngine() if name == "processes" else _ray_engine()


def _is_on_processes(address: str | None) -> bool:
    if address not in (None, "auto"):
        return ProcessEngine().runs(address)
    return not RayEngine().is_joined() and (ProcessEngine().runs(address) or not _has_ray())


def _ray_engine() -> Engine:
    if not _has_ray():
        raise ConfigError("an instance on Ray needs the package ray: pip install 'app-toolkit[ray]'")
    return RayEngine()


def _has_ray() -> bool:
    return find_spec("ray") is not None
