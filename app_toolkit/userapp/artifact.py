"""The files of an application: packed when it is deployed, and unpacked once on each node that runs it."""

import fcntl
import hashlib
import io
import os
import re
import shutil
import sysconfig
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import yaml

from app_toolkit import private
from app_toolkit.errors import ConfigError, TargetError

MOST_BYTES = 64 * 1024 * 1024
"""Limit for all files together: the cluster's control store keeps them in memory."""

MOST_HASHES = 2_000
"""Maximum number of files whose own hashes are kept, to name those that change."""

SETTINGS = (".env", ".env.*", ".envrc")

DATABASES = tuple(
    f"*.{suffix}{beside}"
    for suffix in ("db", "db3", "sqlite", "sqlite3", "duckdb")
    for beside in ("", "-wal", "-shm", "-journal", ".wal")
)
"""Names of database files, and of those that a database writes beside them."""

LEFT_OUT = (
    *SETTINGS,
    *DATABASES,
    "*.log",
    "*.log.[0-9]*",
    # version control, environments and installed packages
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "node_modules",
    # caches
    "__pycache__",
    "*.py[co]",
    ".cache",
    ".mypy_cache",
    ".dmypy.json",
    ".pytype",
    ".ruff_cache",
    ".ipynb_checkpoints",
    # what test runs write
    ".pytest_cache",
    ".hypothesis",
    ".tox",
    ".nox",
    ".coverage",
    ".coverage.*",
    "coverage.xml",
    "htmlcov",
    ".benchmarks",
    ".testmondata*",
    "test-results",
    "playwright-report",
    # what editors write
    ".idea",
    ".vscode",
    ".DS_Store",
    "*~",
    "*.swp",
)
"""Names of files and folders that are left out at any depth, unless they are asked for. A folder with a `pyvenv.cfg` is
left out, too, and so is an application file."""

DATA_FOLDERS = frozenset({"data", "instance", "media", "storage", "upload", "uploads", "var"})
"""Names of folders to which apps often write. A folder with Python files, or below `STATIC`, is none of them."""

STATIC = frozenset({"static", "templates", "tests"})

_HASH = re.compile("[0-9a-f]{64}")
_APPLICATIONS = re.compile(rb"^applications[ \t]*:", re.MULTILINE)
_TOOL = re.compile(rb"^\[tool\.app_toolkit[\].]", re.MULTILINE)


CACHE = "__pycache__"
"""The name of the folders for compiled modules, the only ones below unpacked files that a process may write to."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Files as one archive. The hash depends only on the files, not on the time or the folder."""

    hash: str
    archive: bytes
    files: Mapping[str, str] = field(default_factory=dict)
    """The beginning of the hash of each file by its name; empty: there are more than `MOST_HASHES`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files below a folder that are packed, and what the app may miss or may try to change."""

    files: Sequence[tuple[str, Path]]
    """The names in the archive, and the paths."""
    left_out: Sequence[str] = ()
    """The names of databases and files with settings that are not packed."""

    @property
    def data_folders(self) -> Mapping[str, int]:
        """The number of packed files in each folder to which the app may want to write."""
        sizes, with_code = Counter[str](), set[str]()
        for name, _ in self.files:
            *folders, file = name.split("/")
            at = next((number for number, name in enumerate(folders) if name in DATA_FOLDERS), None)
            if at is None or not STATIC.isdisjoint(folders[:at]):
                continue
            folder = "/".join(folders[: at + 1])
            sizes[folder] += 1
            if file.endswith(".py"):
                with_code.add(folder)
        return {folder: count for folder, count in sizes.items() if folder not in with_code}


def is_installed(folder: Path) -> bool:
    """Return whether a folder has the installed packages. Each node must have these, so they are not packed."""
    return folder in {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}


def pack(selection: Selection) -> Artifact:
    """Pack the selected files. Raises `ConfigError` for files that cannot be read."""
    try:
        return archived(selection.files)
    except OSError as error:
        raise ConfigError(f"the files of the application cannot be packed: {error}") from None


def select(folder: Path, include: Sequence[str] = ()) -> Selection:
    """Select the files below a folder, except those `LEFT_OUT` and application files.

    A link counts as the file that it refers to. Empty folders are not selected. `include`: names, paths or patterns of
    files and folders that are selected in spite of `LEFT_OUT`.

    Raises `ConfigError` for more than `MOST_BYTES`, for files that cannot be read, and for an entry of `include` that
    nothing matches.
    """
    walk = _Walk(tuple(pattern.removeprefix("./").rstrip("/") for pattern in include))
    try:
        files = sorted(_bounded(folder, walk.below(folder, "", (os.path.realpath(folder),))))
    except OSError as error:
        raise ConfigError(f"the files below {folder} cannot be packed: {error}") from None
    for pattern in walk.include:
        if pattern not in walk.matched:
            raise ConfigError(
                f"include has {pattern!r}, and no file or folder below {folder} has this name; for a file in a folder "
                "that is left out, name this folder"
            )
    return Selection(files, tuple(sorted(walk.left_out)))


def archived(files: Iterable[tuple[str, Path]]) -> Artifact:
    """Pack files under the given names, in the given order. Raises `OSError` for one that cannot be read."""
    tar, hashes = io.BytesIO(), {}
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files:
            entry = tarfile.TarInfo(name)  # without owner and time, so that these do not change the hash
            content = path.read_bytes()
            entry.size = len(content)
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
            hashes[name] = hashlib.sha256(content + bytes([entry.mode & 1])).hexdigest()[:12]
    content = tar.getvalue()
    # The hash of the uncompressed archive: two versions of a compressor may produce different bytes.
    return Artifact(
        hashlib.sha256(content).hexdigest(),
        zlib.compress(content, 1),
        hashes if len(hashes) <= MOST_HASHES else {},
    )


