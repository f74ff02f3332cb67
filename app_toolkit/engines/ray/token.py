"""Keeps the file of Ray's access token private to this user. The token gives access to all ports of a cluster."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from app_toolkit.engines.ray.environment import makes_token, token_path


def make_token() -> None:
    """Create the access token for a local Ray. Ray itself would create a file that all users can read.

    Does nothing if the file exists, or if the environment configures another token. Raises `OSError`.
    """
    path = token_path()
    if not makes_token() or path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    written = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w") as out:
            out.write(secrets.token_hex(32))
        # A link is atomic, so other processes never read a part of the token. A token that another process has created
        # meanwhile is kept.
        with suppress(FileExistsError):
            os.link(written, path)
    finally:
        written.unlink()


def restrict_token() -> None:
    """Make the token and its folder inaccessible to other users, if they belong to this user."""
    path = token_path()
    for parent_or_file, mode in ((path.parent, 0o700), (path, 0o600)):
        with suppress(OSError):  # the file does not exist, or the file system has no modes
            _restrict(parent_or_file, mode)


def _restrict(path: Path, mode: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & ~mode:
            os.fchmod(file, mode & stat.S_IMODE(status.st_mode))
    finally:
        os.close(file)
