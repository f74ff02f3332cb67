"""The instances of this user that run on this machine."""

from pathlib import Path

from app_toolkit.config.settings import runtime_folder
from app_toolkit.engines.processes.client import is_alive
from app_toolkit.engines.processes.services import PREFIX, ProcessServices
from app_toolkit.errors import ConfigError


def sessions(base: Path | None = None) -> list[str]:
    """Return the sessions that have a folder, the oldest first. Some may have ended."""
    folders = (base or runtime_folder()).glob(f"{PREFIX}*")
    return [folder.name for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime)]


def session(address: str) -> ProcessServices:
    """Return the services of the instance that an address names.

    `address`: `auto` for the only instance, or the beginning of the name of a session, such as `processes-1234`.

    Raises `ConfigError` if no instance, or more than one, has this address.
    """
    beginning = PREFIX if address == "auto" else address
    named = [ProcessServices(name) for name in sessions() if name.startswith(beginning)]
    alive = [services for services in named if is_alive(services)]
    if len(alive) == 1:
        return alive[0]
    if not alive:
        where = "on this machine" if address == "auto" else f"with the name {address}"
        raise ConfigError(f"no app_toolkit instance runs {where}")
    names = ", ".join(services.session for services in alive)
    raise ConfigError(f"{len(alive)} app_toolkit instances run on this machine: name one with --address: {names}")
