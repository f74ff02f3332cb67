"""What the environment says. The only place that reads or changes environment variables."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app_toolkit.config.options import Options

RUNTIME_DIR = "APP_TOOLKIT_RUNTIME_DIR"

ALSO = {"port": "PORT", "forwarded_allow_ips": "FORWARDED_ALLOW_IPS", "address": "RAY_ADDRESS"}
"""Names that others gave: platforms that run containers, which FastAPI's command line follows; uvicorn; and Ray."""


SERVED = "APP_TOOLKIT_DEV_TARGET"
"""Between `dev` and the processes that it starts."""


class Settings(Options):
    """`APP_TOOLKIT_*` variables; each is overridden by the option of the same name. An empty one is not set."""

    @classmethod
    def called(cls, option: str = "") -> str:
        return f"the environment variable {_variable(option)}"


def read_settings() -> Settings:
    """The settings of this process. Raises `ConfigError` for a variable that does not hold what it should."""
    given: dict[str, Any] = {option: os.environ.get(_variable(option)) for option in Settings.model_fields}
    if given["address"] == "local":  # with which Ray starts one of its own, as we do without an address
        del given["address"]
    return Settings(**{option: value for option, value in given.items() if value})


def _variable(option: str) -> str:
    """The one that counts."""
    ours = f"APP_TOOLKIT_{option.upper()}"
    return ours if os.environ.get(ours) else ALSO.get(option, ours)


def read_variables(names: Iterable[str]) -> dict[str, str]:
    """Those of the variables that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def wants_debugger() -> bool:
    """Whether `breakpoint()` in a replica waits for a debugger."""
    return os.environ.get("APP_TOOLKIT_DEBUGGER") == "1"


def runtime_folder() -> Path:
    """Where the sockets, locks, logs and unpacked files of this user's processes are, on this machine."""
    return Path(os.environ.get(RUNTIME_DIR) or tempfile.gettempdir()) / f"app_toolkit-{os.geteuid()}"


def say_development() -> None:
    """Tell the app that this is a developer's machine, unless somebody has named the environment already."""
    os.environ.setdefault("FASTAPI_ENV", "development")


def say_served(target: str) -> None:
    """Tell the processes that `dev` starts which target they serve."""
    os.environ[SERVED] = target


def read_served() -> str:
    """What `say_served` was told."""
    return os.environ[SERVED]


LOG_LEVEL = "APP_TOOLKIT_LOG_LEVEL"


def say_log_level(level: str) -> None:
    """The level for this process's children, among them the replicas of a local Ray."""
    os.environ[LOG_LEVEL] = level


def log_level() -> str:
    """The level for replicas, as the environment of their node says it."""
    level = os.environ.get(LOG_LEVEL, "").lower()
    return level if level in ("debug", "info", "warning", "error", "critical") else "info"


def say_plain_logs(colour: bool) -> None:
    """Have Ray pass on every line that a worker logs, and colour none where nobody sees it. Before Ray is imported."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if not colour:
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def keep_priority() -> None:
    """Have Ray run what serves at an ordinary priority: by default its workers give way to every other process.

    Before Ray is started; on a cluster that is joined, whoever started it has decided.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")


def start_no_ray() -> bool:
    """Have Ray start no cluster by itself for whoever uses it without `ray.init()`; before Ray is imported.

    False where somebody has said otherwise.
    """
    return os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0") == "0"


def ray_decides_by_token() -> bool:
    """Whether Ray shows an access token of its own to a cluster. It may also be told to show none, or another kind."""
    return os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"


def ray_token() -> str | None:
    """The access token that Ray shows to a cluster, from the first place that has one."""
    if not ray_decides_by_token():
        return None
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token.strip()
    with suppress(OSError):
        return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or ray_token_path()).expanduser().read_text().strip()
    return None


def ray_uses_tls() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def ray_makes_token() -> bool:
    """Whether Ray makes a token at `ray_token_path` for a new cluster, if there is none: no other one is configured."""
    configured = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return ray_decides_by_token() and not configured


def ray_token_path() -> Path:
    """The file in which Ray looks for its access token, unless another one is configured."""
    return Path.home() / ".ray" / "auth_token"


def ray_folder() -> Path:
    """The folder in which a local Ray keeps its files; the paths of its sockets are too long for most others."""
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp")


def hide_devices() -> None:
    """For a process that asked for no GPU: Ray leaves all of them visible to it. Before user code is imported."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
