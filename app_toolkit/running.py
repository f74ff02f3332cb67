"""The Python interface of the commands `run`, `deploy` and others, for scripts, notebooks and tests."""

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, Unpack, overload

from fastapi import FastAPI, Request

from app_toolkit import launch
from app_toolkit.client.client import WAIT_S, Client, Driver, Engine
from app_toolkit.client.commands import (
    Abort,
    BeginRelease,
    Delete,
    GetCallee,
    GetEvents,
    GetStatus,
    PauseRelease,
    Promote,
    Scale,
    SetSplit,
    SetTraffic,
)
from app_toolkit.client.interrupts import Interrupts, discard_output
from app_toolkit.client.progress import serving_at, url_of
from app_toolkit.config.models import ApplicationSpec, HTTPOptions, SplitSpec
from app_toolkit.config.options import Options, PlanOptions, RunKeywords, StartOptions, TrafficOptions
from app_toolkit.config.project import named_proxy_options, read_project, resolve_options
from app_toolkit.config.settings import only_at_start, read_settings, set_start_options, start_options
from app_toolkit.core.canary import EVERY, GUARDS, MIN_REQUESTS, STEPS, plan_release
from app_toolkit.core.slow import SlowRequest
from app_toolkit.core.status import InstanceStatus
from app_toolkit.deployment import Bound, NamedDeployment, of_function, pack
from app_toolkit.engines import select
from app_toolkit.errors import ConfigError, InstanceEnded, Superseded, TargetError
from app_toolkit.interfaces import Deployable
from app_toolkit.launch import Manifest
from app_toolkit.observability.event_log import LoggedEvent
from app_toolkit.planning import plan, plan_bound, stream_log_warnings, with_files, with_sources
from app_toolkit.router import handle as handles
from app_toolkit.router.handle import Handle
from app_toolkit.split import NamedSplit
from app_toolkit.types import ASGIApp
from app_toolkit.userapp.graph import find, splits
from app_toolkit.userapp.target import Function, served

logger = logging.getLogger("app_toolkit.running")

T = TypeVar("T")

App = FastAPI | ASGIApp | Callable[[Request], Any] | Callable[[], Any]
"""An app, a function that answers requests, or a factory of one of them."""

MOST_CODE = 16 * 1024 * 1024
"""Maximum size of a packed deployment in bytes. The control store of a Ray cluster keeps it in memory."""

_driver: Driver | None = None
_lock = threading.Condition()
"""Held while this process joins or leaves a cluster and while a command is planned, but not while a client waits. The
driver of `run` and `get_handle` starts after the commands that use `_connection` have ended."""
_connection: tuple[Client, str] | None = None
"""The client and the named cluster of commands in progress, if there is no driver. Its last user disconnects it."""
_users: list[int] = []
"""The threads that use the client of `_driver` or `_connection`, once for each use. `shutdown` waits for those of other
threads."""


@dataclass(frozen=True, slots=True)
class Application:
    """An app that is served."""

    name: str
    url: str
    """The URL for clients, including the route prefix."""


