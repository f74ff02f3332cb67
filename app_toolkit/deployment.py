"""Classes that are served: what they say of themselves, and what is bound to them."""

import inspect
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

import cloudpickle

from app_toolkit.config.models import ClassConfig
from app_toolkit.core.methods import kebab
from app_toolkit.engines.local import IN_PROCESS
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import DEPLOYMENT_CLASS, Deployable
from app_toolkit.replica.batching import is_batched, slots_for
from app_toolkit.replica.http import answers_http
from app_toolkit.replica.target import class_of
from app_toolkit.router import handle as handles
from app_toolkit.router.handle import Handle, deployment_of
from app_toolkit.types import Kind, OnDisconnect, Retry

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

handles.default = lambda: IN_PROCESS


class ActorKeywords(TypedDict, total=False):
    """`ClassActorOptions`, for type checkers."""

    num_cpus: float
    num_gpus: float
    memory: int | None
    resources: dict[str, float]
    accelerator_type: str | None
    runtime_env: dict[str, Any] | None


class BatchKeywords(TypedDict, total=False):
    """`BatchLimits`, for type checkers."""

    max_batch_size: int | None
    batch_wait_timeout_s: float | None
    max_concurrent_batches: int | None


class AutoscalingKeywords(TypedDict, total=False):
    """`AutoscalingConfig`, for type checkers."""

    min_replicas: int
    initial_replicas: int | None
    max_replicas: int
    target_ongoing_requests: float
    look_back_period_s: float
    upscale_delay_s: float
    downscale_delay_s: float
    downscale_to_zero_delay_s: float | None
    upscaling_factor: float
    downscaling_factor: float


class DeploymentKeywords(TypedDict, total=False):
    """The options of a class, for type checkers; `ClassConfig` has their units, defaults and bounds."""

    name: str
    num_replicas: int | Literal["auto"]
    autoscaling_config: AutoscalingKeywords | None
    max_ongoing_requests: int
    max_queued_requests: int
    max_queue_wait_s: float
    request_timeout_s: float | None
    retry: Retry
    max_body_size: int | None
    max_open_streams: int
    on_disconnect: OnDisconnect
    max_replicas_per_node: int | None
    max_surge: int | str
    max_unavailable: int | str
    startup_timeout_s: float
    graceful_shutdown_timeout_s: float
    health_check_period_s: float
    health_check_timeout_s: float
    health_check_failure_threshold: int
    ray_actor_options: ActorKeywords
    sync_threads: int
    user_config: Mapping[str, Any] | None
    batch: Mapping[str, BatchKeywords]


OF_INGRESSES = ClassConfig.model_fields.keys() - DeploymentKeywords.__annotations__.keys()
"""Options about WebSockets, which a class does not serve."""

OF_HTTP = frozenset({"max_body_size", "max_open_streams", "on_disconnect"})
"""Options of ingresses, and of classes that answer HTTP with `__call__`."""


class Bound(Deployable, Generic[T_co]):
    """One deployment: a class, its options, and the arguments that each replica constructs it with.

    As a dependency, `Annotated[Writer, Depends(writer)]`, it gives a route the handle. No two of them are equal.
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
        """Calls its replicas; for scripts, lifespans, and as an argument of another deployment's `bind`."""
        return cast(T_co, self._handle)

    @property
    def needs(self) -> "tuple[Bound[Any], ...]":
        """The deployments whose handles it was bound with, in order; also those in lists, tuples, sets and dicts."""
        handles = [value for value in _leaves((self._args, self._kwargs)) if isinstance(value, Handle)]
        return tuple(each for each in map(deployment_of, handles) if isinstance(each, Bound))

    def make(self) -> T_co:
        """An ordinary object of the class."""
        return cast(T_co, self.cls(*self._args, **self._kwargs))

    # Asynchronous, because FastAPI runs a synchronous dependency in a thread.
    async def __call__(self) -> T_co:
        return self.handle

    def __repr__(self) -> str:
        return f"<{self.cls.__name__} bound as {self.name}>"

    if not TYPE_CHECKING:  # else every name would be right to a type checker

        def __getattr__(self, name: str) -> Any:
            said = f"a bound deployment has no attribute {name!r}"
            if not name.startswith("_"):
                said += f"; methods of {self.cls.__name__} are called through its `handle`"
            raise AttributeError(said)


class Elsewhere(Deployable):
    """A deployment of an application that runs already, known by its names and its methods alone."""

    def __init__(self, application: str, name: str, methods: Mapping[str, Kind]) -> None:
        self.application = application
        self._name = name
        # A class with the same kinds of methods: that is all that a handle asks.
        self.cls = type(name, (), {method: _SHAPES[kind] for method, kind in methods.items()})

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> tuple[Deployable, ...]:
        return ()

    def make(self) -> object:
        raise ConfigError(f"{self.name!r} is a part of application {self.application!r}: there its objects are made")


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
    """A bound deployment, with those whose handles it has, for processes that import nothing of `__main__`.

    Classes and functions of `__main__`, and those that are made in functions, go along; others are imported there.
    Raises `ConfigError` for arguments that cannot be pickled.
    """
    packed = io.BytesIO()
    try:
        _Packer(packed, 5).dump(bound)
    except Exception as error:
        raise ConfigError(f"{bound!r} cannot be brought to its replicas: {type(error).__name__}: {error}") from error
    return packed.getvalue()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Packs the two things that nobody else may pickle: elsewhere a copy of them would stand for nothing."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Bound):
            # Its options are in the application's spec: a change of one is no change of what is packed.
            return Bound, (obj.cls, ClassConfig(name=obj.name), obj._args, obj._kwargs)
        if isinstance(obj, Handle):
            return Handle, (deployment_of(obj), obj._options)
        return super().reducer_override(obj)


