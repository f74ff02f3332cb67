"""Every option of a deployment, defined once: unit, default, bounds, and whether a change restarts replicas."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from app_toolkit.config.affinity import key_sources
from app_toolkit.config.fields import MODULE, OBJECT, SecretValue, marked, merge, nearest, sentence
from app_toolkit.config.log_config import logging_config
from app_toolkit.config.rate_limit import counted_by, rate_limit
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import Kind, LoopKind, OnDisconnect, Retry

NAME_PATTERN = r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
RESTARTS = {"restarts": True}
"""Marks the options that a replica reads only when it starts: a change of one restarts the replicas. All other options
are applied by callers or the controller, or reloaded by running replicas (`reloadable_options`)."""


Capability = Literal["processes", "nodes", "resources", "limits", "ray", "edge"]
"""What an engine can do beyond one replica in one process: start processes, place them on several nodes, reserve
resources for them, limit what they use, apply the options in the table `ray`, and let replicas accept clients."""


PROCESSES: dict[str, JsonValue] = {"needs": "processes"}
"""Marks the options that have no effect in an engine without this capability. Options with another one say `needs`."""


IN_ONE_PROCESS: dict[str, JsonValue] = {"in_one_process": True}
"""Marks the options of the proxies that apply to an app in one process, too."""


UNINTERPRETED = ("user_config", "resources.ray.runtime_env")
"""The options, by dotted name, whose values only user code or the engine interprets. Their texts may be secret, and may
refer to variables of the environment."""


class Model(BaseModel):
    """The base class of option models, whose instances are frozen.

    An option that does not exist is an error. The message names the option and the nearest one. The
    text below an option describes it: see `fields.description`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ConfigError(self.explain(error)) from None

    @classmethod
    def display_name(cls, option: str = "") -> str:
        """Return the name of an option of this model in messages; without an option, the name of the model."""
        return f"{cls.__name__}.{option}" if option else cls.__name__

    @classmethod
    def explain(cls, error: ValidationError) -> str:
        """Return one sentence for each mistake, with the option, the value and the limit."""
        return "; ".join(sentence(mistake, cls.display_name, cls) for mistake in error.errors(include_url=False))


Count = Annotated[int, Field(ge=1, le=1_000)]
_count = TypeAdapter(Count)


def _count_or_auto(value: Any, either: ValidatorFunctionWrapHandler) -> Any:
    try:
        return either(value if value == "auto" else _count.validate_python(value))
    except ValidationError as error:  # only of the number: a union would report two errors
        raise ValueError(f'{error.errors()[0]["msg"]}, or "auto"') from None


def _amount(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1000:
        return value
    if isinstance(value, str) and re.fullmatch(r"(100|[1-9]?[0-9])%", value):
        return value
    raise ValueError('should be a number of replicas up to 1,000, or a share of them such as "25%"')


Amount = Annotated[int | str, BeforeValidator(_amount)]
"""A number of replicas, or a share of the desired replicas, such as "25%"."""


RUNTIME_ENV = frozenset(
    {
        "conda",
        "config",
        "container",
        "env_vars",
        "excludes",
        "image_uri",
        "java_jars",
        "nsight",
        "pip",
        "py_executable",
        "py_modules",
        "rocprof_sys",
        "uv",
        "worker_process_setup_hook",
        "working_dir",
    }
)
"""The keys of a `runtime_env` that Ray supports. Ray ignores other keys. A test compares these keys with Ray's own."""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


class RayOptions(Model):
    """Options of one replica that only the engine on Ray applies."""

    accelerator_type: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_.-]+$")] = None
    """accelerator type that the node must have, by Ray's name: `H100`, `L4`"""
    runtime_env: dict[str, JsonValue] | None = None
    """Ray's runtime environment of the replica's process"""

    @model_validator(mode="after")
    def _check_runtime_env(self) -> Self:
        # This validates the whole model, because an error of one field shows its value, which may be a secret.
        for key in (self.runtime_env or {}).keys() - RUNTIME_ENV:
            meant = nearest(key, RUNTIME_ENV)
            raise ValueError(f"Ray's runtime_env has no key {key!r}{meant or f'; it has {_listed(RUNTIME_ENV)}'}")
        variables = (self.runtime_env or {}).get("env_vars", {})
        if not isinstance(variables, Mapping) or not all(isinstance(value, str) for value in variables.values()):
            raise ValueError("env_vars of the runtime_env should be a table of texts; put numbers in quotes")
        return self


def _gpus(number: float) -> float:
    if number > 1 and number != int(number):
        raise ValueError("it should be a whole number, or less than 1")
    return number


