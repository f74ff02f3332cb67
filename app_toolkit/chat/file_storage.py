"""Where the bytes of files are: a folder, or another place through fsspec. All functions block.

They raise `OSError`. A file appears with its whole content, or not at all.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from app_toolkit import ConfigError

Result = TypeVar("Result")

PART = ".part"
"""The end of the name of a file that is being written to a folder."""


BLOCK_BYTES = 8 * 2**20
"""Bytes that fsspec keeps in memory for a file: the parts of an upload, of which S3 takes 5 MiB and more."""


class Upload(Protocol):
    """A file that is being written. It ends with `finish` or `discard`."""

    def write(self, chunk: bytes) -> None: ...
    def finish(self) -> None:
        """Make the file appear."""

    def discard(self) -> None:
        """Remove what has been written."""


class Storage(Protocol):
    """Files by paths such as `FOLDER/NAME`."""

    def begin(self, path: str) -> Upload: ...
    def open(self, path: str) -> AbstractContextManager[IO[bytes]]: ...
    def contents(self, paths: Iterable[str]) -> Mapping[str, bytes]:
        """Return the content of those files that exist."""

    def sizes(self, folder: str) -> Mapping[str, int]:
        """Return the sizes of the files of a folder by name, at least of those that are complete."""

    def age_s(self, path: str, now: float) -> float:
        """Return the seconds since a file was written. `now`: the seconds since 1970."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""


class FolderUpload:
    """A file in a folder that is being written under another name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
        self._file = os.fdopen(os.open(self._part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)

    def discard(self) -> None:
        with suppress(OSError):  # it writes what is buffered: the disk may be full
            self._file.close()
        self._part.unlink(missing_ok=True)


class Folder:
    """A folder that all processes of one machine share, or those of several machines if it is on a network drive."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, path: str) -> FolderUpload:
        file = self.path / path
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FolderUpload(file)

    def open(self, path: str) -> AbstractContextManager[IO[bytes]]:
        return (self.path / path).open("rb")

    def contents(self, paths: Iterable[str]) -> Mapping[str, bytes]:
        contents = {}
        for path in paths:
            with suppress(FileNotFoundError):
                contents[path] = (self.path / path).read_bytes()
        return contents

    def sizes(self, folder: str) -> Mapping[str, int]:
        sizes = {}
        with suppress(FileNotFoundError), os.scandir(self.path / folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
        return sizes

    def age_s(self, path: str, now: float) -> float:
        return now - (self.path / path).stat().st_mtime

    def remove(self, path: str) -> None:
        (self.path / path).unlink(missing_ok=True)


class RemoteUpload:
    """A file that fsspec is writing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, chunk: bytes) -> None:
        _without_other_errors(lambda: self._file.write(chunk))

    def finish(self) -> None:
        def finish() -> None:
            self._file.close()
            self._file.commit()

        _without_other_errors(finish)

    def discard(self) -> None:
        def discard() -> None:
            self._file.discard()
            # Otherwise, its finalizer writes what is buffered.
            with suppress(AttributeError):
                self._file.closed = True
            self._file.close()

        _without_other_errors(discard)


class RemoteFolder:
    """A place that fsspec knows by its URL, such as `s3://bucket/prefix`."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Name the place. `options`: what its file system takes, such as `endpoint_url`."""
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError("a FileStore with a URL needs fsspec: pip install 'app-toolkit[files]'") from error
        protocol = fsspec.utils.get_protocol(url)
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:  # the rest of the URL may have a password
            raise ConfigError(f"a FileStore cannot use a URL with {protocol}://: {error}") from error
        self._url = url
        self._options = dict(options)

    @cached_property
    def _place(self) -> tuple[Any, str]:
        import fsspec

        # Other processes write to the same place, so listings must not be kept.
        return fsspec.core.url_to_fs(self._url, use_listings_cache=False, **self._options)  # type: ignore[no-any-return]

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_url": self._url, "_options": self._options}

    def begin(self, path: str) -> RemoteUpload:
        def begin() -> RemoteUpload:
            files, root = self._place
            files.makedirs(f"{root}/{path}".rpartition("/")[0], exist_ok=True)
            return RemoteUpload(files.open(f"{root}/{path}", "wb", block_size=BLOCK_BYTES, autocommit=False))

        return _without_other_errors(begin)

    def open(self, path: str) -> AbstractContextManager[IO[bytes]]:
        files, root = self._place
        return _without_other_errors(lambda: files.open(f"{root}/{path}", "rb", block_size=BLOCK_BYTES))

    def contents(self, paths: Iterable[str]) -> Mapping[str, bytes]:
        files, root = self._place
        full = {f"{root}/{path}": path for path in paths}
        if not full:
            return {}
        contents = _without_other_errors(lambda: files.cat(list(full), on_error="return"))
        failed = [content for content in contents.values() if isinstance(content, Exception)]
        for error in failed:
            if not isinstance(error, FileNotFoundError):
                raise OSError(str(error)) from error
        return {full[path]: content for path, content in contents.items() if isinstance(content, bytes)}

    def sizes(self, folder: str) -> Mapping[str, int]:
        files, root = self._place

        def listed() -> Mapping[str, int]:
            with suppress(FileNotFoundError):
                entries = files.ls(f"{root}/{folder}", detail=True)
                return {entry["name"].rpartition("/")[2]: entry["size"] or 0 for entry in entries}
            return {}

        return _without_other_errors(listed)

    def age_s(self, path: str, now: float) -> float:
        files, root = self._place
        return now - float(_without_other_errors(lambda: files.modified(f"{root}/{path}")).timestamp())

    def remove(self, path: str) -> None:
        files, root = self._place

        def remove() -> None:
            with suppress(FileNotFoundError):
                files.rm_file(f"{root}/{path}")

        _without_other_errors(remove)


def storage_at(location: str | os.PathLike[str], options: Mapping[str, Any]) -> Folder | RemoteFolder:
    """Return the storage of a folder or of a URL. Raises `ConfigError` if fsspec is missing, or does not know it."""
    place = os.fspath(location)
    if "://" in place:
        return RemoteFolder(place.rstrip("/"), options)
    return Folder(Path(place).absolute())


def _without_other_errors(call: Callable[[], Result]) -> Result:
    """Call a function of fsspec, whose file systems raise errors of their clients, too. Raises `OSError` for them."""
    try:
        return call()
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