class Configured(Generic[P, T]):
    """A class with options."""

    def __init__(self, cls: Callable[P, T], said: Mapping[str, Any]) -> None:
        if not isinstance(cls, type):
            raise ConfigError(f"a deployment is made of a class, not of {cls!r}")
        self._cls = cls
        self._said = said
        self._config = configure(cls, said)

    def options(self, **said: Unpack[DeploymentKeywords]) -> "Configured[P, T]":
        """The same class with other options; what is not said stays. Raises `ConfigError` for what cannot be."""
        return Configured(cast(Callable[P, T], self._cls), {**self._said, **said})

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[T]:
        """A deployment whose replicas construct the class with these arguments.

        Raises `ConfigError` for arguments that the constructor does not take, for an abstract class, and for a
        `user_config` that nothing takes up.
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
        except ValueError:  # a class made in C may have no signature: its constructor will say
            pass
        for value in _leaves((args, kwargs)):
            if isinstance(value, Bound):
                raise ConfigError(f"{cls.__name__}.bind() is given {value!r}, and it is to be given its `handle`")
        return Bound(cls, self._config, args, kwargs)


class Deployment:
    """A base class for what is served: `class Writer(Deployment, num_replicas=2)`, then `Writer.bind("small")`.

    The class stays an ordinary one. A class that inherits from it inherits its options, but for `name`. Raises
    `ConfigError` for an option that is out of bounds or unknown.
    """

    def __init_subclass__(cls, **said: Unpack[DeploymentKeywords]) -> None:
        super().__init_subclass__()
        # A dataclass with slots makes its class a second time, from the first one's attributes.
        setattr(cls, DEPLOYMENT_CLASS, {**cls.__dict__.get(DEPLOYMENT_CLASS, {}), **said})
        configure(cls, _said(cls))

    @classmethod
    def bind(cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Bound[T]:
        """A deployment whose replicas construct this class with these arguments."""
        return Configured(cls, _said(cls)).bind(*args, **kwargs)

    @classmethod
    def options(cls: Callable[P, T], **said: Unpack[DeploymentKeywords]) -> Configured[P, T]:
        """This class with other options; what is not said stays as the class says."""
        return Configured(cls, {**_said(cls), **said})


def deployment(cls: Callable[P, T], **said: Unpack[DeploymentKeywords]) -> Configured[P, T]:
    """What `Deployment` gives, for a class that one cannot subclass: `deployment(Model, num_replicas=2).bind(...)`."""
    return Configured(cls, said)


def of_function(respond: Callable[[Any], Any]) -> Bound[Any]:
    """A deployment that answers HTTP with a function, named after it."""
    return deployment(class_of(respond)).bind()


def _said(cls: object) -> dict[str, Any]:
    """The options of a class and of those it inherits from; a name is its own."""
    said: dict[str, Any] = {}
    classes = cls.__mro__ if isinstance(cls, type) else ()
    for each in reversed(classes):
        said.pop("name", None)
        said.update(each.__dict__.get(DEPLOYMENT_CLASS, {}))
    return said


def unfit(cls: type, said: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Options that no deployment of this class can have, whatever their values: where each is, and why."""
    for option in sorted(said.keys() & OF_INGRESSES):
        yield (option,), f"{option!r} is an option of ingresses, and a class answers calls"
    of_http = sorted(said.keys() & OF_HTTP)
    if of_http and not answers_http(cls):
        for option in of_http:
            why = f"{option!r} is an option of ingresses and of classes with __call__, and this class has none"
            yield (option,), why
    batched, limits = _batched(cls), said.get("batch")
    for name in limits if isinstance(limits, Mapping) else ():
        if name not in batched:
            why = f"batch.{name}: it has no @batch method {name!r}, only {', '.join(batched) or 'none'}"
            yield ("batch", name), why


def configure(cls: type, said: Mapping[str, Any]) -> ClassConfig:
    """The options of a deployment of this class that says these. Raises `ConfigError` for what cannot be."""
    for _, why in unfit(cls, said):
        raise ConfigError(f"class {cls.__name__}: {why}")
    batched = _batched(cls)
    try:
        config = ClassConfig(**{"name": kebab(cls.__name__), **said})
        batch = config.live.batch
        called = [name for name in batched if not name.startswith("_")]
        slots = max((slots_for(batched[name], batch.get(name, {})) for name in called), default=0)
        if "max_ongoing_requests" not in said:
            enough = {**dict(config), "max_ongoing_requests": max(config.max_ongoing_requests, slots)}
            return ClassConfig.model_construct(config.model_fields_set, **enough)  # still nobody has said it
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
    """What lists, tuples, sets and the values of dicts hold, however deep."""
    within, seen = [value], set()
    while within:
        value = within.pop()
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            within += reversed(list(value.values() if isinstance(value, Mapping) else value))
