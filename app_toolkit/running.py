"""`run`, `deploy` and `get_handle` for scripts, notebooks and tests. `operate/instance.py` has the other commands."""

import atexit
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, Unpack, overload

from fastapi import FastAPI, Request

from app_toolkit.calls import handle as handles
from app_toolkit.calls.handle import Handle
from app_toolkit.config.models import ApplicationSpec, HTTPOptions, SplitSpec
from app_toolkit.config.options import Options, PlanOptions, RunKeywords, StartOptions, TrafficOptions
from app_toolkit.config.project import named_proxy_options, read_project, resolve_options
from app_toolkit.config.settings import only_at_start, read_settings, set_start_options, start_options
from app_toolkit.control.operations import Delete
from app_toolkit.control.queries import GetCallee, GetStatus
from app_toolkit.control.status import InstanceStatus
from app_toolkit.declare.deployment import Bound, NamedDeployment, of_function, pack
from app_toolkit.declare.planning import plan, plan_bound, stream_log_warnings, with_files, with_sources
from app_toolkit.declare.split import NamedSplit
from app_toolkit.engines import select
from app_toolkit.errors import ConfigError, InstanceEnded, Superseded, TargetError
from app_toolkit.host.interrupts import Interrupts, discard_output
from app_toolkit.instance import connect, open_instance, reach, this_process
from app_toolkit.interfaces import Deployable
from app_toolkit.operate import launch
from app_toolkit.operate.client import WAIT_S, Client, Driver, Engine
from app_toolkit.operate.launch import Manifest
from app_toolkit.operate.progress import serving_at, url_of
from app_toolkit.types import ASGIApp
from app_toolkit.userapp.graph import find, splits
from app_toolkit.userapp.target import Function, served

logger = logging.getLogger("app_toolkit.running")

T = TypeVar("T")

App = FastAPI | ASGIApp | Callable[[Request], Any] | Callable[[], Any]
"""An app, a function that answers requests, or a factory of one of them."""

MOST_CODE = 16 * 1024 * 1024
"""Maximum size of a packed deployment in bytes. The control store of a Ray cluster keeps it in memory."""


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
    with this_process.changing:
        served, spec, code = _planned(app, chosen)
        if spec.route_prefix is None and "route_prefix" in options:
            raise ConfigError(f"{spec.target} has no __call__, so nothing would answer below {chosen.route_prefix!r}")
        spec, sources = _snapshot(spec, served)
        _warn(spec)
        manifest = Manifest([spec], {**code, **sources}, chosen.part(HTTPOptions), named)
        driver = _running(manifest, chosen, options)
    client = driver.client
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
    driver.serve(spec.name, (*find(served), *splits(served)) if isinstance(served, FastAPI | Deployable) else ())
    result = app.handle if isinstance(app, Bound) else Application(spec.name, url_of(serving, spec))
    if blocking:
        _serve_until_signal(client, serving_at(serving, spec))
    return result


