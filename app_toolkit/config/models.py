"""Every option of a deployment, once: its unit, default, bounds, and whether a change restarts replicas."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
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
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from app_toolkit.config.suggestions import suggestion
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import LiveOptions
from app_toolkit.types import Kind, OnDisconnect, Retry

NAME_PATTERN = r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]

RESTARTS = {"restarts": True}
"""Marks the options that a replica takes up only when it starts. The others are for who calls or controls it, or it
takes them up while it runs (`live`): a change of those restarts nothing."""


ON_RAY = {"on_ray": True}
"""Marks the options that have no effect in one process, where each deployment is one replica of that process."""


class Model(BaseModel):
    """Frozen and strict: an option that does not exist is an error that names it, and says what to write instead."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ConfigError(self.explain(error)) from None

    @classmethod
    def called(cls, option: str = "") -> str:
        """What people call an option of this model; without one: what they call the model."""
        return f"{cls.__name__}.{option}" if option else cls.__name__

    @classmethod
    def explain(cls, error: ValidationError) -> str:
        """One sentence per mistake: the thing, the value and the limit."""
        return "; ".join(sentence(mistake, cls.called, cls) for mistake in error.errors(include_url=False))


Count = Annotated[int, Field(ge=1, le=1_000)]
_count = TypeAdapter(Count)


def _count_or_auto(value: Any, either: ValidatorFunctionWrapHandler) -> Any:
    try:
        return either(value if value == "auto" else _count.validate_python(value))
    except ValidationError as error:  # of the number alone: a union would complain twice
        raise ValueError(f'{error.errors()[0]["msg"]}, or "auto"') from None


def _amount(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1000:
        return value
    if isinstance(value, str) and re.fullmatch(r"(100|[1-9]?[0-9])%", value):
        return value
    raise ValueError('should be a number of replicas up to 1,000, or a share of them such as "25%"')


Amount = Annotated[int | str, BeforeValidator(_amount)]
"""Of replicas: how many, or which share of those that are wanted."""


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
"""The keys of a `runtime_env` that Ray knows. It would ignore any other one. A test compares them with Ray's own."""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


class RayActorOptions(Model):
    """What one replica asks of the cluster. Ray books these amounts; it does not enforce them, GPUs aside."""

    num_cpus: Annotated[float, Field(ge=0, le=1024, description="logical CPUs")] = 0.1
    num_gpus: Annotated[float, Field(ge=0, le=64, description="logical GPUs; fractions share one")] = 0
    memory: Annotated[int | None, Field(ge=1, description="bytes of memory to book")] = None
    resources: Annotated[dict[str, float], Field(description="custom resources by name")] = {}
    accelerator_type: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9_.-]+$",
            description="the kind of accelerator its node must have, as Ray names it: `H100`, `L4`",
        ),
    ] = None
    runtime_env: Annotated[
        dict[str, JsonValue] | None, Field(description="the environment of its process, as Ray describes it")
    ] = None

    @model_validator(mode="after")
    def _check_runtime_env(self) -> Self:
        # Of the whole model: an error of the field itself shows its value, which may be a secret.
        for key in (self.runtime_env or {}).keys() - RUNTIME_ENV:
            meant = "".join(f"; did you mean {near!r}?" for near in get_close_matches(key, RUNTIME_ENV, n=1))
            raise ValueError(f"Ray's runtime_env has no key {key!r}{meant or f'; it has {_listed(RUNTIME_ENV)}'}")
        variables = (self.runtime_env or {}).get("env_vars", {})
        if not isinstance(variables, Mapping) or not all(isinstance(value, str) for value in variables.values()):
            raise ValueError("env_vars of the runtime_env should be a table of texts; put numbers in quotes")
        return self