@overload
def run(app: Bound[T], *, blocking: bool = False, **options: Unpack[RunKeywords]) -> T: ...
@overload
def run(app: App, *, blocking: bool = False, **options: Unpack[RunKeywords]) -> Application: ...
def run(app: Any, *, blocking: bool = False, **options: Unpack[RunKeywords]) -> Any:
    """Serve an app, a function or a bound deployment with replicas, and return when it is available.

    Return an `Application`, or for a bound deployment its handle. A function, and the `__call__` of a deployment's
    class, answers every request below the prefix. A function that can be called without arguments is a factory:
    replicas import and call it.

    The options, and the places where they can be set, are those of the command `run`. The first call joins the instance
    or the Ray cluster at `address`, or the Ray cluster that this process belongs to. Otherwise it starts processes of
    this machine, or with `engine="ray"` a local Ray. Later calls use the same one. What was run ends with `shutdown()`
    and with this process. A second call with the same `name` replaces the application.
    `blocking`: serve until Ctrl-C, SIGTERM or SIGHUP, and shut down; only on the main thread.

    Raises `ConfigError` if it cannot be served. An application that it would have replaced continues.
    """
    chosen, named = _resolved(options)
    with ExitStack() as stack:
        with _lock:
            served, spec, code = _planned(app, chosen)
            if spec.route_prefix is None and "route_prefix" in options:
                raise ConfigError(
                    f"{spec.target} has no __call__, so nothing would answer below {chosen.route_prefix!r}"
                )
            spec, sources = _snapshot(spec, served)
            _warn(spec)
            manifest = Manifest([spec], {**code, **sources}, chosen.part(HTTPOptions), named)
            driver = _running(manifest, chosen, options)
            client = stack.enter_context(_used(driver.client))
        is_new = client.execute(GetStatus()).application(spec.name) is None
        revisions = launch.apply(client, launch.commands_with_lease(client, manifest))
        try:
            serving = client.wait_until_serving(revisions)
        except Superseded:
            raise
        except ConfigError:
            if is_new:
                client.execute(Delete(spec.name))
            raise
        with _lock:
            driver.serve(
                spec.name, (*find(served), *splits(served)) if isinstance(served, FastAPI | Deployable) else ()
            )
        result = app.handle if isinstance(app, Bound) else Application(spec.name, url_of(serving, spec))
    if blocking:
        _serve_until_signal(client, serving_at(serving, spec))
    return result


def deploy(
    app: Bound[Any] | App,
    *,
    only: Collection[str] = (),
    include: Sequence[str] = (),
    traffic: float | None = None,
    tag: str | None = None,
    mirror: float | None = None,
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    **options: Unpack[RunKeywords],
) -> None:
    """Deploy an app, a function or a bound deployment to an instance, where it stays after the end of this process.

    The options are those of `run`, except that `address` is by default the Ray cluster that this process belongs to,
    the instance on processes of this machine, or the Ray cluster that runs on it. The files of the app's folder are
    included. Call its methods through `get_handle`.
    `wait`: wait until it is available and nothing that it replaces answers any more, at most `wait_timeout_s` seconds.

    `only`: take only these deployments from `app`, and keep the others of the running application of this name. They
    are given by name or by endpoints such as `"POST /embed"`. Those of them that `app` does not have are deleted.

    `include`: files that are packed although files of their name are left out, such as `".env"`.

    `traffic`: do not replace the running revision of this name, but start another one beside it, which gets this
    percentage of the requests once it is available. `tag`: the name of such a revision. `mirror`: the percentage of the
    requests that it gets copies of. See `set_traffic`, `promote` and `abort`.

    Raises `ConfigError` if it cannot be deployed. With `wait`, also if it does not become available: `StartupError` if
    it cannot start or was rolled back, `Superseded` if another client has replaced or deleted it meanwhile. Raises
    `InstanceEnded` if the instance is shut down meanwhile.
    """
    for option, names in (("only", only), ("include", include)):
        if isinstance(names, str):
            raise ConfigError(f"{option} = {names!r}: it should be a list of names")
    if "engine" in options:
        raise ConfigError("deploy() has no option 'engine': the instance runs already, and `address` names it")
    for name in StartOptions.model_fields:
        if name in options:
            raise ConfigError(f"deploy() has no option {name!r}: {only_at_start(name)}")
    chosen, named = _resolved(options)
    with _lock:
        _, spec, code = _planned(app, chosen)
        spec, files, sentences = with_files(spec, include)
        for sentence in sentences:
            logger.warning(sentence)
        _warn(spec)
    manifest = Manifest([spec], {**code, **files}, chosen.part(HTTPOptions), named)
    beside = TrafficOptions.given(traffic, tag, mirror)
    if only and beside is not None:
        raise ConfigError(
            "'only' updates the running revision; 'traffic', 'tag' and 'mirror' start another one beside it"
        )
    with _client(options.get("address"), chosen.address, begin=not only and beside is None) as client:
        traffic_of = {} if beside is None else {spec.name: beside}
        revisions = launch.apply(client, launch.changes(client, manifest, only, traffic_of).commands, traffic_of)
        if wait:
            client.wait_until_serving(revisions, wait_timeout_s)