class ResourceOptions(Model):
    """Resources that one replica requests from its engine, which reserves them."""

    num_cpus: Annotated[float, Field(ge=0, le=1024)] = 0.1
    """logical CPUs"""
    num_gpus: Annotated[float, Field(ge=0, le=64), AfterValidator(_gpus)] = 0
    """logical GPUs; fractions share one"""
    memory: Annotated[int | None, Field(ge=1)] = None
    """bytes of memory to reserve; on processes, also the most that a replica gets"""
    nice: Annotated[int, Field(ge=0, le=19, json_schema_extra={"needs": "limits"})] = 0
    """by how much the priority of a replica is lower than that of other processes"""
    custom: dict[str, float] = {}
    """custom resources by name"""
    ray: Annotated[RayOptions, Field(json_schema_extra={"needs": "ray"})] = RayOptions()
    """options that only the engine on Ray applies"""


def _affinity(option: str | None) -> str | None:
    if option is not None:
        key_sources(option)
    return option


def _tag_source(option: str | None) -> str | None:
    if option is not None:
        sources = key_sources(option)
        if len(sources) > 1 or not sources[0].name:
            raise ValueError("should be header:NAME, query:NAME or cookie:NAME")
    return option


def _rate_limit(option: str | None) -> str | None:
    if option is not None:
        rate_limit(option)
    return option


def _rate_limit_by(option: str) -> str:
    counted_by(option)
    return option


def _route_prefix(prefix: str | None) -> str | None:
    if prefix is not None and not re.fullmatch(r"/([^/?#\s]+(/[^/?#\s]+)*)?", prefix):
        plain = "/".join(part for part in re.split(r"[/?#\s]+", prefix) if part)
        raise ValueError(
            f"a route prefix begins with a slash, does not end with one, and has no ?, # or space, such as '/{plain}'"
        )
    return prefix


def _routing_policy(option: str | None) -> str | None:
    if option is None or option == "prefix":
        return option
    if not re.fullmatch(f"{MODULE}:{OBJECT}", option):
        raise ValueError("should be prefix, or the import path of a function, such as package.module:function")
    if option.startswith("__main__:"):
        raise ValueError("other processes cannot import a function of __main__: put it into a module")
    return option


class Faults(Model):
    """Faults that requests get on purpose, to test what clients do then. Only this option causes them."""

    delay_s: Annotated[float | None, Field(gt=0, le=86_400)] = None
    """seconds that a delayed request waits before it asks for a replica"""
    delay_percent: Annotated[float, Field(ge=0, le=100)] = 0.0
    """percentage of the requests that are delayed"""
    abort_status: Annotated[int | None, Field(ge=400, le=599)] = None
    """status of the response to an aborted request, which no replica gets"""
    abort_percent: Annotated[float, Field(ge=0, le=100)] = 0.0
    """percentage of the requests that are aborted"""
    headers: bool = False
    """whether a request may name its own faults in X-Fault-Delay-Ms and X-Fault-Abort-Status"""

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        for one, other in (("delay_s", "delay_percent"), ("abort_status", "abort_percent")):
            for option, needed in ((one, other), (other, one)):
                if getattr(self, option) and not getattr(self, needed):
                    raise ValueError(f"{option} has no effect without {needed}")
        return self

    @property
    def summary(self) -> str:
        """What requests get, as a phrase; empty: no faults."""
        delay = f"a delay of {self.delay_s:g} s for {self.delay_percent:g} % of the requests" if self.delay_s else ""
        abort = f"status {self.abort_status} for {self.abort_percent:g} % of the requests" if self.abort_status else ""
        return ", ".join(filter(None, (delay, abort, "what headers ask for" if self.headers else "")))


class IngressPolicy(Model):
    """Options that callers of an ingress apply, and callers of a class, too."""

    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1_000
    """maximum requests that wait in one caller; further ones are refused with 503"""
    max_queue_wait_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """seconds a request may wait for a replica before it is refused with 503"""
    request_timeout_s: Annotated[float | None, Field(gt=0, le=86_400)] = None
    """seconds that a request may take, including its wait; then the client gets 504, or the response is aborted"""
    max_body_size: Annotated[int | None, Field(ge=0)] = None
    """maximum bytes of a request body; a larger one is refused with 413"""
    affinity: Annotated[str | None, AfterValidator(_affinity)] = None
    """where requests have the key of their session: header:NAME, query:NAME, cookie:NAME, cookie, client, or several"""
    rate_limit: Annotated[str | None, AfterValidator(_rate_limit)] = None
    """maximum requests of one client in a second, minute, hour or day: 100/minute; further ones get 429"""
    rate_limit_by: Annotated[str, AfterValidator(_rate_limit_by)] = "client"
    """what identifies a client: client (its address), session, header:NAME, query:NAME or cookie:NAME"""
    retry: Annotated[Retry, Field(json_schema_extra=PROCESSES)] = "idempotent"
    """lost requests that are retried; idempotent: GET, HEAD, OPTIONS, PUT, DELETE, TRACE, and `@idempotent` methods"""
    faults: Faults | None = None
    """faults that requests and calls get on purpose; None: none"""


