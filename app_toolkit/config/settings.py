"""Environment variables. Only this module, and the one of an engine for its own variables, read or change them."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from app_toolkit.config.fields import marked
from app_toolkit.config.models import REDIS_URL, HTTPOptions
from app_toolkit.config.options import Options, StartOptions

RUNTIME_DIR = "APP_TOOLKIT_RUNTIME_DIR"

ALSO = {"port": "PORT", "forwarded_allow_ips": "FORWARDED_ALLOW_IPS", "address": "RAY_ADDRESS"}
"""Variables that other programs define: container platforms and FastAPI's command line, uvicorn, and Ray."""


SERVED = "APP_TOOLKIT_DEV_TARGET"
"""The variable by which `dev` passes the target to the processes that it starts."""


class Settings(Options):
    """The options in `APP_TOOLKIT_*` variables. A command line option of the same name overrides a variable.

    An empty variable counts as not set.
    """

    @classmethod
    def display_name(cls, option: str = "") -> str:
        return f"the environment variable {_variable(option)}"


def read_settings(*, ours: bool = False) -> Settings:
    """Return the settings of this process. `ours`: only those in `APP_TOOLKIT_*` variables.

    Raises `ConfigError` if the value of a variable is invalid.
    """
    variables = {option: _variable(option) for option in Settings.model_fields}
    values: dict[str, Any] = {
        option: os.environ.get(variable)
        for option, variable in variables.items()
        if not ours or variable not in ALSO.values()
    }
    if values.get("address") == "local":  # makes Ray start a local cluster, as `run` does without an address
        del values["address"]
    return Settings(**{option: value for option, value in values.items() if value})


def _variable(option: str) -> str:
    """Return the variable that sets an option. `APP_TOOLKIT_*` overrides the one in `ALSO`."""
    ours = _ours(option)
    return ours if os.environ.get(ours) else ALSO.get(option, ours)


def _ours(option: str) -> str:
    return f"APP_TOOLKIT_{option.upper()}"


def read_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the values of those variables that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def all_variables() -> dict[str, str]:
    """Return a copy of the environment variables of this process. Some may be secrets."""
    return dict(os.environ)


def set_variables(variables: Mapping[str, str]) -> None:
    """Set environment variables of this process, and of those that it starts."""
    os.environ.update(variables)


def values_of(is_wanted: Callable[[str], bool]) -> list[str]:
    """Return the values of the variables with a wanted name."""
    return [value for name, value in os.environ.items() if is_wanted(name)]


def redis_url() -> str | None:
    """Return the value of `APP_TOOLKIT_REDIS_URL`; None: it is not set.

    It is the URL of the Redis server of the options `stream_log = "redis"` and `rate_limit_storage = "redis"`, and may
    have a password.
    """
    return os.environ.get(REDIS_URL) or None


ADMIN_TOKEN = "APP_TOOLKIT_ADMIN_TOKEN"
"""The environment variable with the token of the admin API."""


def admin_token() -> str | None:
    """Return the token of the admin API from the environment; None: it is not set."""
    return os.environ.get(ADMIN_TOKEN) or None


def hide_admin_token() -> None:
    """Remove the token of the admin API from the environment of this process, and of those that it starts."""
    os.environ.pop(ADMIN_TOKEN, None)


def exports_traces() -> bool:
    """Return whether the standard variables of OpenTelemetry name a collector for traces."""
    collector = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return bool(collector) and not is_off and os.environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "otlp"


def names_service() -> bool:
    """Return whether the standard variables of OpenTelemetry name the service."""
    resource = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in resource


def request_options() -> HTTPOptions:
    """Return the options of the proxies that apply to an app in one process.

    Raises `ConfigError` if the value of a variable is invalid.
    """
    values: dict[str, Any] = {
        option: os.environ.get(_variable(option)) for option in marked(HTTPOptions, "in_one_process")
    }
    return Settings(**{option: value for option, value in values.items() if value}).part(HTTPOptions)


def runtime_folder() -> Path:
    """Return the folder for the sockets, locks, logs and unpacked files of this user's processes on this machine."""
    return Path(os.environ.get(RUNTIME_DIR) or tempfile.gettempdir()) / f"app_toolkit-{os.geteuid()}"


DATA = "APP_TOOLKIT_DATA"
"""The variable with the folder in which an app keeps its data."""


def data_folder() -> str:
    """Return the folder in which the app of this process keeps its data; empty: it is not set."""
    return os.environ.get(DATA, "")


def set_data_folder(folder: Path) -> None:
    """Set the folder in which the app of this process keeps its data."""
    os.environ[DATA] = str(folder)


def user_data_folder() -> Path:
    """Return the folder for data of this user's applications. Raises `RuntimeError` if the user has no home."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "app_toolkit"


def set_development() -> None:
    """Set `FASTAPI_ENV` to `development`, unless it is set already."""
    os.environ.setdefault("FASTAPI_ENV", "development")


def set_served(target: str) -> None:
    """Set the target for the processes that `dev` starts."""
    os.environ[SERVED] = target


def read_served() -> str:
    """Return the target that `set_served` has set."""
    return os.environ[SERVED]


class _Started(StartOptions):
    @classmethod
    def display_name(cls, option: str = "") -> str:
        return f"the environment variable {_ours(option)}"


def set_start_options(options: StartOptions) -> None:
    """Set the options with which this process starts an instance, for itself and for all processes that it starts."""
    for name in StartOptions.model_fields:
        value = getattr(options, name)
        os.environ[_ours(name)] = "" if value is None else value if isinstance(value, str) else json.dumps(value)


def set_address(address: str) -> None:
    """Set the address of the instance for the processes that this one starts, whose handles and clients then use it."""
    os.environ[_ours("address")] = address


def only_at_start(option: str) -> str:
    """Return why a running instance does not take a `StartOptions`, and where to set it, as a part of a sentence."""
    return (
        f"the instance runs already, and takes it when it starts; on a Ray cluster, from {_ours(option)} of its nodes"
    )


def start_options() -> StartOptions:
    """Return the options with which the instance of this process was started, from the environment.

    Raises `ConfigError` if the value of a variable is invalid.
    """
    variables: dict[str, Any] = {name: os.environ.get(_ours(name)) for name in StartOptions.model_fields}
    return _Started(**{name: value for name, value in variables.items() if value})


DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the GPUs that a process may use."""


def hide_devices() -> None:
    """Hide all GPUs from this process, which has requested none.

    Call before importing user code.
    """
    set_devices("")


def set_devices(devices: str) -> None:
    """Set the GPUs that this process may use, separated by commas."""
    os.environ[DEVICES] = devices


def visible_devices() -> list[str] | None:
    """Return the GPUs that this process may use; None: the environment does not say."""
    named = os.environ.get(DEVICES)
    return None if named is None else [device.strip() for device in named.split(",") if device.strip()]


THREADS = "OMP_NUM_THREADS"
"""The environment variable with the number of threads that libraries for computations start."""


def variables_of_threads(num_cpus: float) -> dict[str, str]:
    """Return the variable with the number of threads for a process with so many CPUs, as Ray sets it.

    Empty: the environment of this process sets it already.
    """
    return {} if os.environ.get(THREADS) else {THREADS: str(max(1, int(num_cpus)))}
