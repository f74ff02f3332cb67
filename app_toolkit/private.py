"""Folders and files that no other user of the machine can read, change or replace.

Design: docs/design/security.md
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from app_toolkit.errors import InsecurePath

MOST_LINKS = 40
"""Maximum number of symbolic links that are followed on the path of one folder, as in Linux."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""With access control lists, the permissions of the group are the maximum of what any of their entries allows."""

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def folder(path: Path) -> Path:
    """Create a folder with mode 0700 unless it exists, check that no other user can change it, return its real path.

    The whole path is checked, beginning at the root. Each folder above must belong to this user or to root, and must
    not be writable by others unless it is sticky (as `/tmp` is): then others cannot rename or remove this user's
    entries. The folder itself must belong to this user and be inaccessible to all others. Raises `InsecurePath`.
    """
    path = Path(os.path.abspath(path))
    try:
        real = _checked(path.parent, MOST_LINKS) / path.name
        with suppress(FileExistsError):
            real.mkdir(mode=0o700)
        status = real.lstat()
    except OSError as error:
        raise InsecurePath(f"the folder {path} cannot be made: {error}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise InsecurePath(f"{real} is not a folder")
    if status.st_uid != os.geteuid():
        raise InsecurePath(f"the folder {real} belongs to user {status.st_uid}, and must belong to user {os.geteuid()}")
    if status.st_mode & OTHERS:
        raise InsecurePath(f"the folder {real} has mode {stat.S_IMODE(status.st_mode):04o}, and must have mode 0700")
    return real


def open_folder(path: Path) -> int:
    """Open a folder in a folder that others may write to. Create it with mode 0700 unless it exists.

    Return its descriptor. Another user can rename the folder, but what is opened by the descriptor stays this user's
    own. Raises `InsecurePath` if it is not a folder of this user, or others can access it. Raises `OSError`.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:  # or a symbolic link
        raise InsecurePath(f"{path} is not a folder") from None
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS:
        os.close(opened)
        raise InsecurePath(
            f"the folder {path} of user {status.st_uid} has mode {stat.S_IMODE(status.st_mode):04o}, and must belong "
            f"to user {os.geteuid()} with mode 0700"
        )
    return opened


def open_file(path: Path, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a regular file of this user that no other user can open. Create it unless it exists. Return the descriptor.

    A file that other users may read or write, as an umask of 0022 or 0002 leaves it, gets mode 0600. Symbolic links are
    not followed. Raises `InsecurePath` for a link, for a file of another user, and for a file with a second hard link.
    Raises `OSError`. `dir_fd`: the descriptor of the folder that a relative path begins at.
    """
    try:
        # `O_NONBLOCK`: otherwise a named pipe that another user has created here would block the call.
        file = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    except OSError as error:
        if dir_fd is None and path.is_symlink():
            raise InsecurePath(f"{path} is a symbolic link, and must be a regular file") from None
        raise error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InsecurePath(f"{path} is not a regular file")
        if status.st_uid != os.geteuid():
            raise InsecurePath(f"{path} belongs to user {status.st_uid}, and must belong to user {os.geteuid()}")
        if status.st_nlink != 1:
            raise InsecurePath(f"{path} is a file with {status.st_nlink} names, and must have one")
        if status.st_mode & OTHERS:
            os.fchmod(file, 0o600)
    except BaseException:
        os.close(file)
        raise
    return file


def remove_tree(folder: Path) -> None:
    """Remove a folder of this user with everything in it, also if it has folders that cannot be written to.

    What cannot be removed stays.
    """
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _checked(path: Path, links: int) -> Path:
    """Return the real path of a folder that only this user and root can replace.

    Parents are checked first: an entry of a folder that others cannot change does not change after its check.
    """
    checked = path if path == path.parent else _checked(path.parent, links) / path.name
    status = checked.lstat()
    if status.st_uid not in (0, os.geteuid()):
        raise InsecurePath(f"{checked} belongs to user {status.st_uid}, who can replace what is below it")
    if stat.S_ISLNK(status.st_mode):
        if not links:
            raise InsecurePath(f"{path} has more than {MOST_LINKS} symbolic links on its way")
        return _checked(Path(os.path.normpath(checked.parent / checked.readlink())), links - 1)
    if not stat.S_ISDIR(status.st_mode):
        raise InsecurePath(f"{checked} is not a folder")
    if status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        raise InsecurePath(f"the folder {checked} has mode {mode:04o}: other users can replace what is below it")
    return checked