def scale(
    deployment: str,
    num_replicas: int,
    *,
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    address: str | None = None,
) -> None:
    """Change the number of replicas of `APPLICATION/DEPLOYMENT`, until it is deployed again. No replica restarts.

    `wait`, `wait_timeout_s` and `address` are as of `deploy`. Raises `ConfigError` if there is no such deployment, if
    it cannot have this number of replicas or, with `wait`, if they do not become available.
    """
    command = Scale.named(deployment, num_replicas)
    with _client(address) as client:
        revision = client.execute(command)
        if wait:
            client.wait_until_serving({command.application: revision}, wait_timeout_s)


@overload
def set_traffic(
    name: str,
    weights: Mapping[int, float] | None = None,
    *,
    mirror: Mapping[int, float] | None = None,
    address: str | None = None,
) -> None: ...
@overload
def set_traffic(
    name: str,
    weights: Mapping[str, float] | None = None,
    *,
    mirror: Mapping[str, float] | None = None,
    address: str | None = None,
) -> None: ...
def set_traffic(
    name: str,
    weights: Mapping[Any, float] | None = None,
    *,
    mirror: Mapping[Any, float] | None = None,
    address: str | None = None,
) -> None:
    """Set the weights of the live revisions of an application, or of the members of a split. Their sum is 100 %.

    Of an application, such as `set_traffic("shop", {12: 90, 13: 10})`, a revision that is missing has the weight 0.
    Without a tag and a mirror, it then drains and is removed, except for the main revision. `weights`: None: they stay.
    `mirror`: by revision, the percentage of the requests of the others that it gets copies of, such as `{13: 50}`. A
    revision that is missing keeps its percentage. 0 ends it.

    Of a split, such as `set_traffic("shop/writer", {"writer-v1": 50, "writer-v2": 50}, mirror={"writer-v3": 10})`, the
    members take the place of the revisions. Weights and percentages last until the application is deployed again.

    Every process follows within 2 seconds. `address`: as of `deploy`. Raises `ConfigError` if there is no such
    application, revision, split or member, a weight is negative or not finite, all are 0, or a percentage is not
    between 0 and 100.
    """
    mirrors = {mirrored: percent / 100 for mirrored, percent in (mirror or {}).items()}
    with _client(address) as client:
        if "/" in name:
            client.execute(SetSplit.named(name, dict(weights or {}), mirrors))
        else:
            client.execute(SetTraffic(name, dict(weights or {}), mirrors))


def rollout(
    application: str,
    revision: int | None = None,
    *,
    steps: Sequence[float] = STEPS,
    every: str | float = EVERY,
    guards: Sequence[str] = GUARDS,
    min_requests: int = MIN_REQUESTS,
    address: str | None = None,
) -> None:
    """Begin a canary release: shift the requests of an application to a live revision, step by step.

    Return as soon as it has begun. `status` shows how far it is. When the last step has passed, the live revision is
    promoted. If a guard does not hold, or the revision fails, the main revision gets all requests, and the live one is
    removed.

    Parameters:
        application: Its name.
        revision: The live revision; None for the only one beside the main revision.
        steps: Its shares of the requests in percent, in rising order.
        every: The least duration of a step, such as `"5m"`, or in seconds.
        guards: Limits of the error rate and the latency, such as `"error_rate<1%"` or `"p95<1.2x"`, compared with the
            main revision.
        min_requests: The least number of requests of each revision in a step.
        address: As of `deploy`.

    Raises `ConfigError` if there is no such application or revision, a parameter is invalid, another revision gets
    requests, too, or a release goes on.
    """
    plan = plan_release(steps, every, guards, min_requests)
    with _client(address) as client:
        client.execute(BeginRelease(application, plan, revision))


