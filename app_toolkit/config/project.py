"""What the `pyproject.toml` of the current folder says."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from app_toolkit.config.models import Model
from app_toolkit.config.options import Options
from app_toolkit.config.settings import read_settings
from app_toolkit.errors import ConfigError

PYPROJECT = "pyproject.toml"


class RunDefaults(Options):
    """`[tool.app_toolkit]`: defaults for the options of `run` that bear these names."""

    @classmethod
    def called(cls, option: str = "") -> str:
        return f"[tool.app_toolkit].{option}" if option else "[tool.app_toolkit]"


class Project(Model):
    """The two tables that concern us."""

    entrypoint: Annotated[str | None, Field(description="`[tool.fastapi] entrypoint`: `module:attribute`")] = None
    defaults: RunDefaults = RunDefaults()


def read_project(folder: Path) -> Project:
    """The project whose root is `folder`; an empty one where it has no pyproject.toml.

    Raises `ConfigError` for a file that is not TOML and for a key of `[tool.app_toolkit]` that is unknown or
    out of bounds. Keys of `[tool.fastapi]` other than `entrypoint` are FastAPI's own business.
    """
    path = folder / PYPROJECT
    try:
        tool = _table(tomllib.loads(path.read_text("utf-8")), "tool", path)
    except FileNotFoundError:
        return Project()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    ours = _table(tool, "app_toolkit", path)
    try:
        defaults = RunDefaults(**ours)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    entrypoint = _table(tool, "fastapi", path).get("entrypoint")
    if entrypoint is not None and not isinstance(entrypoint, str):
        raise ConfigError(f"{path}, [tool.fastapi]: entrypoint = {entrypoint!r}: it should be 'module:attribute'")
    return Project(entrypoint=entrypoint, defaults=defaults)


def choose(project: Project, said: Options) -> Options:
    """Each option from the first place that has it: what is said here, the environment, the project, its default."""
    return Options(**{**project.defaults.given, **read_settings().given, **said.given})


def _table(parent: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    table = parent.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {key!r} should be a table, not {table!r}")
    return table