class Policy(Model):
    """What the callers of a deployment keep to. A change reaches them at once and restarts nothing."""

    max_queued_requests: Annotated[
        int, Field(ge=0, le=1_000_000, description="requests that may wait in one caller; more are refused with 503")
    ] = 1_000
    max_queue_wait_s: Annotated[
        float,
        Field(gt=0, le=86_400, description="seconds a request may wait for a replica before it is refused with 503"),
    ] = 30.0
    request_timeout_s: Annotated[
        float | None,
        Field(gt=0, le=86_400, description="seconds a request may take, queue included; then 504, or a cut answer"),
    ] = None
    max_body_size: Annotated[
        int | None, Field(ge=0, description="bytes that the body of a request may have; more is refused with 413")
    ] = None
    retry: Annotated[
        Retry,
        Field(
            description="what is sent again when a replica is lost before it answers; idempotent: GET, HEAD, OPTIONS, "
            "PUT, DELETE, TRACE, and calls of methods marked `@idempotent`",
            json_schema_extra=ON_RAY,
        ),
    ] = "idempotent"


class AutoscalingConfig(Model):
    """Between which numbers, how far and how soon the replicas of a deployment follow its load.

    The load is the requests that wait or are ongoing. `core.autoscale` decides by it. Raises `ConfigError` for options
    out of bounds, and for those that contradict each other.
    """

    min_replicas: Annotated[int, Field(ge=0, le=1_000, description="never fewer; 0: none while there is no load")] = 1
    initial_replicas: Annotated[
        int | None, Field(ge=0, le=1_000, description="how many a new deployment starts with; None: `min_replicas`")
    ] = None
    max_replicas: Annotated[int, Field(ge=1, le=1_000, description="never more")] = 100
    target_ongoing_requests: Annotated[
        float, Field(gt=0, le=100_000, description="the load that one replica is meant to have")
    ] = 2.0
    look_back_period_s: Annotated[
        float, Field(ge=0.1, le=3_600, description="seconds up to now that the load is averaged over")
    ] = 5.0
    upscale_delay_s: Annotated[
        float, Field(ge=0, le=86_400, description="seconds that more must be needed throughout, before there are more")
    ] = 0.5
    downscale_delay_s: Annotated[
        float, Field(ge=0, le=86_400, description="seconds that fewer must do throughout, before there are fewer")
    ] = 120.0
    downscale_to_zero_delay_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=86_400,
            description="seconds that the last replica stays when none is needed; None: `downscale_delay_s`",
        ),
    ] = None
    upscaling_factor: Annotated[
        float, Field(gt=0, le=1, description="of the way up, how much is gone within one `upscale_delay_s`")
    ] = 1.0
    downscaling_factor: Annotated[
        float, Field(gt=0, le=1, description="of the way down, how much is gone within one `downscale_delay_s`")
    ] = 1.0

    @model_validator(mode="after")
    def _look_at_all(self) -> Self:
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
        """How many there are before anything is known of the load."""
        return self.min_replicas if self.initial_replicas is None else self.initial_replicas


