"""Python's own front door: what the command `run` does, for scripts, notebooks and tests."""

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from fastapi import FastAPI, Request

from app_toolkit.client.client import WAIT_S, Client
from app_toolkit.client.commands import Delete, Deploy, GetMethods, GetStatus, Scale
from app_toolkit.client.interrupts import Interrupts
from app_toolkit.client.progress import serving_at, url_of
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import Options, PlanOptions
from app_toolkit.config.project import choose, read_project
from app_toolkit.config.settings import keep_priority, log_level, read_settings, say_log_level, say_plain_logs
from app_toolkit.core.status import InstanceStatus
from app_toolkit.deployment import Bound, Elsewhere, of_function, pack
from app_toolkit.errors import ConfigError, InstanceEnded, TargetError
from app_toolkit.interfaces import Deployable
from app_toolkit.planning import logical_cpus, plan, plan_bound, with_files, with_sources
from app_toolkit.proxy import addresses
from app_toolkit.replica.graph import find
from app_toolkit.replica.target import Function, served
from app_toolkit.router import handle as handles
from app_toolkit.router.handle import Handle
from app_toolkit.types import ASGIApp

if TYPE_CHECKING:
    from app_toolkit.engines.ray.client import RayClient
    from app_toolkit.engines.ray.driver import Driver

logger = logging.getLogger("app_toolkit.running")

T = TypeVar("T")

App = FastAPI | ASGIApp | Callable[[Request], Any] | Callable[[], Any]
"""An app, a function that answers requests, and a factory of one of them."""

MOST_CODE = 16 * 1024 * 1024
"""Bytes of a packed deployment, which the cluster's control store keeps in memory."""

_driver: "Driver | None" = None
_lock = threading.RLock()


class RunKeywords(TypedDict, total=False):
    """`Options`, for type checkers."""

    name: str
    route_prefix: str
    num_replicas: int | None
    address: str | None
    host: str
    port: int
    proxies_per_node: int
    keep_alive_timeout_s: float
    head_timeout_s: float
    min_body_rate: float
    body_grace_s: float
    max_connections: int | None
    max_requests_per_client: int | None
    forwarded_allow_ips: str
    ssl_keyfile: str | None
    ssl_certfile: str | None
    access_log: bool | str
    log_level: Literal["debug", "info", "warning", "error", "critical"]


@dataclass(frozen=True, slots=True)
class Application:
    """An app that is served."""

    name: str
    url: str
    """Where clients reach it, its prefix included."""


@overload
def run(app: Bound[T], *, blocking: bool = False, **options: Unpack[RunKeywords]) -> T: ...
@overload
def run(app: App, *, blocking: bool = False, **options: Unpack[RunKeywords]) -> Application: ...
def run(app: Any, *, blocking: bool = False, **options: Unpack[RunKeywords]) -> Any:
    """Serve an app, a function or a bound deployment on Ray, and give back once it is up.

    An `Application`; of a bound deployment its handle. A function, and the `__call__` of a deployment's class, answers
    every request below the prefix. A function that can be called without arguments is a factory: replicas import and
    call it. The options are those of the command `run`, and so are the places that they come
    from. The first call joins the cluster at `address`, or the one that this process is a part of, or starts a Ray of
    our own; later calls use the same. What was run goes with `shutdown()` and with this process; under the same `name`
    it is replaced. `blocking`: stay until a Ctrl-C, SIGTERM or SIGHUP, and shut down; on the main thread alone.

    Raises `ConfigError` where it cannot be served; what it was to replace goes on then.
    """
    chosen = choose(read_project(Path.cwd()), Options(**options))
    with _lock:
        served, spec, code = _planned(app, chosen)
        if spec.route_prefix is None and "route_prefix" in options:
            raise ConfigError(f"{spec.target} has no __call__, so nothing would answer below {chosen.route_prefix!r}")
        spec, sources = _snapshot(spec, served)
        driver = _running(spec, chosen, options)
        client = driver.client
        is_new = client.execute(GetStatus()).application(spec.name) is None
        client.execute(Deploy(spec, _listening(chosen), {**code, **sources}, client.owner))
        try:
            serving = client.wait_until_serving([spec.name])
        except ConfigError:
            if is_new:
                client.execute(Delete(spec.name))
            raise
        driver.serve(spec.name, find(served) if isinstance(served, FastAPI | Deployable) else ())
        result = app.handle if isinstance(app, Bound) else Application(spec.name, url_of(serving, spec))
    if blocking:
        _stay(client, serving_at(serving, spec))
    return result