def _bounded(folder: Path, files: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Yield the files. Raises `ConfigError` as soon as they exceed `MOST_BYTES`."""
    total, of = 0, dict[str, int]()
    for name, path in files:
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


class _Walk:
    def __init__(self, include: tuple[str, ...]) -> None:
        self.include = include
        self.matched = set[str]()
        self.left_out = list[str]()

    def below(self, folder: Path, prefix: str, around: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
        """Yield the selected files below a folder with their names."""
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path, name = Path(entry.path), f"{prefix}{entry.name}"
            asked = self._is_asked_for(name)
            if not asked and _matches(entry.name, LEFT_OUT):
                if _matches(entry.name, (*SETTINGS, *DATABASES)):
                    self.left_out.append(name)
                continue
            if entry.is_file():
                if asked or not _is_application_file(path):
                    yield name, path
            elif entry.is_dir() and not (path / "pyvenv.cfg").exists():
                real = os.path.realpath(path)
                if real not in around:  # otherwise a link to one of the folders that contain it
                    yield from self.below(path, f"{name}/", (*around, real))

    def _is_asked_for(self, name: str) -> bool:
        last = name.rpartition("/")[2]
        asked = [pattern for pattern in self.include if fnmatchcase(name, pattern) or fnmatchcase(last, pattern)]
        self.matched.update(asked)
        return bool(asked)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _is_application_file(path: Path) -> bool:
    """Return whether a file has options of applications, which the artifact must not depend on."""
    if path.name == "pyproject.toml":
        return _TOOL.search(path.read_bytes()) is not None
    if path.suffix not in (".yaml", ".yml"):
        return False
    content = path.read_bytes()
    if _APPLICATIONS.search(content) is None:
        return False
    try:
        applications = yaml.safe_load(content)["applications"]
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError):
        return False
    return isinstance(applications, dict) and any(
        isinstance(options, dict) and "target" in options for options in applications.values()
    )


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
        #: The lock of the files, which a fork must keep open.
        self.descriptor = _open(below, hash)
        try:
            # From here on no process removes the folder: removing it requires the exclusive lock.
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            if not self.folder.is_dir():
                self._unpack_in_turn(hash, fetch, below)
        except BaseException:
            self.close()
            raise

    def _unpack_in_turn(self, hash: str, fetch: Callable[[], bytes | None], below: Path) -> None:
        # Not the lock that is held as long as the files are used: a process that waits to unpack them would then wait
        # for all processes that use them.
        turn = private.open_file(_turn(self.folder), os.O_RDWR)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not self.folder.is_dir():
                _remove_unused(below, hash)
                _unpack(hash, fetch(), self.folder)
        finally:
            os.close(turn)

    def written(self) -> list[str]:
        """Return the files that were written after the unpacking. Root can do that in languages other than Python."""
        return _written(self.folder)

    def close(self) -> None:
        """Release the files. Call this once. The end of the process releases them, too."""
        os.close(self.descriptor)


def _open(below: Path, hash: str) -> int:
    return private.open_file(below / f"{hash}.lock", os.O_RDWR)


def _turn(folder: Path) -> Path:
    """Return the lock of the process that unpacks files into a folder. Its time is that of the unpacking."""
    return folder.with_name(f"{folder.name}.unpack.lock")


def _written(folder: Path) -> list[str]:
    since = _turn(folder).stat().st_mtime_ns
    written = []
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != CACHE]
        for file in (os.path.join(path, name) for name in files):
            with suppress(FileNotFoundError):  # such as the journal of a database, which is removed meanwhile
                if os.lstat(file).st_mtime_ns > since:
                    written.append(os.path.relpath(file, folder))
    return sorted(written)


def _unpack(hash: str, archive: bytes | None, folder: Path) -> None:
    if archive is None:
        raise TargetError("the files of this application are no longer in the store: it was deleted or replaced")
    partial = folder.with_suffix(".partial")
    private.remove_tree(partial)  # left by a process that was killed while unpacking
    try:
        content = zlib.decompress(archive)
        if hashlib.sha256(content).hexdigest() != hash:
            raise TargetError(f"the files of this application are not those that were packed as {hash}")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            _extract(tar, partial)
    except (zlib.error, tarfile.TarError, _NoFileOfOurs) as error:
        private.remove_tree(partial)
        raise TargetError(f"the files of this application cannot be unpacked: {error}") from None
    partial.mkdir(exist_ok=True)  # an application may have no files
    _make_read_only(partial)
    os.utime(_turn(folder))  # for `_written`
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
        path.chmod(entry.mode & 0o555)


def _make_read_only(folder: Path) -> None:
    """Let nobody create or remove files, except the compiled modules, so that only the first process compiles them."""
    for path, _, names in os.walk(folder, topdown=False):
        if any(name.endswith(".py") for name in names):
            os.makedirs(os.path.join(path, CACHE), exist_ok=True)
        os.chmod(path, 0o555)


def _remove_unused(below: Path, hash: str) -> None:
    for folder in below.iterdir():
        if not _HASH.fullmatch(folder.name) or not folder.is_dir() or folder.name == hash:
            continue
        lock = _open(below, folder.name)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _written(folder):
                continue  # there may be no other copy of it
            partial = folder.with_suffix(".partial")
            folder.rename(partial)  # atomically, so that no process finds a part of it
            private.remove_tree(partial)
        except BlockingIOError:
            pass  # a process uses it
        finally:
            os.close(lock)