class BatchLimits(BaseModel):
    """The limits of one batch method or endpoint; the function's own limit holds where one is None.

    The options around it report a mistake, because they know the function's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_batch_size: Annotated[
        int | None, Field(ge=1, le=1_000_000_000, description="items in one batch, or the sum of their sizes")
    ] = None
    batch_wait_timeout_s: Annotated[
        float | None, Field(ge=0, le=3_600, description="seconds that the first item of a batch waits for others")
    ] = None
    max_concurrent_batches: Annotated[int | None, Field(ge=1, le=1_000, description="batches that run at a time")] = (
        None
    )


class DeploymentConfig(Policy):
    """How one ingress is served.

    Two includes that name the same deployment must agree on every option that they set. Raises `ConfigError` for
    an option that is out of bounds or unknown.
    """

    name: Annotated[Name, Field(description="letters, digits, `-` and `_`; unique within its application")]
    num_replicas: Annotated[
        Count | Literal["auto"],
        WrapValidator(_count_or_auto),
        Field(description="how many replicas run; auto: as many as the load needs", json_schema_extra=ON_RAY),
    ] = 1
    autoscaling_config: Annotated[
        AutoscalingConfig | None,
        Field(description="what auto keeps to; where it is given, `num_replicas` is auto", json_schema_extra=ON_RAY),
    ] = None
    max_ongoing_requests: Annotated[
        int,
        Field(ge=1, le=100_000, description="requests that one replica runs at a time"),
    ] = 100
    max_open_websockets: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="WebSockets that are open at one replica at a time",
        ),
    ] = 1_000
    max_open_streams: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="streams that are open at one replica and hold no slot; any more keep their slots",
        ),
    ] = 1_000
    on_disconnect: Annotated[
        OnDisconnect,
        Field(
            description="a handler whose client has gone: auto stops streams, WebSockets, GET and HEAD",
            json_schema_extra=RESTARTS,
        ),
    ] = "auto"
    max_replicas_per_node: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="how many of its replicas run on one node; what fits nowhere waits. None: any number",
            json_schema_extra={**RESTARTS, **ON_RAY},
        ),
    ] = None
    max_surge: Annotated[
        Amount,
        Field(
            description='replicas beyond the wanted while others are replaced; a share, "25%", is rounded up',
            json_schema_extra=ON_RAY,
        ),
    ] = "25%"
    max_unavailable: Annotated[
        Amount,
        Field(description="replicas that may be missing meanwhile; a share is rounded down", json_schema_extra=ON_RAY),
    ] = 0
    startup_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="seconds from placement until a replica must be ready",
            json_schema_extra=ON_RAY,
        ),
    ] = 60.0
    graceful_shutdown_timeout_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="seconds that a draining replica has to finish; then it is killed",
            json_schema_extra=ON_RAY,
        ),
    ] = 20.0
    health_check_period_s: Annotated[
        float, Field(gt=0, le=3_600, description="seconds between two probes", json_schema_extra=ON_RAY)
    ] = 5.0
    health_check_timeout_s: Annotated[
        float, Field(gt=0, le=3_600, description="seconds a probe may take", json_schema_extra=ON_RAY)
    ] = 5.0
    health_check_failure_threshold: Annotated[
        int,
        Field(
            ge=1,
            le=1_000,
            description="failed probes in a row after which a replica is replaced",
            json_schema_extra=ON_RAY,
        ),
    ] = 3
    ray_actor_options: Annotated[RayActorOptions, Field(json_schema_extra={**RESTARTS, **ON_RAY})] = RayActorOptions()
    batch: Annotated[
        dict[str, BatchLimits],
        Field(description="limits of `@batch` endpoints or methods, by the function's name, instead of their own"),
    ] = {}

    @model_validator(mode="before")
    @classmethod
    def _say_both_or_neither(cls, data: Any) -> Any:
        """A config alone is auto, and auto alone has the config of defaults: what is read back says the same."""
        if not isinstance(data, Mapping):
            return data
        config = data.get("autoscaling_config")
        number = data.get("num_replicas", 1 if config is None else "auto")
        if config is None and number != "auto":
            return data
        if number != "auto":
            raise ValueError(
                f"num_replicas = {number!r} and an autoscaling_config: give one of them, a number or what decides it"
            )
        return {**data, "num_replicas": number, "autoscaling_config": config or {}}

    @model_validator(mode="after")
    def _can_be_replaced(self) -> Self:
        if {self.max_surge, self.max_unavailable} <= {0, "0%"}:
            raise ValueError("max_surge and max_unavailable are both 0: no replica could ever be replaced")
        return self

    @property
    def starting_replicas(self) -> int:
        """How many there are before anything is known of the load."""
        if self.autoscaling_config is not None:
            return self.autoscaling_config.starting_replicas
        return int(self.num_replicas)

    @property
    def on_ray(self) -> tuple[str, ...]:
        """The options, by dotted name, that are not as by default and have no effect in one process."""
        return tuple(_on_ray(self))

    @property
    def live(self) -> LiveOptions:
        """The part that running replicas take up."""
        batch = {name: limits.model_dump(exclude_none=True) for name, limits in self.batch.items()}
        return LiveOptions(self.max_ongoing_requests, self.max_open_websockets, self.max_open_streams, batch=batch)

    @property
    def policy(self) -> Policy:
        """The part that callers are told."""
        return Policy(**{name: getattr(self, name) for name in Policy.model_fields})


def _on_ray(config: DeploymentConfig) -> Iterator[str]:
    for name, field in type(config).model_fields.items():
        extra, value = field.json_schema_extra, getattr(config, name)
        if not isinstance(extra, dict) or "on_ray" not in extra or value == field.default:
            continue
        if isinstance(value, RayActorOptions):
            parts = type(value).model_fields
            yield from (f"{name}.{part}" for part in parts if getattr(value, part) != parts[part].default)
        else:
            yield name


class ClassActorOptions(RayActorOptions):
    """As of an ingress, but that a model computes where an ingress mostly waits."""

    num_cpus: Annotated[float, Field(ge=0, le=1024, description="logical CPUs")] = 1


class ClassConfig(DeploymentConfig):
    """How a class is served: what an ingress may say, and what only objects have."""

    max_ongoing_requests: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="calls that one replica runs at a time; by default 16, or as many as its batches need",
        ),
    ] = 16
    ray_actor_options: Annotated[ClassActorOptions, Field(json_schema_extra={**RESTARTS, **ON_RAY})] = (
        ClassActorOptions()
    )
    sync_threads: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="threads that run the constructor and the `def` methods of one replica",
            json_schema_extra=RESTARTS,
        ),
    ] = 1
    user_config: Annotated[
        dict[str, JsonValue] | None,
        Field(description="what `reconfigure` is given, at the start and whenever it changes"),
    ] = None

    @property
    def live(self) -> LiveOptions:
        return replace(super().live, user_config=self.user_config)

    @classmethod
    def called(cls, option: str = "") -> str:
        return option or "a class"


class CallOptions(Model):
    """How one caller wants its calls made. What is not said is as the deployment says."""

    timeout_s: Annotated[float | None, Field(gt=0, le=86_400, description="seconds from each call on")] = None
    retry: Annotated[
        Retry | None, Field(description="which calls are made again where a replica was lost with them")
    ] = None

    @classmethod
    def called(cls, option: str = "") -> str:
        return option or "options()"


class Route(Model):
    """One row of the route table, in the order in which the app tries them."""

    kind: Literal["http", "websocket", "both"]
    pattern: Annotated[str, Field(description="the route's own regular expression, on the path below the prefix")]
    methods: Annotated[tuple[str, ...] | None, Field(description="None: every method")] = None
    path: Annotated[str, Field(description="the template that people read")]
    owner: Annotated[
        Name | None,
        Field(description="the ingress whose replicas serve it; None: code that runs has it, and nobody serves it"),
    ]

    @property
    def row(self) -> tuple[str, str, list[str] | None, str, str | None]:
        """As `core.routes` and the board know it: what JSON can say."""
        methods = None if self.methods is None else list(self.methods)
        return self.kind, self.pattern, methods, self.path, self.owner


class Origin(Model):
    """Where replicas have their code from."""

    target: Annotated[str, Field(description="`module:attribute`, imported by every replica")]
    code: Annotated[
        str, Field(description="the hash of what replicas unpack, where they import no target; the store has it")
    ] = ""
    artifact: Annotated[
        str,
        Field(description="the hash of the files that replicas unpack, with its folders in them; the store has them"),
    ] = ""
    sources: Annotated[
        str,
        Field(description="the hash of the Python files that replicas import instead of those of `app_dir` on disk"),
    ] = ""
    app_dir: Annotated[str, Field(description="the folder that is put first on the import path")]
    working_dir: Annotated[str, Field(description="the folder that the app's relative paths begin at")] = ""


class DeployedSpec(Model):
    """What an ingress and a class have alike."""

    calls: Annotated[
        tuple[Name, ...], Field(description="the classes of the application that its code may call, as far as is known")
    ] = ()
    origin: Annotated[Origin | None, Field(description="its own; None: that of the application")] = None


class IngressSpec(DeployedSpec):
    """One ingress of an application: its replicas serve some of the routes."""

    kind: Literal["ingress"] = "ingress"
    config: DeploymentConfig


class ClassSpec(DeployedSpec):
    """One class of an application: its replicas are called by handles."""

    kind: Literal["class"] = "class"
    config: ClassConfig
    methods: Annotated[dict[str, Kind], Field(description="what callers may call")] = {}
    idempotent: Annotated[
        tuple[str, ...], Field(description="the methods that are called again when a replica is lost")
    ] = ()


DeploymentSpec = Annotated[IngressSpec | ClassSpec, Field(discriminator="kind")]


class ApplicationSpec(Origin):
    """An application as plain data: all that the control plane and the proxies ever know of it."""

    schema_version: Literal[1] = 1
    name: Name
    route_prefix: Annotated[
        str | None, Field(pattern=r"^/([^/?#\s]+(/[^/?#\s]+)*)?$", description="None: it serves no HTTP")
    ] = "/"
    title: str = ""
    default: Annotated[Name | None, Field(description="the ingress that owns what no route matches")]
    deployments: tuple[DeploymentSpec, ...]
    routes: tuple[Route, ...] = ()

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
        """The hashes of what its replicas unpack."""
        origins = [each.origin or self for each in self.deployments]
        return frozenset(hash for origin in origins for hash in (origin.code, origin.artifact, origin.sources) if hash)

    @property
    def origin(self) -> Origin:
        """That of every deployment that has none of its own."""
        return Origin(**{name: getattr(self, name) for name in Origin.model_fields})

    def deployment(self, name: str) -> DeploymentSpec:
        """The one of this name. Raises `ConfigError` where there is none."""
        for each in self.deployments:
            if each.config.name == name:
                return each
        names = ", ".join(each.config.name for each in self.deployments)
        raise ConfigError(f"application {self.name!r} has no deployment {name!r}; it has {names}")

    def origin_of(self, deployment: str) -> Origin:
        """Where the replicas of this deployment have their code from."""
        return self.deployment(deployment).origin or self.origin

    @property
    def num_cpus(self) -> float:
        """The logical CPUs that the replicas it starts with book together."""
        return sum(each.config.starting_replicas * each.config.ray_actor_options.num_cpus for each in self.deployments)

    def revision(self, deployment: str) -> str:
        """A hash of what only a new replica of this deployment would take up."""
        spec = self.deployment(deployment)
        config, origin = spec.config, spec.origin or self
        restarts = {
            name
            for name, field in type(config).model_fields.items()
            if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("restarts")
        }
        kept = config.model_dump(mode="json", include=restarts)
        # An object can be given another `user_config`, but not forget that it had one.
        kept["user_config"] = config.live.user_config is not None
        folders = [origin.artifact, origin.app_dir, origin.working_dir, *filter(None, [origin.sources])]
        facts = [origin.target, origin.code, *folders, self.route_prefix, deployment, kept]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


_SWITCHES = dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "off", "0"), False
)
"""The words that pydantic reads as booleans."""

_SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".toml")


class HTTPOptions(Model):
    """Where the proxies listen, whom they believe, and how long they wait for a client."""

    host: Annotated[str, Field(description="where the proxies listen")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535, description="the port; 0 is any free one")] = 8_000
    proxies_per_node: Annotated[int, Field(ge=1, le=64, description="processes that share the port of a node")] = 1
    keep_alive_timeout_s: Annotated[
        float, Field(gt=0, le=86_400, description="seconds that a connection may be idle between two requests")
    ] = 5.0
    head_timeout_s: Annotated[
        float, Field(gt=0, le=3_600, description="seconds for a TLS handshake, and for a request's head to arrive")
    ] = 10.0
    min_body_rate: Annotated[
        float,
        Field(
            ge=0,
            le=1_000_000_000,
            description="bytes a second at which a client must send a body; slower ones are answered 408; 0: any rate",
        ),
    ] = 500.0
    body_grace_s: Annotated[
        float, Field(gt=0, le=3_600, description="seconds over which `min_body_rate` is measured")
    ] = 5.0
    max_connections: Annotated[
        int | None,
        Field(ge=1, le=1_000_000, description="clients of one proxy; more are answered 503"),
    ] = None
    max_requests_per_client: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="requests and WebSockets of one client address at one proxy; more are answered 429",
        ),
    ] = None
    forwarded_allow_ips: Annotated[
        str, Field(description="addresses and networks whose X-Forwarded-* is believed, with commas; *: anybody's")
    ] = "127.0.0.1,::1"
    ssl_keyfile: Annotated[str | None, Field(description="the certificate's key, where it is not in its file")] = None
    ssl_certfile: Annotated[
        str | None, Field(description="serve HTTPS with this certificate, on every node that has a proxy")
    ] = None
    access_log: Annotated[
        bool | str,
        Field(
            description="write a line for each request: to this file, or to standard output if it is -; "
            "true: to a file of each proxy"
        ),
    ] = True

    @field_validator("access_log", mode="before")
    @classmethod
    def _read_access_log(cls, said: object) -> object:
        if not isinstance(said, str) or said.lower() not in _SWITCHES:
            return said
        return _SWITCHES[said.lower()]

    @field_validator("access_log")
    @classmethod
    def _refuse_source_as_log(cls, said: bool | str) -> bool | str:
        if isinstance(said, str) and said.lower().endswith(_SOURCE_SUFFIXES):
            raise ValueError(
                "an access log cannot be a file whose name ends in .py, .yaml, .yml or .toml: "
                "name another file, or say true for a file of each proxy"
            )
        return said

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _look_at_networks(cls, listed: str) -> str:
        networks(listed)
        return listed


def networks(listed: str) -> tuple[IPv4Network | IPv6Network, ...] | None:
    """What a list of addresses and networks with commas between them stands for; None: `*`, which is everybody.

    Raises `ValueError` for what is neither.
    """
    entries = [entry for entry in map(str.strip, listed.split(",")) if entry]
    if "*" in entries:
        return None
    try:
        return tuple(ip_network(entry) for entry in entries)
    except ValueError as error:
        raise ValueError(f"{error}; it should be addresses, networks such as 10.0.0.0/8, or *") from None


def sentence(mistake: ErrorDetails, called: Callable[[str], str], model: type[BaseModel]) -> str:
    """One mistake in the options of `model`: the thing, the value and the limit.

    `called` names an option; for an empty name it names the thing that has the options.
    """
    where = ".".join(str(part) for part in mistake["loc"])
    said = str(mistake["ctx"]["error"]) if mistake["type"] == "value_error" else mistake["msg"]
    if mistake["type"] == "extra_forbidden":
        return f"{called('')} has no option {where!r}{_instead(mistake['loc'], model)}"
    if mistake["type"] == "value_error" and not where:
        return f"{called('')}: {said}"
    if mistake["type"] == "missing":
        return f"{called('')} needs {where!r}"
    return f"{called(where)} = {mistake['input']!r}: {said[:1].lower()}{said[1:]}"


def _instead(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """What to write instead of the unknown option at this place below `model`."""
    *around, option = place
    for name in around:
        field = model.model_fields.get(str(name))
        model = (parts(field) if field is not None else None) or model
    inner = {name: found.model_fields for name, field in model.model_fields.items() if (found := parts(field))}
    return suggestion(str(option), model.model_fields, inner)


def parts(field: FieldInfo) -> type[BaseModel] | None:
    """The options that an option is made of, or that it has by name; None: it is a value."""
    for each in (field.annotation, *get_args(field.annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def by_name(field: FieldInfo) -> bool:
    """Whether the parts of an option are there once for each of several names."""
    return get_origin(field.annotation) is dict


def overruled(config: DeploymentConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a deployment with others over them. A number replaces what decides it, and the other way round."""
    below = config.model_dump(exclude_unset=True)
    if said.get("num_replicas", "auto") != "auto":
        below.pop("autoscaling_config", None)
    elif said.get("autoscaling_config") is not None:
        below.pop("num_replicas", None)
    return merge(type(config), below, said)


def merge(model: type[BaseModel], below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others over them: each replaces the one of its name, and parts of options do so one by one."""
    merged = {**below, **above}
    for name in below.keys() & above.keys() & model.model_fields.keys():
        one, other, field = below[name], above[name], model.model_fields[name]
        inner = parts(field)
        if inner is None or not isinstance(one, Mapping) or not isinstance(other, Mapping):
            continue
        if by_name(field):
            merged[name] = {**one, **{key: merge(inner, one.get(key, {}), other[key]) for key in other}}
        else:
            merged[name] = merge(inner, one, other)
    return merged