class Policy(IngressPolicy):
    """Options that callers of a deployment apply. A change takes effect at once and restarts nothing."""

    routing_policy: Annotated[str | None, AfterValidator(_routing_policy), Field(json_schema_extra=PROCESSES)] = None
    """what chooses the replica of a call: prefix, the longest known part of its conversation, or module:function"""


class AutoscalingConfig(Model):
    """Options of autoscaling: bounds, target and delays.

    The load is the number of requests that wait or are ongoing, and a share for each open WebSocket and stream.

    Raises:
        ConfigError: An option is unknown or out of bounds, or two options contradict each other.
    """

    min_replicas: Annotated[int, Field(ge=0, le=1_000)] = 1
    """minimum number of replicas; 0: no replica while there is no load"""
    initial_replicas: Annotated[int | None, Field(ge=0, le=1_000)] = None
    """replicas of a new deployment; None: `min_replicas`"""
    max_replicas: Annotated[int, Field(ge=1, le=1_000)] = 100
    """maximum number of replicas"""
    target_ongoing_requests: Annotated[float, Field(gt=0, le=100_000)] = 2.0
    """load that one replica should have"""
    look_back_period_s: Annotated[float, Field(ge=0.1, le=3_600)] = 5.0
    """seconds over which the load is averaged"""
    upscale_delay_s: Annotated[float, Field(ge=0, le=86_400)] = 0.5
    """seconds for which more replicas must be needed before they start"""
    downscale_delay_s: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    """seconds for which fewer replicas must be enough before one drains"""
    downscale_to_zero_delay_s: Annotated[float | None, Field(ge=0, le=86_400)] = None
    """seconds without load before the last replica drains; None: `downscale_delay_s`"""
    upscaling_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the missing replicas that start within one `upscale_delay_s`"""
    downscaling_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the surplus replicas that drain within one `downscale_delay_s`"""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        least, most, first = self.min_replicas, self.max_replicas, self.initial_replicas
        if least > most:
            raise ValueError(f"min_replicas = {least} is more than max_replicas = {most}")
        if first is not None and first < least:
            raise ValueError(f"initial_replicas = {first} is less than min_replicas = {least}")
        if first is not None and first > most:
            raise ValueError(f"initial_replicas = {first} is more than max_replicas = {most}")
        for way, factor, delay in (
            ("up", self.upscaling_factor, self.upscale_delay_s),
            ("down", self.downscaling_factor, self.downscale_delay_s),
        ):
            if factor < 1 and not delay:
                raise ValueError(f"{way}scaling_factor = {factor:g} has no effect with {way}scale_delay_s = 0")
        return self

    @property
    def starting_replicas(self) -> int:
        """The number of replicas before any load is reported."""
        return self.min_replicas if self.initial_replicas is None else self.initial_replicas


class RecyclingConfig(Model):
    """The limits after which a replica is replaced while it works. The new one starts first, and the old one drains.

    Raises:
        ConfigError: An option is unknown or out of bounds, or no limit is set.
    """

    max_requests: Annotated[int | None, Field(ge=1, le=1_000_000_000)] = None
    """requests, calls and WebSockets after which a replica is replaced; counted at its health checks"""
    max_memory: Annotated[int | None, Field(ge=1)] = None
    """bytes of resident memory after which a replica is replaced; measured at its health checks"""
    max_age_s: Annotated[float | None, Field(ge=10, le=31_536_000)] = None
    """seconds of service after which a replica is replaced"""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1
    """largest share by which `max_requests` and `max_age_s` of a replica are lower, so that they differ"""

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if self.max_requests is None and self.max_age_s is None and self.max_memory is None:
            raise ValueError("one of max_requests, max_age_s and max_memory should be set")
        return self


