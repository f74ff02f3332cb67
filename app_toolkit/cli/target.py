"""From what a user types to what is served: which module, from which folder, which object in it."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi import FastAPI

from app_toolkit.errors import TargetError
from app_toolkit.interfaces import Deployable
from app_toolkit.replica.host import import_from, names
from app_toolkit.replica.target import candidates, is_function, is_served, served
from app_toolkit.types import ASGIApp

CANDIDATES = ("main.py", "app.py", "api.py", "app/main.py", "app/app.py", "app/api.py")
"""Where an app is looked for when nothing names it: FastAPI's own list, in its order."""

PREFERRED = ("app", "api")
"""What an app, a factory or a deployment is called when nothing names it; else it is the first FastAPI object.

Functions of these names count only in a module without an app.
"""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where an app is, before anything is imported."""

    module: str
    attribute: str | None
    """None: the object is found by looking into the module."""
    app_dir: Path
    """The folder that is put first on the import path."""
    file: Path | None = None
    """The file that was named, where one was: the import has to give that one and no other."""


def resolve(target: str | None, *, folder: Path, entrypoint: str | None = None, app_dir: Path | None = None) -> Target:
    """What `target` means in `folder`, the current one: `FILE[:ATTRIBUTE]`, `MODULE[:ATTRIBUTE]`, or nothing.

    Without a target it is the project's `entrypoint`, else the first of `CANDIDATES`. A file's module name is
    its dotted path from `app_dir`, by default its first parent folder without an `__init__.py`; a module is
    imported from `app_dir`, by default from `folder`. Raises `TargetError` where there is no such file, or
    the target is none of these.
    """
    if target is None:
        target = entrypoint or _discovered(folder)
    place, attribute = _split(target)
    if _is_path(place, folder):
        return _from_file(place, attribute, folder, app_dir)
    if not _MODULE.fullmatch(place):
        raise TargetError(f"{target!r} is neither a file nor of the form 'module:attribute'")
    return Target(place, attribute, (app_dir or folder).resolve())


def load(target: Target) -> tuple[ASGIApp | Deployable, str]:
    """Import the app or the deployment, or call the factory that makes it; and say where it is, as `module:attribute`.

    Raises `TargetError` where the module does not import (with the end of the user's traceback as a note) or
    holds nothing that can be served under that name.
    """
    module = _import(target)
    attribute = target.attribute or _find(module)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TargetError(
                f"the module {target.module!r} ({module.__file__}) has no {attribute!r}; it has {names(module)}"
            ) from None
    where = f"{target.module}:{attribute}"
    return served(found, where), where


def _discovered(folder: Path) -> str:
    for candidate in CANDIDATES:
        if (folder / candidate).is_file():
            return candidate
    raise TargetError(
        f"no target was given, {folder / 'pyproject.toml'} has no [tool.fastapi] entrypoint, and none of "
        f"{', '.join(CANDIDATES)} exists in {folder}"
    )


def _split(target: str) -> tuple[str, str | None]:
    place, colon, attribute = target.rpartition(":")
    # The colon of a Windows drive is followed by a path, never by a name.
    if not colon or "/" in attribute or "\\" in attribute:
        return target, None
    if not _MODULE.fullmatch(attribute):
        raise TargetError(f"{attribute!r} in {target!r} is not the name of an object")
    return place, attribute


def _is_path(place: str, folder: Path) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place or (folder / place / "__init__.py").is_file()


def _from_file(place: str, attribute: str | None, folder: Path, app_dir: Path | None) -> Target:
    path = (folder / place).resolve()
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        raise TargetError(f"there is no file {place!r} in {folder}" if path == file else f"{path} is not a package")
    named = file.parent if file.name == "__init__.py" else file.with_suffix("")
    if app_dir is None:
        root = named.parent
        while (root / "__init__.py").is_file():
            root = root.parent
    else:
        root = app_dir.resolve()
        if not named.is_relative_to(root):
            raise TargetError(f"the file {file} is not below the folder {root}, from which it should be imported")
    parts = named.relative_to(root).parts
    if any("." in part for part in parts):
        raise TargetError(f"the file {file} cannot be imported: {'/'.join(parts)!r} has a dot in it")
    return Target(".".join(parts), attribute, root, file)


def _import(target: Target) -> ModuleType:
    module = import_from(target.module, str(target.app_dir))
    if target.file is not None and (module.__file__ is None or Path(module.__file__).resolve() != target.file):
        raise TargetError(
            f"importing {target.module!r} gave {module.__file__ or 'a built-in module'} and not "
            f"{target.file}: another module has that name already, so rename the file"
        )
    return module


def _find(module: ModuleType) -> str:
    usual = [name for name in PREFERRED if is_served(getattr(module, name, None))]
    # A function may be an endpoint of an app in the same module: it counts only where there is no app.
    certain = [name for name in usual if not is_function(getattr(module, name))]
    apps = [name for name, value in vars(module).items() if isinstance(value, FastAPI)]
    for name in (*certain, *apps, *usual):
        return name
    raise TargetError(
        f"the module {module.__name__!r} ({module.__file__}) holds no FastAPI app, and nothing named app or api that "
        f"can be served: {candidates(module)}"
    )
