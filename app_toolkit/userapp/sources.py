"""A snapshot of an application's Python files: `run` takes it, and every replica imports from it."""

import importlib.machinery as machinery
import io
import linecache
import os
import sys
import tarfile
import zlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import decode_source, spec_from_file_location
from pathlib import Path
from types import ModuleType

from app_toolkit.errors import ConfigError, TargetError
from app_toolkit.userapp.artifact import LEFT_OUT, MOST_BYTES, archived

MOST_ENTRIES = 100_000
"""Maximum number of files and folders that are examined. Folders near the top come first."""

ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""A folder with one of these is a Python environment, not a part of the application."""

LOADERS = (
    (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
    (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
    (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Python files as one archive. The same files give the same hash."""

    hash: str
    archive: bytes
    complete: bool
    """False: the folder has more files than are examined, or more bytes than are kept. The rest is not included."""
    files: Mapping[str, str]
    """As of `Artifact`."""


def take(folder: Path) -> Sources:
    """Take a snapshot of the Python files below a folder that can be imported by name. Unreadable files are left out.

    Raises `ConfigError` for a file that disappears meanwhile.
    """
    sources = _Found()
    try:
        artifact = archived(sorted(sources.below(folder)))
    except OSError as error:
        raise ConfigError(f"the Python files below {folder} cannot be read: {error}") from None
    return Sources(artifact.hash, artifact.archive, sources.complete, artifact.files)


class _Found:
    def __init__(self) -> None:
        self.complete = True

    def below(self, top: Path) -> Iterator[tuple[str, Path]]:
        folders: deque[tuple[Path, str, tuple[str, ...]]] = deque([(top, "", (os.path.realpath(top),))])
        looked = size = 0
        while folders:
            folder, name, around = folders.popleft()
            for entry in _entries(folder):
                looked += 1
                if looked > MOST_ENTRIES or size > MOST_BYTES:
                    self.complete = False
                    return
                stem, suffix = os.path.splitext(entry.name)
                if "." in stem or entry.name in LEFT_OUT:  # it cannot be imported
                    continue
                if suffix == ".py" and entry.is_file() and os.access(entry.path, os.R_OK):
                    size += entry.stat().st_size
                    yield f"{name}{entry.name}", Path(entry.path)
                elif not suffix and entry.is_dir() and not _is_environment(entry.path):
                    real = os.path.realpath(entry.path)
                    if real not in around:  # otherwise a link to one of the folders that contain it
                        folders.append((Path(entry.path), f"{name}{entry.name}/", (*around, real)))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []


def _is_environment(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, mark)) for mark in ENVIRONMENTS)


def read(hash: str, archive: bytes | None) -> dict[str, bytes]:
    """Return the files of an archive by name. Raises `TargetError` if it is missing or has another hash."""
    if archive is None:
        raise TargetError("the source files of this application are no longer in the store: it was deleted or replaced")
    try:
        content = zlib.decompress(archive)
        if sha256(content).hexdigest() != hash:
            raise TargetError(f"the source files of this application are not those that were packed as {hash}")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            files = ((entry.name, tar.extractfile(entry)) for entry in tar)
            return {name: file.read() for name, file in files if file is not None}
    except (zlib.error, tarfile.TarError) as error:
        raise TargetError(f"the source files of this application cannot be read: {error}") from None


def are_older(folder: str, files: Mapping[str, bytes], time_ns: int) -> bool:
    """Return whether these files are those of a folder, and were so at a time. `time_ns`: nanoseconds since 1970."""
    for name, content in files.items():
        path = Path(folder, name)
        try:
            status = path.stat()
            if max(status.st_mtime_ns, status.st_ctime_ns) >= time_ns or path.read_bytes() != content:
                return False
        except OSError:  # it does not exist any more
            return False
    return True


def use(folder: str, files: Mapping[str, bytes]) -> None:
    """Make this process import these files of a folder from the snapshot from now on, whatever is on disk."""
    sources = {os.path.join(folder, *name.split("/")): content for name, content in files.items()}
    folders = {folder}
    for path in sources:
        while (path := os.path.dirname(path)) not in folders:
            folders.add(path)

    def find(path: str) -> _Finder:
        if path not in folders:
            raise ImportError(f"{path} has no files of the application")
        return _Finder(path, sources, folders)

    sys.path_hooks.insert(0, find)
    for path in folders:
        sys.path_importer_cache.pop(path, None)


class _Finder(machinery.FileFinder):
    """Finds the modules of one folder: Python files in the snapshot, everything else on disk."""

    def __init__(self, path: str, sources: Mapping[str, bytes], folders: Collection[str]) -> None:
        super().__init__(path, *LOADERS)
        self._sources = sources
        self._folders = folders

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> machinery.ModuleSpec | None:
        on_disk = super().find_spec(fullname, target)
        if on_disk is not None and isinstance(on_disk.loader, machinery.ExtensionFileLoader):
            return on_disk
        base = os.path.join(self.path, fullname.rpartition(".")[2])
        for path, within in ((os.path.join(base, "__init__.py"), [base]), (f"{base}.py", None)):
            if path in self._sources:
                loader = _Loader(fullname, path, self._sources[path])
                return spec_from_file_location(fullname, path, loader=loader, submodule_search_locations=within)
        if on_disk is None and base in self._folders:  # a package without an __init__.py, and not on disk any more
            namespace = machinery.ModuleSpec(fullname, None, is_package=True)
            namespace.submodule_search_locations = [base]
            return namespace
        return on_disk


class _Loader(machinery.SourceFileLoader):
    """Loads one file of the snapshot. As long as the file on disk is the same, Python's bytecode cache is used."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        return self._source if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, float]:
        stats = super().path_stats(path)
        if super().get_data(path) != self._source:
            raise OSError(f"{path} has changed")
        return stats

    def exec_module(self, module: ModuleType) -> None:
        # Tracebacks and debuggers show these lines even if the file on disk has others.
        lines = decode_source(self._source).splitlines(keepends=True)
        linecache.cache[self.path] = len(self._source), None, lines, self.path
        super().exec_module(module)
