"""The options of `run`. They have the same name, bounds and default in every source that can set them."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar

from pydantic import BeforeValidator, Field, field_validator

from app_toolkit.config.models import (
    STREAM_LOG,
    ApplicationConfig,
    ApplicationSpec,
    HTTPOptions,
    Model,
    Name,
    StreamLogChoice,
)
from app_toolkit.types import LoopKind

M = TypeVar("M", bound=Model)


class PlanOptions(Model):
    """Options for planning an app, in addition to those in its code."""

    name: Annotated[Name, Field(description="the application's name")] = "default"
    route_prefix: Annotated[
        str,
        ApplicationSpec.model_fields["route_prefix"],
        Field(description="the path under which the application is served"),
    ] = "/"
    stream_log: Annotated[
        StreamLogChoice | None,
        Field(
            description=STREAM_LOG,
            json_schema_extra={"none": "the one in the code, otherwise shared if several replicas may have streams"},
        ),
    ] = None
    loop: Annotated[LoopKind, ApplicationConfig.model_fields["loop"]] = "uvloop"
    num_replicas: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000,
            description="replicas of each ingress that sets no number",
            json_schema_extra={"none": "the number in the code or the file"},
        ),
    ] = None

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of `planning.plan`."""
        options = {name: getattr(self, name) for name in PlanOptions.model_fields}
        of_application = {name: options.pop(name) for name in ApplicationConfig.model_fields if name in options}
        values = {name: value for name, value in of_application.items() if value is not None}
        return {**options, "config": ApplicationConfig(**values)}


def _as_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('should be JSON, such as {"NPU": 2}') from None


class TrafficOptions(Model):
    """The traffic of a revision that starts beside the running one."""

    percent: Annotated[float, Field(ge=0, le=100, description="the percentage of the requests that it gets")] = 0.0
    tag: Annotated[str | None, Field(description="the name by which clients select it")] = None
    mirror: Annotated[
        float, Field(ge=0, le=100, description="the percentage of the requests of the others that it gets copies of")
    ] = 0.0

    @classmethod
    def given(cls, percent: float | None, tag: str | None, mirror: float | None) -> Self | None:
        """Return the options that `deploy` has got. None: none of them, so the revision replaces the running one.

        Raises `ConfigError` if a percentage is not between 0 and 100.
        """
        if percent is None and tag is None and mirror is None:
            return None
        return cls(percent=percent or 0, tag=tag, mirror=mirror or 0)

    @classmethod
    def display_name(cls, option: str = "") -> str:
        return "traffic" if option in ("", "percent") else option  # as of `deploy`


class InstanceOptions(HTTPOptions):
    """The options that all applications of an instance share."""

    address: Annotated[
        str | None,
        Field(
            description="the instance or the Ray cluster to join, HOST:PORT, processes-PID or auto",
            json_schema_extra={"none": "none: an instance of its own"},
        ),
    ] = None


class StartOptions(Model):
    """The options that an instance gets when it starts, and keeps until it ends.

    Each of its processes reads all of them with `settings.start_options`, and the status shows them. To add one, add a
    field here and its type to `RunKeywords`.
    """

    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        Field(description="the lowest level that is logged by an app that does not configure logging itself"),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Field(description="the format of log records, text or json, of an app that does not configure logging itself"),
    ] = "text"
    log_file: Annotated[
        Literal["-"] | None,
        Field(
            description="where `run` writes the log records of all processes of the instance that it starts; -: "
            "standard output, and its own messages go to standard error",
            json_schema_extra={"none": "none: replicas log to standard error", "metavar": "-"},
        ),
    ] = None
    resources: Annotated[
        dict[str, Annotated[float, Field(ge=0, le=1e18)]] | None,
        BeforeValidator(_as_json),
        Field(
            description="what replicas may reserve on the machine that `run` starts an instance on, by name, as JSON; "
            "with CPU, they wait for CPUs",
            json_schema_extra={"none": "the GPUs and the memory that the machine has", "metavar": "JSON"},
        ),
    ] = None

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _in_small_letters(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


EngineName = Literal["processes", "ray"]


class Options(InstanceOptions, StartOptions, PlanOptions):
    """All options: those that one source sets, or those that result from all sources."""

    admin_url: Annotated[
        str | None,
        Field(description="the admin API of the instance to operate, http://HOST:PORT, instead of its address"),
    ] = None
    engine: Annotated[
        EngineName | None,
        Field(
            description="what runs the replicas of an instance that `run` starts: processes of this machine, or ray",
            json_schema_extra={
                "none": "ray with the address of a Ray cluster, otherwise processes",
                "metavar": "processes|ray",
            },
        ),
    ] = None

    @field_validator("ssl_keyfile", "ssl_certfile")
    @classmethod
    def _begin_at_the_root(cls, path: str | None) -> str | None:
        return str(Path(path).absolute()) if path else None  # proxies run in another folder

    @field_validator("access_log")
    @classmethod
    def _begin_log_at_the_root(cls, value: bool | str) -> bool | str:
        return value if isinstance(value, bool) or value == "-" else str(Path(value).absolute())

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set explicitly."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def part(self, model: type[M]) -> M:
        return model(**{name: getattr(self, name) for name in model.model_fields})


class RunKeywords(TypedDict, total=False):
    """The `Options` of `run` in Python, for type checkers."""

    name: str
    route_prefix: str
    stream_log: str | None
    loop: Literal["uvloop", "asyncio"]
    num_replicas: int | None
    address: str | None
    host: str
    port: int
    edge: Literal["proxy", "replica"]
    proxies_per_node: int
    keep_alive_timeout_s: float
    head_timeout_s: float
    min_body_rate: float
    body_grace_s: float
    max_connections: int | None
    max_requests_per_client: int | None
    tag_source: str | None
    server_timing: bool
    rate_limit_storage: str
    forwarded_allow_ips: str
    ssl_keyfile: str | None
    ssl_certfile: str | None
    access_log: bool | str
    admin: bool
    admin_host: str
    admin_port: int | None
    log_level: Literal["debug", "info", "warning", "error", "critical"]
    log_format: Literal["text", "json"]
    log_file: Literal["-"] | None
    resources: dict[str, float] | None
    engine: EngineName | None