class BatchLimits(BaseModel):
    """Limits of one batch method or endpoint. None: the limit of the function itself.

    This is not a `Model`: the options that contain it report its mistakes, with the name of the function.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    max_batch_size: Annotated[int | None, Field(ge=1, le=1_000_000_000)] = None
    """items in one batch, or the sum of their sizes"""
    batch_wait_timeout_s: Annotated[float | None, Field(ge=0, le=3_600)] = None
    """seconds that the first item of a batch waits for others"""
    max_concurrent_batches: Annotated[int | None, Field(ge=1, le=1_000)] = None
    """batches that run at the same time"""


class DeploymentConfig(IngressPolicy):
    """Options of an ingress: a deployment that serves routes.

    If two `include_router` calls name the same deployment, they must agree on every option that they set.

    Raises:
        ConfigError: An option is unknown or out of bounds.
    """

    name: Name
    """letters, digits, `-` and `_`; unique within its application"""
    num_replicas: Annotated[
        Count | Literal["auto"], WrapValidator(_count_or_auto), Field(json_schema_extra=PROCESSES)
    ] = 1
    """number of replicas; auto: set by autoscaling"""
    autoscaling_config: Annotated[AutoscalingConfig | None, Field(json_schema_extra=PROCESSES)] = None
    """options of autoscaling; if given, `num_replicas` is auto"""
    max_ongoing_requests: Annotated[int, Field(ge=1, le=100_000)] = 100
    """maximum requests that one replica runs at a time"""
    max_open_websockets: Annotated[int, Field(ge=0, le=1_000_000)] = 1_000
    """maximum open WebSockets of one replica"""
    max_open_streams: Annotated[int, Field(ge=0, le=1_000_000)] = 1_000
    """maximum open streams of one replica that do not count against `max_ongoing_requests`; further streams count"""
    on_disconnect: Annotated[OnDisconnect, Field(json_schema_extra=RESTARTS)] = "auto"
    """whether a handler is cancelled when its client disconnects; auto: streams, WebSockets, GET and HEAD"""
    max_replicas_per_node: Annotated[
        int | None, Field(ge=1, le=100, json_schema_extra={**RESTARTS, "needs": "nodes"})
    ] = None
    """maximum replicas on one node; further ones wait for another node. None: no limit"""
    max_surge: Annotated[Amount, Field(json_schema_extra=PROCESSES)] = "25%"
    """extra replicas during an update; a share, "25%", is rounded up"""
    max_unavailable: Annotated[Amount, Field(json_schema_extra=PROCESSES)] = 0
    """replicas that may be missing during an update; a share is rounded down"""
    min_healthy_s: Annotated[float, Field(ge=0, le=3_600, json_schema_extra=PROCESSES)] = 0.0
    """seconds that a new, healthy replica must have served before an old one drains for it"""
    startup_timeout_s: Annotated[float, Field(gt=0, le=86_400, json_schema_extra=PROCESSES)] = 300.0
    """seconds from placement until a replica must be ready"""
    graceful_shutdown_timeout_s: Annotated[float, Field(ge=0, le=86_400, json_schema_extra=PROCESSES)] = 20.0
    """seconds that a draining replica has to finish; then it is killed"""
    health_check_period_s: Annotated[float, Field(gt=0, le=3_600, json_schema_extra=PROCESSES)] = 5.0
    """seconds between two health checks"""
    health_check_timeout_s: Annotated[float, Field(gt=0, le=3_600, json_schema_extra=PROCESSES)] = 5.0
    """seconds that a health check may take"""
    health_check_failure_threshold: Annotated[int, Field(ge=1, le=1_000, json_schema_extra=PROCESSES)] = 3
    """failed health checks in a row after which a replica is replaced"""
    recycling: Annotated[RecyclingConfig | None, Field(json_schema_extra=PROCESSES)] = None
    """limits after which a replica is replaced while it works; None: it is not"""
    resources: Annotated[ResourceOptions, Field(json_schema_extra={**RESTARTS, "needs": "resources"})] = (
        ResourceOptions()
    )
    batch: dict[str, BatchLimits] = {}
    """limits of `@batch` endpoints or methods, by name of the function; they override the code"""

    @model_validator(mode="before")
    @classmethod
    def _normalize_autoscaling(cls, data: Any) -> Any:
        """Derive `num_replicas` or `autoscaling_config` from the other, if only one of them asks for autoscaling.

        Both are then set, so that a dump of the model is valid input.
        """
        if not isinstance(data, Mapping):
            return data
        config = data.get("autoscaling_config")
        number = data.get("num_replicas", 1 if config is None else "auto")
        if config is None and number != "auto":
            return data
        if number != "auto":
            raise ValueError(f"num_replicas = {number!r} contradicts autoscaling_config: set only one of them")
        return {**data, "num_replicas": number, "autoscaling_config": config or {}}

    @model_validator(mode="after")
    def _check_rolling_update(self) -> Self:
        if {self.max_surge, self.max_unavailable} <= {0, "0%"}:
            raise ValueError("max_surge and max_unavailable are both 0: no replica could ever be replaced")
        return self

    @property
    def starting_replicas(self) -> int:
        """The number of replicas before any load is reported."""
        if self.autoscaling_config is not None:
            return self.autoscaling_config.starting_replicas
        return int(self.num_replicas)

    @property
    def least_replicas(self) -> int:
        """The fewest replicas that run while nothing has failed."""
        return int(self.num_replicas) if self.autoscaling_config is None else self.autoscaling_config.min_replicas

    @property
    def max_replicas(self) -> int:
        """The most replicas that requests can be spread over, without those that an update replaces."""
        return int(self.num_replicas) if self.autoscaling_config is None else self.autoscaling_config.max_replicas

    def without_effect(self, capabilities: Collection[Capability]) -> tuple[str, ...]:
        """Return the options, by dotted name, that differ from their defaults and have no effect in an engine."""
        return tuple(_without_effect(self, capabilities))

    @property
    def uninterpreted(self) -> dict[str, Any]:
        """The values of the options `UNINTERPRETED` that are set."""
        values = {option: reduce(_part, option.split("."), self) for option in UNINTERPRETED}
        return {option: value for option, value in values.items() if value is not None}

    @property
    def reloadable_options(self) -> ReloadableOptions:
        """The options that running replicas reload."""
        batch = {name: limits.model_dump(exclude_none=True) for name, limits in self.batch.items()}
        return ReloadableOptions(
            self.max_ongoing_requests, self.max_open_websockets, self.max_open_streams, batch=batch
        )

    @property
    def policy(self) -> Policy:
        """The options that callers apply."""
        fields = type(self).model_fields.keys() & Policy.model_fields.keys()
        return Policy(**{name: getattr(self, name) for name in fields})


def _part(options: Any, name: str) -> Any:
    return getattr(options, name, None)


def _without_effect(
    options: Model, capabilities: Collection[Capability], needed: JsonValue = None, prefix: str = ""
) -> Iterator[str]:
    """Yield the changed options without an effect. `needed`: the capability for options that are not marked."""
    for name, field in type(options).model_fields.items():
        extra, value = field.json_schema_extra, getattr(options, name)
        capability = extra.get("needs", needed) if isinstance(extra, dict) else needed
        if value == field.default:
            continue
        if isinstance(value, ResourceOptions | RayOptions):
            yield from _without_effect(value, capabilities, capability, f"{prefix}{name}.")
        elif capability is not None and capability not in capabilities:
            yield f"{prefix}{name}"


class ClassResources(ResourceOptions):
    """The resources of a replica of a class. The default is a whole CPU: a model computes, an ingress mostly waits."""

    num_cpus: Annotated[float, Field(ge=0, le=1024)] = 1
    """logical CPUs"""


class ClassConfig(DeploymentConfig, Policy):
    """Options of a class: those of an ingress, and those that apply only to objects."""

    max_ongoing_requests: Annotated[int, Field(ge=1, le=100_000)] = 16
    """maximum calls that one replica runs at a time; by default 16, or as many as its batches need"""
    resources: Annotated[ClassResources, Field(json_schema_extra={**RESTARTS, "needs": "resources"})] = ClassResources()
    sync_threads: Annotated[int, Field(ge=1, le=64, json_schema_extra=RESTARTS)] = 1
    """threads that run the constructor and the `def` methods of one replica"""
    user_config: dict[str, JsonValue] | None = None
    """value that `reconfigure` receives, at the start and after each change"""

    @property
    def reloadable_options(self) -> ReloadableOptions:
        return replace(super().reloadable_options, user_config=self.user_config)

    @classmethod
    def display_name(cls, option: str = "") -> str:
        return option or "a class"


class CallOptions(Model):
    """Options of the calls of one handle. An option that is not set has the value of the deployment."""

    timeout_s: Annotated[float | None, Field(gt=0, le=86_400)] = None
    """seconds that each call may take, queue included"""
    retry: Retry | None = None
    """calls that are retried when a replica is lost with them"""
    affinity: Annotated[str | None, Field(min_length=1, max_length=512)] = None
    """calls with the same key prefer the same replica, for example the one that has loaded a model"""
    shard_key: Annotated[str | None, Field(min_length=1, max_length=512)] = None
    """calls with the same key go to the same member of a split; replaces the key of the request"""

    @classmethod
    def display_name(cls, option: str = "") -> str:
        return option or "options()"


REDIS_URL = "APP_TOOLKIT_REDIS_URL"
"""The environment variable with the URL of the Redis server for `stream_log` and `rate_limit_storage` = "redis"."""


def stream_log(choice: str) -> str:
    """Return a value of the option `stream_log`. Raises `ValueError`, whose message shows no URL."""
    return _word_or_redis(choice, ("memory", "shared", "redis"), "replicas")


def _rate_limit_storage(choice: str) -> str:
    return _word_or_redis(choice, ("memory", "redis"), "proxies")


def _word_or_redis(choice: str, words: Sequence[str], readers: str) -> str:
    """Return one of these words, or the URL of a Redis server without a password. `readers`: who connects to it."""
    if choice in words:
        return choice
    try:
        parts = urlsplit(choice)
        parts.port  # noqa: B018 - a password with a slash ends up here
    except ValueError:
        raise SecretValue("it is no valid URL of a Redis server, such as redis://HOST:6379/0") from None
    if parts.scheme not in ("redis", "rediss", "unix") or "://" not in choice:
        shown = f", not {choice!r}" if re.fullmatch(r"[\w-]*", choice) else ""
        raise SecretValue(f"it should be {', '.join(words)}, or a URL such as redis://HOST:6379/0{shown}")
    if parts.password or "password" in parse_qs(parts.query):
        raise SecretValue(
            f'a URL in options must not have a password: set it to "redis", and {REDIS_URL} in the environment of the '
            f"{readers} to the URL"
        )
    return choice


StreamLogChoice = Annotated[str, AfterValidator(stream_log)]

STREAM_LOG = "where routes that name no log keep their streams: memory, shared, redis, or a URL of Redis"
"""The description of the option, which files, commands and the environment share."""


def _logging_config(config: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if config is None else logging_config(config)


class ApplicationConfig(Model):
    """Options of an application. All of its replicas read those with the mark `RESTARTS` when they start.

    `Toolkit` takes those that belong to the code of an app. A file may set all of them, and overrides the code.
    """

    stream_log: Annotated[StreamLogChoice, Field(description=STREAM_LOG, json_schema_extra=RESTARTS)] = "memory"
    loop: Annotated[
        LoopKind,
        Field(
            description="the event loop that runs the app: uvloop or asyncio, which some packages need",
            json_schema_extra=RESTARTS,
        ),
    ] = "uvloop"
    logging_config: Annotated[
        dict[str, Any] | None,
        AfterValidator(_logging_config),
        Field(
            description="what each replica passes to `logging.config.dictConfig` before it imports the app",
            json_schema_extra=RESTARTS,
        ),
    ] = None
    fork: Annotated[
        bool,
        Field(
            description="whether replicas may be forks of a process that has imported the app",
            json_schema_extra=RESTARTS,
        ),
    ] = True
    keep_revisions: Annotated[
        int,
        Field(
            ge=1,
            le=100,
            description="how many earlier revisions are kept, without replicas, so that a rollback can return to them",
        ),
    ] = 3

    @property
    def chosen(self) -> dict[str, Any]:
        """The options of an application that are set. An option that is None is not set."""
        names = [name for name in ApplicationConfig.model_fields if name in self.model_fields_set]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Route(Model):
    """One row of the route table. The rows are in the order in which the app matches its routes."""

    kind: Literal["http", "websocket", "both"]
    pattern: str
    """regular expression for the path below the route prefix"""
    methods: tuple[str, ...] | None = None
    """HTTP methods; None: all"""
    path: str
    """path template, for messages"""
    owner: Name | None
    """ingress whose replicas serve the route; None: the route is in the code, but no ingress serves it"""


class CorsSettings(Model):
    """What one `CORSMiddleware` of an app allows to pages of other origins."""

    allow_origins: tuple[str, ...]
    allow_all_origins: bool
    allow_origin_regex: str | None
    allow_methods: tuple[str, ...]
    allow_headers: tuple[str, ...]
    """names of fields in lower case"""
    allow_all_headers: bool
    allow_credentials: bool
    allow_private_network: bool
    simple_fields: dict[str, str]
    """fields of each response to a request with an Origin field, by their names in lower case"""
    preflight_fields: dict[str, str]
    """fields of each response to a preflight, by their names in lower case"""


class DeployedSpec(Model):
    """The fields that an ingress and a class have in common."""

    calls: tuple[Name, ...] = ()
    """classes of the application that its code may call, as far as they are known"""
    written: dict[str, JsonValue] = {}
    """the options with references to environment variables, as written, by dotted name; `config` has the values"""


class IngressSpec(DeployedSpec):
    """One ingress of an application. Its replicas serve some of the routes."""

    kind: Literal["ingress"] = "ingress"
    config: DeploymentConfig
    streams: tuple[str, ...] = ()
    """methods and paths of the routes whose streams are in the log of the application"""
    streams_in_memory: tuple[str, ...] = ()
    """methods and paths of the routes that name a log in the memory of the replica"""


class ClassSpec(DeployedSpec):
    """One class of an application. Handles call the methods of its replicas."""

    kind: Literal["class"] = "class"
    config: ClassConfig
    methods: Annotated[dict[str, Kind], Field(description="methods that callers may call")] = {}
    idempotent: Annotated[
        tuple[str, ...], Field(description="the methods that are called again when a replica is lost")
    ] = ()


class SplitSpec(Model):
    """One split of an application: several of its classes, its members. Each call goes to one of them."""

    name: Name
    shares: Annotated[
        dict[Name, float], Field(description="the share of the calls that each member gets; the sum is 1")
    ]
    mirrors: Annotated[
        dict[Name, float],
        Field(description="the share of the calls of other members that a member gets copies of; only those above 0"),
    ] = {}
    methods: Annotated[dict[str, Kind], Field(description="methods that callers may call")] = {}


DeploymentSpec = Annotated[IngressSpec | ClassSpec, Field(discriminator="kind")]


class ApplicationSpec(ApplicationConfig):
    """An application as plain data. The controller and the proxies have no other information about it.

    Its options are those that result from the code, files and commands.
    """

    schema_version: Literal[1] = 1
    name: Name
    target: str
    """`module:attribute`, imported by every replica"""
    code: str = ""
    """hash of the pickled code in the store; empty: replicas import the target"""
    artifact: str = ""
    """hash of the artifact in the store that contains `app_dir` and `working_dir`; empty: these are folders of the
    node"""
    sources: str = ""
    """hash of the Python files in the store that replicas import instead of those of `app_dir` on disk; empty: none"""
    files: dict[str, str] = {}
    """hash of each of these files by name, to show which ones change; empty: they are too many"""
    app_dir: str
    """the folder that is put first on the import path"""
    working_dir: str = ""
    """the working directory of the app; empty: that of the process"""
    route_prefix: Annotated[str | None, AfterValidator(_route_prefix)] = "/"
    """path under which the application is served; None: it serves no HTTP"""
    root_path: str = ""
    """`root_path` of the app; its routes are found with and without it"""
    cors: tuple[CorsSettings, ...] = ()
    """settings of each `CORSMiddleware` of the app, the outermost first"""
    title: str = ""
    automatic_stream_log: bool = False
    """whether planning has chosen `stream_log`, because neither the app nor an option does"""
    default: Name | None
    """ingress that serves requests that match no route; None: there is none"""
    deployments: tuple[DeploymentSpec, ...]
    routes: tuple[Route, ...] = ()
    splits: tuple[SplitSpec, ...] = ()
    restarts: dict[Name, int] = {}
    """the number of the last revision that restarted a deployment; the controller sets it"""

    @property
    def callees(self) -> tuple[str, ...]:
        """The deployments that handles may call."""
        return tuple(deployment.config.name for deployment in self.deployments if deployment.kind == "class")

    @property
    def ingresses(self) -> tuple[str, ...]:
        """The deployments that own routes."""
        return tuple(deployment.config.name for deployment in self.deployments if deployment.kind == "ingress")

    @property
    def packed(self) -> frozenset[str]:
        """The hashes of the code and files in the store that the replicas unpack."""
        return frozenset(filter(None, (self.code, self.artifact, self.sources)))

    @property
    def application_config(self) -> ApplicationConfig:
        """The options that this class inherits from `ApplicationConfig`."""
        return ApplicationConfig.model_construct(
            **{name: getattr(self, name) for name in ApplicationConfig.model_fields}
        )

    def deployment(self, name: str) -> DeploymentSpec:
        """Return the deployment with this name. Raises `ConfigError` if there is none."""
        for deployment in self.deployments:
            if deployment.config.name == name:
                return deployment
        names = ", ".join(deployment.config.name for deployment in self.deployments)
        raise ConfigError(f"application {self.name!r} has no deployment {name!r}; it has {names}")

    def split(self, name: str) -> SplitSpec:
        """Return the split with this name. Raises `ConfigError` if there is none."""
        for split in self.splits:
            if split.name == name:
                return split
        names = ", ".join(split.name for split in self.splits) or "none"
        raise ConfigError(f"application {self.name!r} has no split {name!r}; it has {names}")

    @property
    def num_cpus(self) -> float:
        """The sum of the logical CPUs that the initial replicas of all deployments reserve."""
        return sum(
            deployment.config.starting_replicas * deployment.config.resources.num_cpus
            for deployment in self.deployments
        )

    def template_hash(self, deployment: str) -> str:
        """Return a hash of everything that only a new replica of this deployment can apply."""
        spec = self.deployment(deployment)
        config = spec.config
        kept = config.model_dump(mode="json", include=set(marked(type(config), "restarts")))
        # A running object accepts another `user_config`, but cannot return to having none.
        kept["user_config"] = config.reloadable_options.user_config is not None
        folders = [self.artifact, self.app_dir, self.working_dir, *filter(None, [self.sources])]
        # Only ingresses have routes with streams.
        read = set(marked(ApplicationConfig, "restarts")) - (set() if spec.kind == "ingress" else {"stream_log"})
        of_application = self.application_config.model_dump(mode="json", exclude_defaults=True, include=read)
        restart = filter(None, [self.restarts.get(deployment)])
        facts = [self.target, self.code, *folders, self.route_prefix, deployment, kept, of_application, *restart]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


_SWITCHES = dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "off", "0"), False
)
"""The words that pydantic parses as booleans."""

_SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".toml")


class ProxyOptions(Model):
    """Options of the proxies: address, trusted peers, limits and timeouts for clients."""

    host: str = "127.0.0.1"
    """address of the proxies"""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_000
    """port of the proxies; 0: any free port"""
    edge: Literal["proxy", "replica"] = "proxy"
    """what accepts clients: proxies, or on processes of one machine, the replicas of the routes themselves"""
    proxies_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """proxies per node; they share the port"""
    keep_alive_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 5.0
    """seconds that a connection may be idle between two requests"""
    head_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 10.0
    """seconds for a TLS handshake, and for receiving the head of a request"""
    min_body_rate: Annotated[float, Field(ge=0, le=1_000_000_000)] = 500.0
    """minimum bytes per second of a request body; a slower request gets 408; 0: no minimum"""
    body_grace_s: Annotated[float, Field(gt=0, le=3_600)] = 5.0
    """seconds over which `min_body_rate` is measured"""
    max_connections: Annotated[
        int | None,
        Field(ge=1, le=1_000_000, json_schema_extra={"none": "from the limit of file descriptors"}),
    ] = None
    """maximum client connections of one proxy; further ones get 503"""
    max_requests_per_client: Annotated[
        int | None, Field(ge=1, le=1_000_000, json_schema_extra={"none": "no limit"})
    ] = None
    """maximum concurrent requests and WebSockets per client address and proxy; further ones get 429"""
    tag_source: Annotated[
        str | None, AfterValidator(_tag_source), Field(json_schema_extra={"none": "tags select nothing"})
    ] = None
    """where a request names the tag of a live revision: header:NAME, query:NAME or cookie:NAME; None: nowhere"""
    rate_limit_storage: Annotated[str, AfterValidator(_rate_limit_storage), Field(json_schema_extra=IN_ONE_PROCESS)] = (
        "memory"
    )
    """where `rate_limit` counts: memory of each proxy, redis, or the URL of a Redis server without a password"""
    server_timing: Annotated[bool, Field(json_schema_extra=IN_ONE_PROCESS)] = False
    """whether responses have a Server-Timing field: the time in the queue, and that of the app"""
    forwarded_allow_ips: str = "127.0.0.1,::1"
    """addresses and networks whose X-Forwarded-* fields are trusted, separated by commas; *: all"""
    ssl_keyfile: Annotated[str | None, Field(json_schema_extra={"none": "the file of the certificate"})] = None
    """path of the TLS key, if it is not in the file of the certificate"""
    ssl_certfile: Annotated[str | None, Field(json_schema_extra={"none": "none: plain HTTP"})] = None
    """path of the TLS certificate; the file must exist on every node with a proxy"""
    access_log: Annotated[bool | str, Field(json_schema_extra={"metavar": "PATH|-|true|false"})] = True
    """file for a line about each request; -: standard output; true: one file per proxy; false: none"""

    @field_validator("access_log", mode="before")
    @classmethod
    def _read_access_log(cls, value: object) -> object:
        if not isinstance(value, str) or value.lower() not in _SWITCHES:
            return value
        return _SWITCHES[value.lower()]

    @field_validator("access_log")
    @classmethod
    def _refuse_source_as_log(cls, value: bool | str) -> bool | str:
        if isinstance(value, str) and value.lower().endswith(_SOURCE_SUFFIXES):
            raise ValueError(
                "an access log cannot be a file whose name ends in .py, .yaml, .yml or .toml: "
                "name another file, or set it to true for one file per proxy"
            )
        return value

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _validate_networks(cls, listed: str) -> str:
        networks(listed)
        return listed


class AdminOptions(Model):
    """Options of the admin server, which serves the metrics, the admin API and the dashboard of an instance."""

    admin: bool = True
    """whether the instance has an admin server, with the metrics, the admin API and the dashboard"""
    admin_host: str = "127.0.0.1"
    """address of the admin server; one that other machines reach needs a token in APP_TOOLKIT_ADMIN_TOKEN"""
    admin_port: Annotated[
        int | None,
        Field(ge=0, le=65_535, json_schema_extra={"none": "8001, or any free port if that is in use"}),
    ] = None
    """port of the admin server; 0: any free port; null: 8001, or any free port if that is in use"""


class HTTPOptions(AdminOptions, ProxyOptions):
    """Options of all servers of an instance: the proxies and the admin server."""


def networks(listed: str) -> tuple[IPv4Network | IPv6Network, ...] | None:
    """Parse a comma-separated list of addresses and networks. Return None for `*`, which means all addresses.

    Raises `ValueError` if an entry is neither an address nor a network.
    """
    entries = [entry for entry in map(str.strip, listed.split(",")) if entry]
    if "*" in entries:
        return None
    try:
        return tuple(ip_network(entry) for entry in entries)
    except ValueError as error:
        raise ValueError(f"{error}; it should be addresses, networks such as 10.0.0.0/8, or *") from None


def merge_overrides(config: DeploymentConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a deployment, replaced by those in `overrides`.

    `num_replicas` in `overrides` removes the `autoscaling_config` of the deployment, and the other way round.
    """
    base = config.model_dump(exclude_unset=True)
    if overrides.get("num_replicas", "auto") != "auto":
        base.pop("autoscaling_config", None)
    elif overrides.get("autoscaling_config") is not None:
        base.pop("num_replicas", None)
    return merge(type(config), base, overrides)
