"""The folder in which an app keeps its data. It stays when the code is replaced, on each node."""

import hashlib
import logging
from pathlib import Path

from app_toolkit.config.settings import DATA, data_folder, set_data_folder, user_data_folder

logger = logging.getLogger("app_toolkit.data")


def use_data_of_application(name: str) -> None:
    """Set `APP_TOOLKIT_DATA` to the folder of a deployed application, unless it is set. All its revisions share it."""
    _use("applications", name)


def use_data_of_project(app_dir: Path) -> None:
    """Set `APP_TOOLKIT_DATA` to the folder of the project whose code is in `app_dir`, unless it is set."""
    path = app_dir.resolve()
    _use("projects", f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}")


def _use(kind: str, name: str) -> None:
    """Set the variable to a folder that only this user can access. Create the folder unless it exists."""
    if data_folder():
        return
    try:
        folder = user_data_folder() / kind / name
        for path in (*reversed(folder.parents), folder):
            path.mkdir(mode=0o700, exist_ok=True)
        set_data_folder(folder)
    except (OSError, RuntimeError) as error:
        # Most apps need none. One that does fails when it writes, with an error that names the variable.
        logger.info("%s is not set, because the folder for data cannot be used: %s", DATA, error)
