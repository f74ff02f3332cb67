"""Class deployments: the base class, its options, and the classes with their bound arguments."""

import inspect
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

import cloudpickle

from app_toolkit.calls.batching import slots_for
from app_toolkit.calls.handle import Handle, deployment_of
from app_toolkit.calls.http import serves_http
from app_toolkit.config.models import ClassConfig, Faults, RecyclingConfig
from app_toolkit.config.secrets import secrets_in
from app_toolkit.contract.methods import kebab
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import DEPLOYMENT_CLASS, Callee, Deployable, WeightedCallee
from app_toolkit.observability.secrets import add_secrets
from app_toolkit.types import Kind, OnDisconnect, Retry
from app_toolkit.userapp.batch import is_batched
from app_toolkit.userapp.target import class_of

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RayKeywords(TypedDict, total=False):
    """`RayOptions`, for type checkers and editors."""

    accelerator_type: str | None
    """accelerator type that the node must have, by Ray's name: `H100`, `L4`. Default: None"""
    runtime_env: dict[str, Any] | None
    """Ray's runtime environment of the replica's process. Default: None"""


class ResourceKeywords(TypedDict, total=False):
    """`ClassResources`, for type checkers and editors."""

    num_cpus: float
    """logical CPUs. Default: 1"""
    num_gpus: float
    """logical GPUs; fractions share one. Default: 0"""
    memory: int | None
    """bytes of memory to reserve; on processes, also the most that a replica gets. Default: None"""
    nice: int
    """by how much the priority of a replica is lower than that of other processes. Default: 0"""
    custom: dict[str, float]
    """custom resources by name. Default: {}"""
    ray: RayKeywords
    """options that only the engine on Ray applies. Default: {}"""


class BatchKeywords(TypedDict, total=False):
    """`BatchLimits`, for type checkers and editors."""

    max_batch_size: int | None
    """items in one batch, or the sum of their sizes. Default: None"""
    batch_wait_timeout_s: float | None
    """seconds that the first item of a batch waits for others. Default: None"""
    max_concurrent_batches: int | None
    """batches that run at the same time. Default: None"""


class AutoscalingKeywords(TypedDict, total=False):
    """`AutoscalingConfig`, for type checkers and editors."""

    min_replicas: int
    """minimum number of replicas; 0: no replica while there is no load. Default: 1"""
    initial_replicas: int | None
    """replicas of a new deployment; None: `min_replicas`. Default: None"""
    max_replicas: int
    """maximum number of replicas. Default: 100"""
    target_ongoing_requests: float
    """load that one replica should have. Default: 2.0"""
    look_back_period_s: float
    """seconds over which the load is averaged. Default: 5.0"""
    upscale_delay_s: float
    """seconds for which more replicas must be needed before they start. Default: 0.5"""
    downscale_delay_s: float
    """seconds for which fewer replicas must be enough before one drains. Default: 120.0"""
    downscale_to_zero_delay_s: float | None
    """seconds without load before the last replica drains; None: `downscale_delay_s`. Default: None"""
    upscaling_factor: float
    """share of the missing replicas that start within one `upscale_delay_s`. Default: 1.0"""
    downscaling_factor: float
    """share of the surplus replicas that drain within one `downscale_delay_s`. Default: 1.0"""


