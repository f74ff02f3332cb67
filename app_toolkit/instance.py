"""Connecting to an instance in Python: `connect` and `connect_async`. `operate/instance.py` has the methods."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

from app_toolkit.config.options import Options
from app_toolkit.config.project import read_project, resolve_options
from app_toolkit.engines import select
from app_toolkit.errors import ConfigError
from app_toolkit.operate.client import WAIT_S, Driver, Engine
from app_toolkit.operate.instance import AsyncInstance, Instance


class ThisProcess:
    """What `run` and `get_handle` have to remember in their process: the instance that its handles call.

    Threads may use it together. One of them at a time joins an instance or leaves it. While a thread waits until its
    application serves, the others go on. `shutdown` does not wait for other threads. What they wait for then raises
    `InstanceEnded`, or `Superseded` if only its application is deleted.
    """

    def __init__(self) -> None:
        self.driver: Driver | None = None
        """None: the process has joined no instance."""
        self.changing = threading.Lock()
        """Held while `driver` changes."""


this_process = ThisProcess()


def connect(address: str | None = None, *, admin_url: str | None = None, wait_timeout_s: float = WAIT_S) -> Instance:
    """Connect to an instance: `with app_toolkit.connect() as instance: instance.scale("shop/writer", 3)`.

    Parameters:
        address: The instance on processes, `processes-PID`, or `HOST:PORT` of its Ray cluster. None: the instance that
            this process has joined by `run`, or the Ray cluster that it belongs to. Otherwise, the one that the
            environment or the project names, or the one of this machine.
        admin_url: The admin API of the instance, `http://HOST:PORT`, instead of its address. The token is in
            `APP_TOOLKIT_ADMIN_TOKEN`.
        wait_timeout_s: Seconds that a method waits at most until what it has started serves.

    Raises `ConfigError` if there is no such instance, `address` and `admin_url` are both given, or the seconds are no
    positive number or 0.
    """
    if not (isinstance(wait_timeout_s, int | float) and wait_timeout_s >= 0):
        raise ConfigError(f"wait_timeout_s = {wait_timeout_s!r}: it should be 0 or more seconds")
    if address is not None and admin_url is not None:
        raise ConfigError("address and admin_url exclude each other")
    places: dict[str, Any] = {"address": address, "admin_url": admin_url}
    named = Options(**{option: place for option, place in places.items() if place is not None})
    return open_instance(resolve_options(read_project(Path.cwd()), named), named, wait_timeout_s)


def connect_async(
    address: str | None = None, *, admin_url: str | None = None, wait_timeout_s: float = WAIT_S
) -> AsyncInstance:
    """Connect to an instance: `async with app_toolkit.connect_async() as instance: await instance.status()`.

    The parameters and the errors are those of `connect`. `async with` raises the errors.
    """
    return AsyncInstance(partial(connect, address, admin_url=admin_url, wait_timeout_s=wait_timeout_s))


def open_instance(chosen: Options, named: Options, wait_timeout_s: float = WAIT_S, *, begin: bool = False) -> Instance:
    """Return the instance that this process has joined, or connect to the one that the options name.

    Parameters:
        chosen: The options of all sources.
        named: Those that the caller names.
        wait_timeout_s: As of `connect`.
        begin: Whether to start an instance if none runs on the Ray cluster.
    """
    driver = this_process.driver
    if driver is not None and named.admin_url is None and named.address in (None, "auto"):
        return Instance(driver.client, wait_timeout_s, shared=True)
    engine, address = reach(chosen, named)
    client = engine.start(address=address or "auto", with_lease=False) if begin else engine.connect(address)
    return Instance(client, wait_timeout_s)


def reach(chosen: Options, named: Options) -> tuple[Engine, str | None]:
    """Return how an instance is reached, and where; None: the instance of this process or of this machine.

    Parameters:
        chosen: The options of all sources.
        named: Those that the caller names. Its address overrides an `admin_url` of another source.
    """
    if chosen.admin_url is not None and named.address is None:
        return select.engine(chosen.admin_url), chosen.admin_url
    engine = select.engine(address=chosen.address)
    return engine, None if named.address is None and engine.is_joined() else chosen.address