def deploy(
    app: Bound[Any] | App,
    *,
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

    `include`: files that are packed although files of their name are left out, such as `".env"`.

    `traffic`: do not replace the running revision of this name, but start another one beside it, which gets this
    percentage of the requests once it is available. `tag`: the name of such a revision. `mirror`: the percentage of the
    requests that it gets copies of. See the methods `set_traffic`, `promote` and `abort` of `Instance`.

    Raises `ConfigError` if it cannot be deployed. With `wait`, also if it does not become available: `StartupError` if
    it cannot start or was rolled back, `Superseded` if another client has replaced or deleted it meanwhile. Raises
    `InstanceEnded` if the instance is shut down meanwhile.
    """
    if isinstance(include, str):
        raise ConfigError(f"include = {include!r}: it should be a list of names")
    if "engine" in options:
        raise ConfigError("deploy() has no option 'engine': the instance runs already, and `address` names it")
    for name in StartOptions.model_fields:
        if name in options:
            raise ConfigError(f"deploy() has no option {name!r}: {only_at_start(name)}")
    chosen, named = _resolved(options)
    with this_process.changing:
        _, spec, code = _planned(app, chosen)
        spec, files, sentences = with_files(spec, include)
        for sentence in sentences:
            logger.warning(sentence)
        _warn(spec)
    manifest = Manifest([spec], {**code, **files}, chosen.part(HTTPOptions), named)
    beside = TrafficOptions.given(traffic, tag, mirror)
    with open_instance(chosen, Options(**options), begin=beside is None) as instance:
        client = instance.client
        traffic_of = {} if beside is None else {spec.name: beside}
        revisions = launch.apply(client, launch.changes(client, manifest, traffic_of).commands, traffic_of)
        if wait:
            client.wait_until_serving(revisions, wait_timeout_s)


def status(*, address: str | None = None) -> InstanceStatus:
    """Return the status of the instance. `address`: as of `deploy`. Raises `ConfigError` if no instance runs."""
    with connect(address) as instance:
        return instance.status()


def get_handle(application: str, deployment: str, *, address: str | None = None) -> Any:
    """Return the handle of a deployment or split of any running application.

    It is for a script, or for a replica of another application.

    Asks the instance once for the methods. The class and its module are not needed. In a script that has run nothing,
    `address` is the instance or the cluster to join, by default the one of this machine. Raises `ConfigError` if there
    is no instance or no such deployment.
    """
    command = GetCallee(application, deployment)
    with this_process.changing:
        driver = this_process.driver
        if driver is None:
            named = Options(address=address) if address is not None else Options()
            engine, place = reach(Options(address=address or read_settings().address), named)
            client = engine.connect(place)
            try:
                callee = client.execute(command)
                if handles.in_one_process():  # this is not a replica, whose handles call already
                    _drive(engine, client)
            except BaseException:
                client.close()
                raise
        else:
            if address is not None:
                driver.client.check_address(address)
            callee = driver.client.execute(command)
    if isinstance(callee, SplitSpec):
        return Handle(NamedSplit(application, callee))
    return Handle(NamedDeployment(application, deployment, callee.methods))


def shutdown() -> None:
    """Delete the applications that this process has run, and wait until they have drained.

    An instance that `run` has started ends. Other applications of an instance that it has joined continue. Does nothing
    if this process has run nothing. Functions that wait in other threads meanwhile raise `InstanceEnded` or
    `Superseded`.
    """
    with this_process.changing:
        driver, this_process.driver = this_process.driver, None
        atexit.unregister(shutdown)
        if driver is not None:
            driver.close()


def _running(manifest: Manifest, chosen: Options, options: RunKeywords) -> Driver:
    """Return the driver of this process, and start it if necessary. `options`: those that the caller gave."""
    driver = this_process.driver
    if driver is not None:
        _check_start(options, start_options() if driver.client.is_local else None)
        current, named = driver.client.engine, options.get("engine")
        if named not in (None, current):
            raise ConfigError(f"run() cannot apply engine = {named!r}: this process runs applications on {current}")
        if (address := options.get("address")) is not None:
            driver.client.check_address(address)
        driver.client.acquire_lease()
        return driver
    if not handles.in_one_process():
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


def _check_start(options: RunKeywords, current: StartOptions | None) -> None:
    """Raise `ConfigError` if the caller gave an option that the instance, which runs already, would not apply.

    `present`: the options with which the instance was started; None: they are not known.
    """
    of_start: dict[str, Any] = {name: value for name, value in options.items() if name in StartOptions.model_fields}
    requested = StartOptions(**of_start)
    for name in StartOptions.model_fields:
        value = getattr(requested, name)
        if name in options and value is not None and (current is None or value != getattr(current, name)):
            raise ConfigError(f"run() cannot apply {name} = {value!r}: {only_at_start(name)}")


def _drive(engine: Engine, client: Client) -> Driver:
    this_process.driver = driver = engine.drive(client)
    atexit.register(shutdown)  # runs before the engine's own exit handler, because that is registered already
    return driver


def _resolved(options: RunKeywords) -> tuple[Options, HTTPOptions]:
    """Return the options of all sources, and those of the proxies that change proxies which run already."""
    project, options_given = read_project(Path.cwd()), Options(**options)
    return resolve_options(project, options_given), named_proxy_options(project, options_given)


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
    options = chosen.part(PlanOptions).keywords
    target_app = served(app, getattr(app, "__name__", type(app).__name__))
    if isinstance(target_app, Function):
        target_app = of_function(app)
    if isinstance(target_app, Bound):
        code = pack(target_app)
        if len(code) > MOST_CODE:
            raise ConfigError(
                f"{target_app!r} is {len(code)} bytes when it is packed, the limit is {MOST_CODE}: bind it with the "
                "path of what is large, and read that in the constructor"
            )
        module = sys.modules.get(target_app.cls.__module__)
        folder = None if module is None else _folder(module)
        spec = plan_bound(target_app, code, app_dir=str(folder or Path.cwd()), **options)
        return target_app, spec, {spec.code: code}
    target, folder = _import_target(app)
    return target_app, plan(target_app, target=target, app_dir=str(folder), **options), {}


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
