"""The files of an application: packed when it is deployed, and unpacked once on each node that runs it."""

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from app_toolkit import private
from app_toolkit.errors import ConfigError, TargetError

MOST_BYTES = 64 * 1024 * 1024
"""Limit for all files together: the cluster's control store keeps them in memory."""

LEFT_OUT = (
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "node_modules",
    "__pycache__",
    "*.pyc",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".tox",
    ".nox",
    ".ipynb_checkpoints",
    ".idea",
    ".vscode",
    ".DS_Store",
)
"""Names of files and folders that are left out at any depth. A folder with a `pyvenv.cfg` is left out, too."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Files as one archive. The hash depends only on the files, not on the time or the folder."""

    hash: str
    archive: bytes


def pack(folder: Path) -> Artifact:
    """Pack the files below a folder, except those `LEFT_OUT`.

    A link is packed as the file that it refers to. Empty folders are not packed.

    Raises `ConfigError` for more than `MOST_BYTES`, and for files that cannot be read.
    """
    try:
        return archived(sorted(_bounded(folder)))
    except OSError as error:
        raise ConfigError(f"the files below {folder} cannot be packed: {error}") from None


def archived(files: Iterable[tuple[str, Path]]) -> Artifact:
    """Pack files under the given names, in the given order. Raises `OSError` for one that cannot be read."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files:
            entry = tarfile.TarInfo(name)  # without owner and time, so that these do not change the hash
            content = path.read_bytes()
            entry.size = len(content)
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    content = tar.getvalue()
    # The hash of the uncompressed archive: two versions of a compressor may produce different bytes.
    return Artifact(hashlib.sha256(content).hexdigest(), zlib.compress(content, 1))


def _bounded(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file with its name in the archive. Raises `ConfigError` as soon as the files exceed `MOST_BYTES`."""
    total, of = 0, dict[str, int]()
    for name, path in _files(folder, "", (os.path.realpath(folder),)):
        size = path.stat().st_size
        total += size
        first = name.partition("/")[0]
        of[first] = of.get(first, 0) + size
        if total > MOST_BYTES:
            most = max(of, key=lambda name: of[name])
            raise ConfigError(
                f"the files below {folder} have more than the {MOST_BYTES} bytes that are packed, {most!r} alone "
                f"{of[most]}: keep what is large elsewhere, or name the app's own folder (app_dir)"
            )
        yield name, path


def _files(folder: Path, below: str, around: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if any(fnmatchcase(entry.name, name) for name in LEFT_OUT):
            continue
        path, name = Path(entry.path), f"{below}{entry.name}"
        if entry.is_file():
            yield name, path
        elif entry.is_dir() and not (path / "pyvenv.cfg").exists():
            real = os.path.realpath(path)
            if real not in around:  # otherwise a link to one of the folders that contain it
                yield from _files(path, f"{name}/", (*around, real))


class Unpacked:
    """The files of one artifact on this node, in `folder`, for the lifetime of this object.

    The first process unpacks them, and the others wait for it. The files stay as long as a process holds their lock,
    and after that until another artifact is unpacked on this node.
    """

    def __init__(self, hash: str, fetch: Callable[[], bytes | None], below: Path) -> None:
        """`fetch` returns the archive if it has to be unpacked. `below`: the folder of all artifacts of this node.

        Raises `TargetError` if there is no archive or it is not the one that was packed. Raises `InsecurePath` if other
        users could change `below`.
        """
        below = private.folder(below)
        self.folder = below / hash
        self._lock = _open(below, hash)
        try:
            # From here on no process removes the folder: removing it requires the exclusive lock.
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if not self.folder.is_dir():
                self._unpack_in_turn(hash, fetch, below)
        except BaseException:
            self.close()
            raise

    def _unpack_in_turn(self, hash: str, fetch: Callable[[], bytes | None], below: Path) -> None:
        # Not the lock that is held as long as the files are used: a process that waits to unpack them would then wait
        # for all processes that use them.
        turn = _open(below, f"{hash}.unpack")
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not self.folder.is_dir():
                _remove_unused(below, hash)
                _unpack(hash, fetch(), self.folder)
        finally:
            os.close(turn)

    def close(self) -> None:
        """Release the files. Call this once. The end of the process releases them, too."""
        os.close(self._lock)


def _open(below: Path, name: str) -> int:
    return private.open_file(below / f"{name}.lock", os.O_RDWR)


def _unpack(hash: str, archive: bytes | None, folder: Path) -> None:
    if archive is None:
        raise TargetError("the files of this application are no longer in the store: it was deleted or replaced")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed while unpacking
    try:
        content = zlib.decompress(archive)
        if hashlib.sha256(content).hexdigest() != hash:
            raise TargetError(f"the files of this application are not those that were packed as {hash}")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            _extract(tar, partial)
    except (zlib.error, tarfile.TarError, _NoFileOfOurs) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TargetError(f"the files of this application cannot be unpacked: {error}") from None
    partial.mkdir(exist_ok=True)  # an application may have no files
    partial.rename(folder)


class _NoFileOfOurs(Exception):
    """An entry that `pack` would not have packed."""


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Extract regular files, and only below the folder. (`tarfile.data_filter` was added in Python 3.11.4.)"""
    for entry in tar:
        name = PurePosixPath(entry.name)
        content = tar.extractfile(entry) if entry.isreg() else None
        if content is None or name.is_absolute() or ".." in name.parts:
            raise _NoFileOfOurs(f"{entry.name!r} is not a regular file below the folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)
        path.chmod(entry.mode & 0o777)


def _remove_unused(below: Path, hash: str) -> None:
    for folder in below.iterdir():
        if not folder.is_dir() or folder.name == hash or folder.suffix:
            continue
        lock = _open(below, folder.name)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial = folder.with_suffix(".partial")
            folder.rename(partial)  # atomically, so that no process finds a part of it
            shutil.rmtree(partial, ignore_errors=True)
        except BlockingIOError:
            pass  # a process uses it
        finally:
            os.close(lock)