def deploy(
    app: Bound[Any] | App,
    *,
    only: Collection[str] = (),
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    **options: Unpack[RunKeywords],
) -> None:
    """Bring an app, a function or a bound deployment onto a cluster, where it stays when this process has gone.

    The options are as of `run`, but that `address` is by default the cluster that this process is a part of, or that
    this machine runs. The files of its folder go along. `wait`: until it is up, and nothing of what it replaces answers
    any more, `wait_timeout_s` seconds at most. Its methods are called through `get_handle`.

    `only`: of the application of this name that runs, these deployments alone are taken from `app`, by their names or
    by endpoints such as `"POST /embed"`; what `app` does not have of them is deleted.

    Raises `ConfigError` where it cannot be deployed and, with `wait`, where it does not come up: it is not taken back.
    """
    if isinstance(only, str):
        raise ConfigError(f"only = {only!r}: it should be a list of names")
    if "log_level" in options:
        raise ConfigError(
            "deploy() has no option 'log_level': set APP_TOOLKIT_LOG_LEVEL in the environment of the cluster's nodes"
        )
    chosen = choose(read_project(Path.cwd()), Options(**options))
    with _lock:
        _, spec, code = _planned(app, chosen)
        spec, files = with_files(spec)
        command = Deploy(spec, _listening(chosen), {**code, **files})
        with _client(options.get("address"), chosen.address, begin=not only) as client:
            if only:
                command, _ = client.part(command, only)
            client.execute(command)
            if wait:
                client.wait_until_serving([spec.name], wait_timeout_s)


def scale(
    deployment: str,
    num_replicas: int,
    *,
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    address: str | None = None,
) -> None:
    """Run more or fewer replicas of `APPLICATION/DEPLOYMENT`, until it is deployed again. Nothing restarts.

    `wait`, `wait_timeout_s` and `address` are as of `deploy`. Raises `ConfigError` where there is no such deployment,
    it cannot have so many replicas or, with `wait`, they do not come up.
    """
    command = Scale.named(deployment, num_replicas)
    with _lock, _client(address) as client:
        client.execute(command)
        if wait:
            client.wait_until_serving([command.application], wait_timeout_s)


def rollback(
    application: str, *, wait: bool = True, wait_timeout_s: float = WAIT_S, address: str | None = None
) -> None:
    """Go back to the last good version of an application, other than the present one.

    `wait`, `wait_timeout_s` and `address` are as of `deploy`. Raises `ConfigError` where there is no such version or,
    with `wait`, where it does not come up.
    """
    with _lock, _client(address) as client:
        client.rollback(application)
        if wait:
            client.wait_until_serving([application], wait_timeout_s)


def delete(name: str, *, wait: bool = True, address: str | None = None) -> None:
    """Stop serving `APPLICATION`, or `APPLICATION/DEPLOYMENT` of it, whoever deployed it; the name is free again.

    `wait`: until its replicas have drained and are gone. `address`: as of `deploy`. Raises `ConfigError` where there is
    none of that name, and where it is in use.
    """
    command = Delete.named(name)
    with _lock, _client(address) as client:
        client.execute(command)
        if wait:
            client.wait_until_gone(command)


def status(*, address: str | None = None) -> InstanceStatus:
    """All that is known of what runs. `address`: as of `deploy`. Raises `ConfigError` where no instance runs."""
    with _lock, _client(address) as client:
        return client.execute(GetStatus())


def get_handle(application: str, deployment: str, *, address: str | None = None) -> Any:
    """The handle of a deployment of any application that runs: in a script, or in a replica of another application.

    Asks the instance once which methods there are; an object of the class is not needed, nor is its module. In a script
    that has run nothing, `address` is the cluster to join, by default the one that this machine runs. Raises
    `ConfigError` where there is no instance, or no such deployment.
    """
    command = GetMethods(application, deployment)
    with _lock:
        if _driver is not None:
            methods = _driver.client.execute(command)
        else:
            from app_toolkit.engines.ray.client import RayClient

            inside = handles.chosen  # a replica
            client = RayClient.connect(_address(address))
            try:
                methods = client.execute(command)
                if not inside:
                    _drive(client)
            except BaseException:
                client.close()
                raise
    return Handle(Elsewhere(application, deployment, methods))


def shutdown() -> None:
    """Take back what this process has run, drained, and wait for it; a Ray of our own ends, too.

    What else the cluster serves goes on. Nothing happens where nothing was run.
    """
    global _driver
    with _lock:
        driver, _driver = _driver, None
        atexit.unregister(shutdown)
        if driver is not None:
            driver.close()


def _running(spec: ApplicationSpec, chosen: Options, options: RunKeywords) -> "Driver":
    """This process as a driver of an instance that it holds. `options`: those that the caller gave."""
    if _driver is not None:
        _check_log_level(options, applies=_driver.client.is_local and chosen.log_level == log_level())
        _driver.client.hold()
        return _driver
    if handles.chosen:
        raise ConfigError(
            f'run() was called in a replica, which imports {spec.target!r}: say it below `if __name__ == "__main__":`'
        )
    say_plain_logs(colour=sys.stdout.isatty())
    keep_priority()
    from app_toolkit.engines.ray import cluster
    from app_toolkit.engines.ray.client import RayClient, is_driver

    address = options.get("address") if is_driver() else chosen.address
    _check_log_level(options, applies=address is None and not is_driver())
    say_log_level(chosen.log_level)
    if not is_driver():
        if address is None:
            addresses.check(chosen.part(HTTPOptions))
        else:
            cluster.check(address)
    client = RayClient.start(address=address, num_cpus=None if address else logical_cpus([spec]))
    try:
        return _drive(client)
    except BaseException:
        client.leave()
        raise