class DeploymentKeywords(TypedDict, total=False):
    """The options of a class, `ClassConfig`, for type checkers and editors."""

    name: str
    """letters, digits, `-` and `_`; unique within its application. Default: from the class"""
    num_replicas: int | Literal["auto"]
    """number of replicas; auto: set by autoscaling. Default: 1"""
    autoscaling_config: AutoscalingKeywords | None
    """options of autoscaling; if given, `num_replicas` is auto. Default: None"""
    max_ongoing_requests: int
    """maximum calls that one replica runs at a time; by default 16, or as many as its batches need. Default: 16"""
    max_queued_requests: int
    """maximum requests that wait in one caller; further ones are refused with 503. Default: 1000"""
    max_queue_wait_s: float
    """seconds a request may wait for a replica before it is refused with 503. Default: 30.0"""
    request_timeout_s: float | None
    """seconds that a request may take, including its wait; then the client gets 504, or the response is aborted.
    Default: None"""
    retry: Retry
    """lost requests that are retried; idempotent: GET, HEAD, OPTIONS, PUT, DELETE, TRACE, and `@idempotent` methods.
    Default: idempotent"""
    max_body_size: int | None
    """maximum bytes of a request body; a larger one is refused with 413. Default: None"""
    affinity: str | None
    """where requests have the key of their session: header:NAME, query:NAME, cookie:NAME, cookie, client, or several.
    Default: None"""
    rate_limit: str | None
    """maximum requests of one client in a second, minute, hour or day: 100/minute; further ones get 429. Default:
    None"""
    rate_limit_by: str
    """what identifies a client: client (its address), session, header:NAME, query:NAME or cookie:NAME. Default:
    client"""
    faults: Faults | None
    """faults that requests and calls get on purpose; None: none. Default: None"""
    routing_policy: str | None
    """what chooses the replica of a call: prefix, the longest known part of its conversation, or module:function.
    Default: None"""
    max_open_streams: int
    """maximum open streams of one replica that do not count against `max_ongoing_requests`; further streams count.
    Default: 1000"""
    on_disconnect: OnDisconnect
    """whether a handler is cancelled when its client disconnects; auto: streams, WebSockets, GET and HEAD.
    Default: auto"""
    max_replicas_per_node: int | None
    """maximum replicas on one node; further ones wait for another node. None: no limit. Default: None"""
    max_surge: int | str
    """extra replicas during an update; a share, "25%", is rounded up. Default: 25%"""
    max_unavailable: int | str
    """replicas that may be missing during an update; a share is rounded down. Default: 0"""
    min_healthy_s: float
    """seconds that a new, healthy replica must have served before an old one drains for it. Default: 0.0"""
    startup_timeout_s: float
    """seconds from placement until a replica must be ready. Default: 300.0"""
    graceful_shutdown_timeout_s: float
    """seconds that a draining replica has to finish; then it is killed. Default: 20.0"""
    health_check_period_s: float
    """seconds between two health checks. Default: 5.0"""
    health_check_timeout_s: float
    """seconds that a health check may take. Default: 5.0"""
    health_check_failure_threshold: int
    """failed health checks in a row after which a replica is replaced. Default: 3"""
    recycling: RecyclingConfig | None
    """limits after which a replica is replaced while it works; None: it is not. Default: None"""
    resources: ResourceKeywords
    """resources that one replica asks of the engine. Default: one CPU"""
    sync_threads: int
    """threads that run the constructor and the `def` methods of one replica. Default: 1"""
    user_config: Mapping[str, Any] | None
    """value that `reconfigure` receives, at the start and after each change. Default: None"""
    batch: Mapping[str, BatchKeywords]
    """limits of `@batch` endpoints or methods, by name of the function; they override the code. Default: {}"""


OF_INGRESSES = ClassConfig.model_fields.keys() - DeploymentKeywords.__annotations__.keys()
"""Options that only ingresses have."""

OF_HTTP = frozenset({"max_body_size", "on_disconnect", "rate_limit", "rate_limit_by"})
"""Options of ingresses, and of classes that answer HTTP with `__call__`."""