def pause_rollout(application: str, *, address: str | None = None) -> None:
    """Pause the canary release of an application: its weights stay, whatever the guards find.

    `address`: as of `deploy`. Raises `ConfigError` if no release goes on.
    """
    with _client(address) as client:
        client.execute(PauseRelease(application, paused=True))


def resume_rollout(application: str, *, address: str | None = None) -> None:
    """Resume the canary release of an application. Its present step begins again.

    `address`: as of `deploy`. Raises `ConfigError` if no release goes on.
    """
    with _client(address) as client:
        client.execute(PauseRelease(application, paused=False))


def promote(
    application: str,
    revision: int | None = None,
    *,
    wait: bool = True,
    wait_timeout_s: float = WAIT_S,
    address: str | None = None,
) -> None:
    """Send all requests to a live revision, and make it the main revision of its application.

    The main revision is updated while the live one serves. Then the live revisions are removed. `revision`: None for
    the only one beside the main revision. `wait`, `wait_timeout_s` and `address` are as of `deploy`. Raises
    `ConfigError` if there is no such application or revision or, with `wait`, if it does not become available.
    """
    with _client(address) as client:
        number = client.execute(Promote(application, revision))
        if wait:
            client.wait_until_serving({application: number}, wait_timeout_s)


def abort(application: str, *, address: str | None = None) -> None:
    """Send all requests to the main revision of an application, and remove its other live revisions.

    `address`: as of `deploy`. Raises `ConfigError` if there is no such application.
    """
    with _client(address) as client:
        client.execute(Abort(application))


def rollback(
    application: str, *, wait: bool = True, wait_timeout_s: float = WAIT_S, address: str | None = None
) -> None:
    """Return to the last stable revision of an application, other than the present one.

    `wait`, `wait_timeout_s` and `address` are as of `deploy`. Raises `ConfigError` if there is no such version or, with
    `wait`, if it does not become available.
    """
    with _client(address) as client:
        reverted = client.rollback(application)
        if wait:
            client.wait_until_serving({application: reverted.revision}, wait_timeout_s)


def delete(name: str, *, wait: bool = True, address: str | None = None) -> None:
    """Delete `APPLICATION` or `APPLICATION/DEPLOYMENT`, whichever client deployed it. Its name can then be used again.

    `wait`: wait until its replicas have drained and ended. `address`: as of `deploy`. Raises `ConfigError` if there is
    none of that name, or if it is in use.
    """
    command = Delete.named(name)
    with _client(address) as client:
        client.execute(command)
        if wait:
            client.wait_until_gone(command)


def status(*, address: str | None = None) -> InstanceStatus:
    """Return the status of the instance. `address`: as of `deploy`. Raises `ConfigError` if no instance runs."""
    with _client(address) as client:
        return client.execute(GetStatus())


def events(subject: str | None = None, *, last: int | None = None, address: str | None = None) -> Sequence[LoggedEvent]:
    """Return what the controller has done, and what has happened to replicas, from its event log, oldest first.

    `subject`: only events of this `APPLICATION` or `APPLICATION/DEPLOYMENT`; None: all. `last`: at most so many, the
    newest ones; None: all that the log keeps. `address`: as of `deploy`. Raises `ConfigError` if no instance runs.
    """
    with _client(address) as client:
        return client.execute(GetEvents(subject, last)).events


def slow(name: str | None = None, *, last: int = 20, address: str | None = None) -> Sequence[SlowRequest]:
    """Return the slowest requests of the last ten minutes, the slowest first, with their stages and their slow calls.

    `name`: an `APPLICATION`, or `APPLICATION/DEPLOYMENT` for the requests and calls of one deployment; None: the
    requests of all applications. `last`: at most so many. `address`: as of `deploy`. Raises `ConfigError` if no
    instance runs.
    """
    with _client(address) as client:
        return client.slow(name, last)


