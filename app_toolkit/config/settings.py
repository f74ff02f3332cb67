"""What the environment says. The only place that reads or changes environment variables."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app_toolkit.errors import ConfigError


class Settings(BaseSettings):
    """`APP_TOOLKIT_*` variables; each is overruled by the option of the same name. None: not set."""

    model_config = SettingsConfigDict(env_prefix="APP_TOOLKIT_", env_ignore_empty=True, frozen=True)

    address: Annotated[str | None, Field(description="the Ray cluster to join")] = None
    host: Annotated[str | None, Field(description="where the proxy listens")] = None
    # Platforms that run containers name the port so, and FastAPI's own command line follows them.
    port: Annotated[int | None, Field(ge=0, le=65_535, validation_alias=AliasChoices("APP_TOOLKIT_PORT", "PORT"))] = (
        None
    )


def read_settings() -> Settings:
    """The settings of this process. Raises `ConfigError` for a variable that does not hold what it should."""
    try:
        return Settings()
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        name = str(mistake["loc"][0])
        variable = name if name.isupper() else f"APP_TOOLKIT_{name.upper()}"
        raise ConfigError(
            f"the environment variable {variable} = {mistake['input']!r}: {mistake['msg'].lower()}"
        ) from None


def say_development() -> None:
    """Tell the app that this is a developer's machine, unless somebody has named the environment already."""
    os.environ.setdefault("FASTAPI_ENV", "development")


def say_plain_logs(colour: bool) -> None:
    """Have Ray pass on every line that a worker logs, and colour none where nobody sees it. Before Ray is imported."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if not colour:
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def show_ray_token() -> None:
    """Have Ray show its access token to a cluster that is joined by its address: it looks for one only at `auto`.

    Before Ray is imported.
    """
    if (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
