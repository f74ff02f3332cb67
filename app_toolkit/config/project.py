"""What the `pyproject.toml` of the current folder says."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app_toolkit.config.document import from_toml
from app_toolkit.config.files import ConfigFile, parse
from app_toolkit.config.options import InstanceOptions, Options
from app_toolkit.config.settings import read_settings
from app_toolkit.errors import ConfigError

PYPROJECT = "pyproject.toml"


class RunDefaults(Options):
    """`[tool.app_toolkit]`: defaults for the options of `run` that bear these names."""


@dataclass(frozen=True, slots=True)
class Project:
    """The two tables that concern us."""

    entrypoint: str | None = None
    """`[tool.fastapi] entrypoint`: `module:attribute`."""
    defaults: RunDefaults = field(default_factory=RunDefaults)
    file: ConfigFile | None = None
    """`[tool.app_toolkit.applications]`, where it is there."""


def read_project(folder: Path) -> Project:
    """The project whose root is `folder`; an empty one where it has no pyproject.toml.

    Raises `ConfigError` for a file that is not TOML and, all at once, for what is wrong in `[tool.app_toolkit]`: by
    name, because the parser of TOML tells no lines. Keys of `[tool.fastapi]` other than `entrypoint` are FastAPI's own
    business.
    """
    path = folder / PYPROJECT
    try:
        tool = _table(tomllib.loads(path.read_text("utf-8")), "tool", path)
    except FileNotFoundError:
        return Project()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    ours = _table(tool, "app_toolkit", path)
    document = from_toml(ours, str(path), "tool.app_toolkit")
    defaults, applications = parse(document, folder.resolve(), RunDefaults)
    file = ConfigFile(document, folder.resolve(), InstanceOptions(), applications) if applications else None
    entrypoint = _table(tool, "fastapi", path).get("entrypoint")
    if entrypoint is not None and not isinstance(entrypoint, str):
        raise ConfigError(f"{path}, [tool.fastapi]: entrypoint = {entrypoint!r}: it should be 'module:attribute'")
    return Project(entrypoint, defaults, file)


def choose(project: Project, given: Options, file: ConfigFile | None = None) -> Options:
    """Each option from the first place that has it: what is said here, the environment, the file that is served, the
    project, its default.
    """
    of_file = {} if file is None else file.given
    return Options(**{**project.defaults.given, **of_file, **read_settings().given, **given.given})


def _table(parent: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    table = parent.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {key!r} should be a table, not {table!r}")
    return table
