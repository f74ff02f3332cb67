"""Ray's access token, which opens all ports of a cluster: for this user alone."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from app_toolkit.config.settings import ray_makes_token, ray_token_path


def make_token() -> None:
    """Make the token that Ray would make for a cluster of its own, which would be readable by everybody.

    Nothing happens if there is one, or the environment names another. Raises `OSError`.
    """
    path = ray_token_path()
    if not ray_makes_token() or path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    written = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w") as out:
            out.write(secrets.token_hex(32))
        # Complete from the moment that it has its name; one that another process has made meanwhile stays.
        with suppress(FileExistsError):
            os.link(written, path)
    finally:
        written.unlink()


def restrict_token() -> None:
    """Close the token, and its folder, to other users, if they are this user's."""
    path = ray_token_path()
    for each, mode in ((path.parent, 0o700), (path, 0o600)):
        with suppress(OSError):  # there is none, or this file system has no modes
            _restrict(each, mode)


def _restrict(path: Path, mode: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & ~mode:
            os.fchmod(file, mode & stat.S_IMODE(found.st_mode))
    finally:
        os.close(file)
