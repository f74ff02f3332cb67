"""The instances of this user that run on this machine. Each has a session, with a folder of the same name."""

import os
import secrets
from typing import TYPE_CHECKING

from app_toolkit.config.settings import runtime_folder

if TYPE_CHECKING:
    from app_toolkit.engines.processes.services import ProcessServices

PREFIX = "processes-"
"""The beginning of the names of sessions, which are also the addresses of instances."""


def new_session() -> str:
    """Return a name for the session of an instance that this process starts."""
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def is_at(session: str, address: str) -> bool:
    """Return whether a session has this address.

    `address`: the name of a session, or its beginning with the whole process ID, such as `processes-1234`; `auto` for
    all sessions.
    """
    return address == "auto" or f"{session}-".startswith(f"{address}-")


def named(address: str) -> list[str]:
    """Return the sessions at an address, as of `is_at`, that have a folder. Some may have ended."""
    return sorted(folder.name for folder in runtime_folder().glob(f"{PREFIX}*") if is_at(folder.name, address))


def running(address: str) -> "list[ProcessServices]":
    """Return the services of the instances at an address.

    Folders of ended instances are not opened, because there may be hundreds of them. The next instance removes them
    (`host/runtime_folder.py`).
    """
    names = named(address)
    if not names:
        return []
    from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices, is_alive, orders_path

    base = runtime_folder()
    return [ProcessServices(name) for name in names if is_alive(orders_path(base / name, SUPERVISOR))]