class Bound(Deployable, Generic[T_co]):
    """One deployment: a class, its options, and the arguments with which each replica constructs it. `bind` creates it.

    As a dependency, `Annotated[Writer, Depends(writer)]`, it passes the handle to a route. Objects are compared by
    identity.
    """

    config: ClassConfig

    def __init__(self, cls: type, config: ClassConfig, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.cls = cls
        self.config = config
        self._args = args
        self._kwargs = kwargs
        self._handle = Handle(self)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def handle(self) -> T_co:
        """The handle that calls the replicas: for scripts, lifespans, and as an argument of another `bind`."""
        return cast(T_co, self._handle)

    @property
    def needs(self) -> tuple[Callee, ...]:
        """The deployments and splits whose handles are among its arguments, in order.

        Handles in lists, tuples, sets and dicts count, too.
        """
        handles = [value for value in _leaves((self._args, self._kwargs)) if isinstance(value, Handle)]
        return tuple(bound for bound in map(deployment_of, handles) if bound.application is None)

    def make(self) -> T_co:
        """Construct an ordinary object of the class. This process then redacts the secrets among its arguments."""
        add_secrets(secrets_in(self._texts()))
        return cast(T_co, self.cls(*self._args, **self._kwargs))

    def _texts(self) -> Mapping[str, str]:
        """Return the arguments that are texts, by the names of their parameters.

        Texts within other arguments are left out, because these arguments may be large.
        """
        arguments = dict(self._kwargs)
        with suppress(ValueError):  # a class implemented in C may have no signature
            arguments |= inspect.signature(self.cls).bind(*self._args, **self._kwargs).arguments
        return {name: value for name, value in arguments.items() if isinstance(value, str)}

    # Asynchronous, because FastAPI runs a synchronous dependency in a thread.
    async def __call__(self) -> T_co:
        return self.handle

    def __repr__(self) -> str:
        return f"<{self.cls.__name__} bound as {self.name}>"

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            message = f"a bound deployment has no attribute {name!r}"
            if not name.startswith("_"):
                message += f"; methods of {self.cls.__name__} are called through its `handle`"
            raise AttributeError(message)


class NamedDeployment(Deployable):
    """A deployment of a running application, of which only the name and the methods are known."""

    def __init__(self, application: str, name: str, methods: Mapping[str, Kind]) -> None:
        self.application = application
        self._name = name
        # A class with the same kinds of methods. A handle needs nothing else.
        self.cls = type(name, (), {method: _SHAPES[kind] for method, kind in methods.items()})

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> tuple[Callee, ...]:
        return ()

    def make(self) -> object:
        raise ConfigError(f"{self.name!r} belongs to application {self.application!r}, which constructs its objects")


async def _coroutine(self: object, *args: Any, **kwargs: Any) -> Any: ...
async def _stream(self: object, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    yield


def _sync(self: object, *args: Any, **kwargs: Any) -> Any: ...
def _sync_stream(self: object, *args: Any, **kwargs: Any) -> Iterator[Any]:
    yield


_SHAPES: Mapping[Kind, Callable[..., Any]] = {
    "coroutine": _coroutine,
    "stream": _stream,
    "sync": _sync,
    "sync stream": _sync_stream,
}


def pack(bound: Bound[Any]) -> bytes:
    """Pickle a bound deployment, and those whose handles it has, for processes that cannot import `__main__`.

    Classes and functions of `__main__`, and those that functions define, are pickled by value, others by name.

    Raises:
        ConfigError: An argument cannot be pickled.
    """
    packed = io.BytesIO()
    try:
        _Packer(packed, 5).dump(bound)
    except Exception as error:
        raise ConfigError(f"{bound!r} cannot be pickled for its replicas: {type(error).__name__}: {error}") from error
    return packed.getvalue()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles bound deployments and handles. Other picklers refuse them, because an ordinary copy would be useless."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Bound):
            # The options are in the application's spec, and so are the weights of splits. If they change, the packed
            # code must not change.
            return Bound, (obj.cls, ClassConfig(name=obj.name), obj._args, obj._kwargs)
        if isinstance(obj, WeightedCallee) and obj.application is None:
            return type(obj), (obj.name, obj.members, dict.fromkeys(obj.members, 1 / len(obj.members)))
        if isinstance(obj, Handle):
            return Handle, (deployment_of(obj), obj._options)
        return super().reducer_override(obj)


class Configured(Generic[P, T]):
    """A class with options."""

    def __init__(self, cls: Callable[P, T], options: Mapping[str, Any]) -> None:
        if not isinstance(cls, type):
            raise ConfigError(f"a deployment is made of a class, not of {cls!r}")
        self._cls = cls
        self._options = options
        self._config = configure(cls, options)

    def options(self, **options: Unpack[DeploymentKeywords]) -> "Configured[P, T]":
        """Return the same class with other options.

        Parameters:
            **options: Options as of `Deployment`. An option that is not given does not change.

        Raises:
            ConfigError: An option is unknown or out of bounds.
        """
        return Configured(cast(Callable[P, T], self._cls), {**self._options, **options})

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[T]:
        """Create a deployment whose replicas construct the class with these arguments.

        Parameters:
            *args: Positional arguments of the constructor.
            **kwargs: Keyword arguments of the constructor.

        Raises:
            ConfigError: The constructor does not take the arguments, the class is abstract, or it has a `user_config`
                and no method `reconfigure`.
        """
        cls = self._cls
        if self._config.user_config is not None and not hasattr(cls, "reconfigure"):
            raise ConfigError(f"class {cls.__name__}: it has a user_config, and no method reconfigure(user_config)")
        if inspect.isabstract(cls):
            raise ConfigError(
                f"{cls.__name__} is abstract: it lacks {', '.join(sorted(cast(Any, cls).__abstractmethods__))}"
            )
        try:
            inspect.signature(cls).bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}.bind(): {error}") from None
        except ValueError:  # a class implemented in C may have no signature: its constructor checks the arguments
            pass
        for value in _leaves((args, kwargs)):
            if isinstance(value, Bound | WeightedCallee):
                raise ConfigError(f"{cls.__name__}.bind() was given {value!r}: pass its handle instead")
        return Bound(cls, self._config, args, kwargs)


class Deployment:
    """Base class of a class that replicas serve.

    ```python
    class Writer(Deployment, num_replicas=2):
        async def write(self, prompt: str) -> str: ...

    writer = Writer.bind()
    ```

    The class remains an ordinary class. A subclass inherits the options, except `name`.

    Parameters:
        **options: The options of `DeploymentKeywords`, which has a sentence and the default of each.

    Raises:
        ConfigError: An option is unknown or out of bounds.
    """

    def __init_subclass__(cls, **options: Unpack[DeploymentKeywords]) -> None:
        super().__init_subclass__()
        # A dataclass with slots creates its class a second time, from the attributes of the first one.
        setattr(cls, DEPLOYMENT_CLASS, {**cls.__dict__.get(DEPLOYMENT_CLASS, {}), **options})
        configure(cls, _options_of(cls))

    @classmethod
    def bind(cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Bound[T]:
        """Create a deployment whose replicas construct this class with these arguments.

        Parameters:
            *args: Positional arguments of the constructor.
            **kwargs: Keyword arguments of the constructor.

        Raises:
            ConfigError: The constructor does not take the arguments, the class is abstract, or it has a `user_config`
                and no method `reconfigure`.
        """
        return Configured(cls, _options_of(cls)).bind(*args, **kwargs)

    @classmethod
    def options(cls: Callable[P, T], **options: Unpack[DeploymentKeywords]) -> Configured[P, T]:
        """Return this class with other options: `Writer.options(name="big", num_replicas=4).bind()`.

        Parameters:
            **options: Options as of `Deployment`. An option that is not given is that of the class.

        Raises:
            ConfigError: An option is unknown or out of bounds.
        """
        return Configured(cls, {**_options_of(cls), **options})


def deployment(cls: Callable[P, T], **options: Unpack[DeploymentKeywords]) -> Configured[P, T]:
    """Serve a class that cannot inherit from `Deployment`: `deployment(Model, num_replicas=2).bind(...)`.

    Parameters:
        cls: The class.
        **options: Options as of `Deployment`.

    Raises:
        ConfigError: `cls` is not a class, or an option is unknown or out of bounds.
    """
    return Configured(cls, options)


def of_function(respond: Callable[[Any], Any]) -> Bound[Any]:
    """Create a deployment that answers HTTP with a function, named after the function."""
    return deployment(class_of(respond)).bind()


def _options_of(cls: object) -> dict[str, Any]:
    """Return the options of a class and of its base classes. A name is not inherited."""
    options: dict[str, Any] = {}
    classes = cls.__mro__ if isinstance(cls, type) else ()
    for base in reversed(classes):
        options.pop("name", None)
        options.update(base.__dict__.get(DEPLOYMENT_CLASS, {}))
    return options


def unfit(cls: type, options: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the options that a deployment of this class cannot have, whatever their values: place and reason."""
    for option in sorted(options.keys() & OF_INGRESSES):
        yield (option,), f"{option!r} is an option of ingresses, and a class answers calls"
    of_http = sorted(options.keys() & OF_HTTP)
    if of_http and not serves_http(cls):
        for option in of_http:
            why = f"{option!r} is an option of ingresses and of classes with __call__, and this class has none"
            yield (option,), why
    batched, limits = _batched(cls), options.get("batch")
    for name in limits if isinstance(limits, Mapping) else ():
        if name not in batched:
            why = f"batch.{name}: it has no @batch method {name!r}, only {', '.join(batched) or 'none'}"
            yield ("batch", name), why


def configure(cls: type, options: Mapping[str, Any]) -> ClassConfig:
    """Return the complete options of a deployment of this class.

    Raises:
        ConfigError: An option is unknown, out of bounds, or does not apply to the class.
    """
    for _, why in unfit(cls, options):
        raise ConfigError(f"class {cls.__name__}: {why}")
    batched = _batched(cls)
    try:
        config = ClassConfig(**{"name": kebab(cls.__name__), **options})
        batch = config.reloadable_options.batch
        called = [name for name in batched if not name.startswith("_")]
        slots = max((slots_for(batched[name], batch.get(name, {})) for name in called), default=0)
        if "max_ongoing_requests" not in options:
            enough = {**dict(config), "max_ongoing_requests": max(config.max_ongoing_requests, slots)}
            return ClassConfig.model_construct(config.model_fields_set, **enough)  # the option still counts as unset
        if config.max_ongoing_requests < slots:
            raise ConfigError(
                f"max_ongoing_requests = {config.max_ongoing_requests}: its batches are full with {slots} at a time"
            )
        return config
    except ConfigError as error:
        raise ConfigError(f"class {cls.__name__}: {error}") from None


def _batched(cls: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name in dir(cls) if is_batched(method := getattr(cls, name, None))}


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values inside of lists, tuples, sets and dicts, at any depth."""
    within, seen = [value], set()
    while within:
        value = within.pop()
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            within += reversed(list(value.values() if isinstance(value, Mapping) else value))
