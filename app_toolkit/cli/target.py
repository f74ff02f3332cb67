"""Resolves the target that a user names: the module, the folder to import it from, and the object in it."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi import FastAPI

from app_toolkit.config.fields import MODULE, OBJECT
from app_toolkit.errors import TargetError
from app_toolkit.interfaces import Deployable
from app_toolkit.observability.logs import attach_fields
from app_toolkit.types import ASGIApp
from app_toolkit.userapp.loading import has_no, import_from
from app_toolkit.userapp.target import candidates, is_function, is_served, served

CANDIDATES = ("main.py", "app.py", "api.py", "app/main.py", "app/app.py", "app/api.py")
"""The files that are tried if no target is given, in the order of FastAPI's command line."""

PREFERRED = ("app", "api")
"""The names that are tried if the target has no attribute. Otherwise the first FastAPI object of the module is used.

Functions with these names are used only if the module has no app.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The location of an app that has not been imported."""

    module: str
    attribute: str | None
    """The name of the object in the module; None: `load` searches the module."""
    app_dir: Path
    """The folder that is put first on the import path."""
    file: Path | None = None
    """The file that the user named, which the import must load; None: the user named a module."""


def resolve(target: str | None, *, folder: Path, entrypoint: str | None = None, app_dir: Path | None = None) -> Target:
    """Resolve a target in `folder`, the current folder: `FILE[:ATTRIBUTE]`, `MODULE[:ATTRIBUTE]` or None.

    None stands for the project's `entrypoint`, or else for the first of `CANDIDATES` that exists. The module name of a
    file is its dotted path from `app_dir`, by default the first parent folder without an `__init__.py`. A module is
    imported from `app_dir`, by default from `folder`. Raises `TargetError` if there is no such file, or if the target
    has another form.
    """
    if target is None:
        target = entrypoint or _discovered(folder)
    place, attribute = _split(target)
    if _is_path(place, folder):
        return _from_file(place, attribute, folder, app_dir)
    if not re.fullmatch(MODULE, place):
        raise TargetError(f"{target!r} is neither a file nor of the form 'module:attribute'")
    return Target(place, attribute, (app_dir or folder).resolve())


def load(target: Target) -> tuple[ASGIApp | Deployable, str]:
    """Import the app or the deployment, or call its factory. Return the object and its `module:attribute`.

    Raises `TargetError` if the import fails, with the end of the user's traceback as a note, or if the module has no
    object of this name that can be served.
    """
    attach_fields()  # the app may configure logging and log while it is imported
    module = _import(target)
    attribute = target.attribute or _find(module)
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise TargetError(f"the module {target.module!r} ({module.__file__}) {has_no(module, attribute)}") from None
    where = f"{target.module}:{attribute}"
    return served(value, where), where


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
    # The colon may be that of a Windows drive, which is followed by a path.
    if not colon or "/" in attribute or "\\" in attribute:
        return target, None
    if not re.fullmatch(OBJECT, attribute):
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
    # A function may be an endpoint of an app in the same module, so it is used only if there is no app.
    certain = [name for name in usual if not is_function(getattr(module, name))]
    apps = [name for name, value in vars(module).items() if isinstance(value, FastAPI)]
    for name in (*certain, *apps, *usual):
        return name
    raise TargetError(
        f"the module {module.__name__!r} ({module.__file__}) holds no FastAPI app, and nothing named app or api that "
        f"can be served: {candidates(module)}"
    )
