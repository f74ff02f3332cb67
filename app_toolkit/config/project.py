"""The configuration in the `pyproject.toml` of the current folder."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app_toolkit.config.document import from_toml
from app_toolkit.config.files import ConfigFile, parse
from app_toolkit.config.models import HTTPOptions
from app_toolkit.config.options import InstanceOptions, Options
from app_toolkit.config.settings import read_settings
from app_toolkit.errors import ConfigError

PYPROJECT = "pyproject.toml"


class RunDefaults(Options):
    """`[tool.app_toolkit]`: defaults for the options of `run`."""


@dataclass(frozen=True, slots=True)
class Project:
    """The configuration from `[tool.app_toolkit]` and `[tool.fastapi]`."""

    entrypoint: str | None = None
    """`[tool.fastapi] entrypoint`: `module:attribute`."""
    defaults: RunDefaults = field(default_factory=RunDefaults)
    file: ConfigFile | None = None
    """`[tool.app_toolkit.applications]`; None: the table does not exist or is empty."""


def read_project(folder: Path) -> Project:
    """Read the project whose root is `folder`. Return an empty one if there is no pyproject.toml.

    Raises `ConfigError` if the file is not TOML, and with all mistakes in `[tool.app_toolkit]` at once. The error names
    options but no lines, because the TOML parser does not report them. Of `[tool.fastapi]` only `entrypoint` is read.
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


def resolve_options(project: Project, given: Options, file: ConfigFile | None = None) -> Options:
    """Combine the options of all sources. Earlier sources override later ones.

    The order is: `given`, the environment, the file that is served, the project, the default.
    """
    return _combined(project, given, file, read_settings())


def named_proxy_options(project: Project, given: Options, file: ConfigFile | None = None) -> HTTPOptions:
    """Return the options of the proxies that a source sets for app_toolkit. Only these change proxies that run already.

    `PORT` and `FORWARDED_ALLOW_IPS` do not count, because platforms set them for every process. They apply when the
    proxies are started for the first time.
    """
    options = _combined(project, given, file, read_settings(ours=True)).given
    return HTTPOptions(**{name: value for name, value in options.items() if name in HTTPOptions.model_fields})


def _combined(project: Project, given: Options, file: ConfigFile | None, settings: Options) -> Options:
    of_file = {} if file is None else file.given
    return Options(**{**project.defaults.given, **of_file, **settings.given, **given.given})


def _table(parent: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    table = parent.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {key!r} should be a table, not {table!r}")
    return table