def get_handle(application: str, deployment: str, *, address: str | None = None) -> Any:
    """Return the handle of a deployment or split of any running application.

    It is for a script, or for a replica of another application.

    Asks the instance once for the methods. The class and its module are not needed. In a script that has run nothing,
    `address` is the instance or the cluster to join, by default the one of this machine. Raises `ConfigError` if there
    is no instance or no such deployment.
    """
    command = GetCallee(application, deployment)
    with _lock:
        _lock.wait_for(lambda: _connection is None)
        if _driver is not None:
            found = _driver.client.execute(command)
        else:
            inside = handles.runs_elsewhere()  # a replica
            engine, address = _instance(address)
            client = engine.connect(address)
            try:
                found = client.execute(command)
                if not inside:
                    _drive(engine, client)
            except BaseException:
                client.close()
                raise
    if isinstance(found, SplitSpec):
        return Handle(NamedSplit(application, found))
    return Handle(NamedDeployment(application, deployment, found.methods))


def shutdown() -> None:
    """Delete the applications that this process has run, and wait until they have drained.

    An instance that `run` has started ends. Other applications of an instance that it has joined continue. Does nothing
    if this process has run nothing. Waits until functions such as `run` have returned in other threads.
    """
    global _driver
    with _lock:
        _lock.wait_for(lambda: all(user == threading.get_ident() for user in _users))
        driver, _driver = _driver, None
        atexit.unregister(shutdown)
        if driver is not None:
            driver.close()


def _running(manifest: Manifest, chosen: Options, options: RunKeywords) -> Driver:
    """Return the driver of this process, and start it if necessary. `options`: those that the caller gave."""
    _lock.wait_for(lambda: _connection is None)
    if _driver is not None:
        _check_start(options, start_options() if _driver.client.is_local else None)
        _driver.client.acquire_lease()
        return _driver
    if handles.runs_elsewhere():
        raise ConfigError(
            f"run() was called in a replica, which imports {manifest.specs[0].target!r}: put the call below "
            '`if __name__ == "__main__":`'
        )
    engine = select.engine_of_run(chosen.engine, chosen.address)
    engine.preload()
    is_joined = engine.is_joined()
    address = options.get("address") if is_joined else chosen.address
    if address is not None or is_joined:
        _check_start(options, None)
    set_start_options(chosen)
    if not is_joined:
        launch.check(engine, address, manifest.http)
    client = launch.start(engine, manifest.specs, address, manifest.http)
    try:
        return _drive(engine, client)
    except BaseException:
        client.leave()
        raise


def _warn(spec: ApplicationSpec) -> None:
    for warning in stream_log_warnings([spec]):
        logger.warning(warning)


def _check_start(options: RunKeywords, present: StartOptions | None) -> None:
    """Raise `ConfigError` if the caller gave an option that the instance, which runs already, would not apply.

    `present`: the options with which the instance was started; None: they are not known.
    """
    of_start: dict[str, Any] = {name: value for name, value in options.items() if name in StartOptions.model_fields}
    given = StartOptions(**of_start)
    for name in StartOptions.model_fields:
        value = getattr(given, name)
        if name in options and value is not None and (present is None or value != getattr(present, name)):
            raise ConfigError(f"run() cannot apply {name} = {value!r}: {only_at_start(name)}")


def _drive(engine: Engine, client: Client) -> Driver:
    global _driver
    _driver = engine.drive(client)
    atexit.register(shutdown)  # runs before the engine's own exit handler, because that is registered already
    return _driver


def _resolved(options: RunKeywords) -> tuple[Options, HTTPOptions]:
    """Return the options of all sources, and those of the proxies that change proxies which run already."""
    project, given = read_project(Path.cwd()), Options(**options)
    return resolve_options(project, given), named_proxy_options(project, given)