def _check_log_level(options: RunKeywords, *, applies: bool) -> None:
    """Raise `ConfigError` if the caller gave a log level that Ray, which runs already, would not apply."""
    if "log_level" in options and not applies:
        raise ConfigError(
            f"run() cannot apply log_level = {options['log_level']!r} to a Ray that runs already: set "
            "APP_TOOLKIT_LOG_LEVEL in the environment of its nodes"
        )


def _drive(client: "RayClient") -> "Driver":
    global _driver
    from app_toolkit.engines.ray.driver import Driver

    _driver = Driver(client)
    atexit.register(shutdown)  # after Ray has registered its own end, and so before it
    return _driver


def _listening(chosen: Options) -> HTTPOptions | None:
    """Where the proxies are is decided once; who says nothing of them leaves them where they are."""
    return chosen.part(HTTPOptions) if chosen.model_fields_set & HTTPOptions.model_fields.keys() else None


def _address(given: str | None, default: str | None = None) -> str | None:
    """The cluster that is meant; None: the one that this process is a part of, else the one of this machine.

    `default`: the address that the environment or the project says; a process that is a part of a cluster stays there.
    """
    from app_toolkit.engines.ray.client import is_driver

    return given if given is not None or is_driver() else default or read_settings().address


@contextmanager
def _client(given: str | None, default: str | None = None, *, begin: bool = False) -> "Iterator[RayClient]":
    """The instance that this process drives, or the one at the address for as long as it is needed.

    `begin`: where none runs there, one does from then on.
    """
    if _driver is not None:
        yield _driver.client
        return
    from app_toolkit.engines.ray.client import RayClient

    address = _address(given, default)
    with RayClient.start(address=address or "auto", held=False) if begin else RayClient.connect(address) as client:
        yield client


def _stay(client: Client, sentences: Iterable[str]) -> None:
    """Serve until somebody asks to stop, or the instance is shut down."""
    with Interrupts() as interrupts:
        for sentence in (*sentences, "Ctrl-C drains and stops."):
            print(sentence, flush=True)
        with suppress(InstanceEnded):
            for _ in client.watch(interrupts.nobody_asked):
                pass
    shutdown()


def _planned(app: Any, chosen: Options) -> tuple[ASGIApp | Deployable, ApplicationSpec, dict[str, bytes]]:
    """The app or the deployment, its plan, and the code that the plan names."""
    options = chosen.part(PlanOptions).model_dump()
    found = served(app, getattr(app, "__name__", type(app).__name__))
    if isinstance(found, Function):
        found = of_function(app)
    if isinstance(found, Bound):
        code = pack(found)
        if len(code) > MOST_CODE:
            raise ConfigError(
                f"{found!r} is {len(code)} bytes when it is packed, the limit is {MOST_CODE}: bind it with the path "
                "of what is large, and read that in the constructor"
            )
        module = sys.modules.get(found.cls.__module__)
        folder = None if module is None else _folder(module)
        spec = plan_bound(found, code, app_dir=str(folder or Path.cwd()), **options)
        return found, spec, {spec.code: code}
    target, folder = _whereabouts(app)
    return found, plan(found, target=target, app_dir=str(folder), **options), {}


def _snapshot(spec: ApplicationSpec, served: ASGIApp | Deployable) -> tuple[ApplicationSpec, dict[str, bytes]]:
    """The same application with its Python files, unless these are merely those of the current folder."""
    if isinstance(served, Bound):
        module = sys.modules.get(served.cls.__module__)
        if module is None or _folder(module) is None:
            return spec, {}
    (changed,), code, warnings = with_sources([spec])
    for warning in warnings:
        logger.warning(warning)
    return changed, code


def _whereabouts(app: object) -> tuple[str, Path]:
    """From where replicas import an app or its factory: `module:attribute`, and the folder that is first on their
    import path."""
    main = sys.modules["__main__"]
    modules = [module for module in list(sys.modules.values()) if module is not main]
    for module in (*modules, main):
        folder = _folder(module)
        if folder is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{_import_name(module)}:{attribute}", folder
    name = getattr(app, "title", getattr(app, "__name__", type(app).__name__))
    raise TargetError(
        f"the app {name!r} is no attribute of a module that replicas could import: put it into a file of its own, "
        "or run a bound deployment, which needs none"
    )


def _import_name(module: ModuleType) -> str:
    """Its name, where it is imported and not run."""
    if module.__name__ != "__main__":
        return module.__name__
    if module.__spec__ is not None:
        return module.__spec__.name
    return Path(str(module.__file__)).stem


def _folder(module: ModuleType) -> Path | None:
    """From where a module is imported; None: it has no file, as that of a notebook."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parents[_import_name(module).count(".") + (path.name == "__init__.py")]
