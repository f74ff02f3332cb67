"""Loading the user's app by its import path, selecting its ingress, and reporting why its startup failed."""

import importlib
import logging.config
import os
import pickle
import sys
import traceback
from collections.abc import Awaitable, Mapping
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from app_toolkit.config.fields import nearest
from app_toolkit.errors import TargetError
from app_toolkit.observability.slow_start import reported_if_slow
from app_toolkit.observability.tracebacks import shortened
from app_toolkit.types import ASGIApp, Message, Receive, Scope, Send

OURS = f"{Path(__file__).parents[1]}{os.sep}"

SHOWN_FRAMES = 6
"""Number of frames of a user's traceback that are shown. They are its last ones, where the error is."""

MOST_NAMES = 20
"""Maximum number of names of a module that an error lists."""


def load(target: str, app_dir: str) -> Any:
    """Return the object at `module:attribute`, imported with `app_dir` first on the import path.

    The attribute may be dotted. Raises `TargetError`; if user code failed during the import, its `__cause__` is that
    error.
    """
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise TargetError(f"the target {target!r} is not of the form 'module:attribute'")
    module = import_from(name, app_dir)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise TargetError(f"{name!r} ({module.__file__}) {has_no(module, attribute)}") from None


def import_from(name: str, app_dir: str) -> ModuleType:
    """Import a module of the user with `app_dir` first on the import path.

    Raises `TargetError`. If user code failed, its `__cause__` is that error, and the end of the traceback is a note.
    """
    _put_first_on_path(app_dir)
    try:
        with reported_if_slow(f"importing {name!r}"):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise _does_not_import(name, app_dir, error) from error


def unpack(target: str, code: bytes | None, app_dir: str) -> Any:
    """Unpickle the code of `target`. Modules that it refers to are imported with `app_dir` first on the import path.

    Raises `TargetError` as `import_from` does, also if `code` is None.
    """
    if code is None:
        raise TargetError(
            f"the packed code of {target!r} is no longer in the store: the application was deleted or replaced"
        )
    _put_first_on_path(app_dir)
    try:
        with reported_if_slow(f"unpacking {target!r}"):
            return pickle.loads(code)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise fails(f"the packed code of {target!r} cannot be unpacked", error) from error


def configure_logging(config: Mapping[str, Any], app_dir: str) -> None:
    """Apply a checked `logging_config`. Modules that it names are imported with `app_dir` first on the import path.

    Existing loggers stay enabled unless `disable_existing_loggers` is given, because those of this package exist.
    Raises `TargetError` if a class or function that it names does not import or raises an error.
    """
    _put_first_on_path(app_dir)
    try:
        logging.config.dictConfig({"disable_existing_loggers": False, **config})
    except Exception as error:  # user code, such as the constructor of a handler, may raise anything
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        raise TargetError(f"logging_config cannot be applied: {error}{cause}") from error


def _put_first_on_path(app_dir: str) -> None:
    if sys.path[:1] != [app_dir]:
        sys.path.insert(0, app_dir)
    importlib.invalidate_caches()  # the folder may have been written just now


def host(app: Any, ingress: str) -> ASGIApp:
    """Make the app serve one of its ingresses, if it has several. Raises `PlanningError` if it has no such ingress."""
    serve_only = getattr(app, "serve_only", None)
    if serve_only is not None:
        serve_only(ingress)
    return app  # type: ignore[no-any-return]


class Lifespan:
    """Forwards everything to the app, and keeps the message of a startup that failed."""

    def __init__(self, app: ASGIApp) -> None:
        self.failure: str | None = None
        """Why the startup failed, usually a traceback; None: it has not failed."""
        self._app = app

    # Requests need no further coroutine: this returns the awaitable of the app.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "lifespan":
            return self._lifespan(scope, receive, send)
        return self._app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        responded = False

        async def listen(message: Message) -> None:
            nonlocal responded
            responded = True
            if message["type"] == "lifespan.startup.failed":
                self.failure = message.get("message") or "the app gave no reason"
            await send(message)

        try:
            await self._app(scope, receive, listen)
        except BaseException as error:  # uvicorn handles it
            if not responded:
                self.failure = "".join(traceback.format_exception(error))
            raise


def _does_not_import(name: str, app_dir: str, error: BaseException) -> TargetError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame)]
    if isinstance(error, ModuleNotFoundError) and not frames:
        modules = [
            path.stem for path in Path(app_dir).glob("*") if path.suffix == ".py" or (path / "__init__.py").is_file()
        ]
        meant = nearest(str(error.name), modules)
        return TargetError(f"no module {error.name!r} in {app_dir} or among the installed packages{meant}")
    return fails(f"the module {name!r} does not import", error)


def fails(what: str, error: BaseException) -> TargetError:
    """Return an error with what failed and why in one sentence. The end of the user's traceback is a note."""
    if isinstance(error, SystemExit):
        reason = f"it ends the process (SystemExit: {error.code})"
    else:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    failure = TargetError(f"{what}: {reason.splitlines()[0]}")
    failure.add_note(users_traceback(error))
    return failure


def users_traceback(error: BaseException) -> str:
    """Return the end of a traceback, without the frames of this package."""
    shown = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in shown.stack if _is_the_users(frame)]
    shown.stack = traceback.StackSummary.from_list(frames[-SHOWN_FRAMES:])
    # The causes usually end in the same lines of user code, so they add nothing.
    shown.__cause__ = shown.__context__ = None
    return shortened("".join(shown.format()).rstrip())


def _is_the_users(frame: traceback.FrameSummary) -> bool:
    return frame.filename != importlib.__file__ and not frame.filename.startswith(("<frozen importlib", OURS))


def has_no(module: ModuleType, attribute: str) -> str:
    """Return that a module has no object of this name, and which other one may be meant."""
    return f"has no {attribute!r}{nearest(attribute, _names(module)) or f'; it has {names(module)}'}"


def _names(module: ModuleType) -> list[str]:
    return [
        name for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    ]


def names(module: ModuleType) -> str:
    """Return some of the public names of a module, as a part of an error message."""
    names = _names(module)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (", ".join(sorted(names)[:MOST_NAMES]) or "no public names") + more