def _instance(given: str | None, default: str | None = None) -> tuple[Engine, str | None]:
    """Return the engine of the instance, and its address; None: the instance of this process or of this machine.

    `default`: the address from the environment or the project. A process that belongs to a Ray cluster ignores that of
    another one.
    """
    address = given or default or read_settings().address
    engine = select.engine(address=address)
    return engine, None if given is None and engine.is_joined() else address


@contextmanager
def _client(given: str | None, default: str | None = None, *, begin: bool = False) -> Iterator[Client]:
    """Yield the client of this process's driver, or one that is connected to the address while the context is open.

    `begin`: start an instance if none runs at the Ray cluster. Threads share the connection, because a process belongs
    to one cluster at a time: a command for another address waits until the others have ended. Raises `ConfigError` if
    `given` is the address of another instance than that of the driver.
    """
    global _connection
    named = given or default or read_settings().address or "auto"
    with ExitStack() as stack:
        with _lock:
            _lock.wait_for(lambda: _connection is None or named in ("auto", _connection[1]))
            if _driver is not None:
                client = _driver.client
                if given is not None:
                    client.check_address(given)
            else:
                if _connection is None:
                    engine, address = _instance(given, default)
                    if begin:
                        client = engine.start(address=address or "auto", with_lease=False)
                    else:
                        client = engine.connect(address)
                    _connection = client, named
                client, _ = _connection
            stack.enter_context(_used(client))
        yield client


@contextmanager
def _used(client: Client) -> Iterator[Client]:
    """Yield the client. `shutdown` in another thread waits until the context is left."""
    global _connection
    with _lock:
        _users.append(threading.get_ident())
    try:
        yield client
    finally:
        with _lock:
            _users.remove(threading.get_ident())
            _lock.notify_all()
            if not _users and _connection is not None:
                _connection = None
                client.close()


def _serve_until_signal(client: Client, sentences: Iterable[str]) -> None:
    """Serve until a signal stops this process, or the instance is shut down."""
    with Interrupts() as interrupts:
        for sentence in (*sentences, "Press Ctrl-C to drain and stop."):
            stream = sys.stderr if start_options().log_file == "-" else sys.stdout
            try:
                print(sentence, flush=True, file=stream)
            except BrokenPipeError:  # its reader has left, but clients have not
                discard_output(stream.fileno())
        with suppress(InstanceEnded):
            for _ in client.watch(interrupts.not_interrupted):
                pass
    shutdown()


def _planned(app: Any, chosen: Options) -> tuple[ASGIApp | Deployable, ApplicationSpec, dict[str, bytes]]:
    """Return the app or the deployment, its plan, and the code that the plan refers to."""
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
    target, folder = _import_target(app)
    return found, plan(found, target=target, app_dir=str(folder), **options), {}


def _snapshot(spec: ApplicationSpec, served: ASGIApp | Deployable) -> tuple[ApplicationSpec, dict[str, bytes]]:
    """Return the application with a snapshot of its Python files, and the archive of the snapshot.

    There is none for a bound deployment whose module has no file, because its folder is only the current folder.
    """
    if isinstance(served, Bound):
        module = sys.modules.get(served.cls.__module__)
        if module is None or _folder(module) is None:
            return spec, {}
    (changed,), code, warnings = with_sources([spec])
    for warning in warnings:
        logger.warning(warning)
    return changed, code


def _import_target(app: object) -> tuple[str, Path]:
    """Return the target from which replicas import an app or its factory, and the folder for their import path."""
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
        f"the app {name!r} is not an attribute of a module that replicas can import: move it to a file of its own, "
        "or run a bound deployment instead"
    )


def _import_name(module: ModuleType) -> str:
    """Return the name under which a module can be imported, even if it is run as a script."""
    if module.__name__ != "__main__":
        return module.__name__
    if module.__spec__ is not None:
        return module.__spec__.name
    return Path(str(module.__file__)).stem


def _folder(module: ModuleType) -> Path | None:
    """Return the folder that a module is imported from; None: it has no file, as in a notebook."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parents[_import_name(module).count(".") + (path.name == "__init__.py")]
