"""The user's app: found by its import path, told what it serves, and asked why it did not come up."""

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Awaitable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from app_toolkit.errors import TargetError
from app_toolkit.types import ASGIApp, Message, Receive, Scope, Send

OURS = f"{Path(__file__).parents[1]}{os.sep}"

SHOWN_FRAMES = 6
"""How much of a user's traceback is shown: its end, where the mistake is."""

MOST_NAMES = 20
"""How many of a module's names an error lists."""


def load(target: str, app_dir: str) -> Any:
    """The object at `module:attribute` (the attribute may be dotted), imported with `app_dir` first on the
    import path.

    Raises `TargetError`; where the user's own code failed while it was imported, that error is its
    `__cause__`.
    """
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise TargetError(f"the target {target!r} is not of the form 'module:attribute'")
    module = import_from(name, app_dir)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise TargetError(f"{name!r} ({module.__file__}) has no {attribute!r}; it has {names(module)}") from None


def import_from(name: str, app_dir: str) -> ModuleType:
    """Import a module of the user's with `app_dir` first on the import path.

    Raises `TargetError`; where the user's own code failed, that error is its `__cause__`, and the end of its traceback
    is a note.
    """
    _look_in(app_dir)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the user's code: anything may come out of it
        raise _does_not_import(name, app_dir, error) from error


def unpack(target: str, code: bytes | None, app_dir: str) -> Any:
    """What was packed of `target`; what it names of modules is imported with `app_dir` first on the import path.

    Raises `TargetError` as `import_from` does, also where there is nothing to unpack.
    """
    if code is None:
        raise TargetError(f"what was packed of {target!r} is not in the store any more: its application has gone")
    _look_in(app_dir)
    try:
        return pickle.loads(code)
    except (Exception, SystemExit) as error:  # the user's code: anything may come out of it
        raise fails(f"what was packed of {target!r} cannot be unpacked", error) from error


def _look_in(app_dir: str) -> None:
    if sys.path[:1] != [app_dir]:
        sys.path.insert(0, app_dir)
    importlib.invalidate_caches()  # the folder may have been written a moment ago


def host(app: Any, ingress: str) -> ASGIApp:
    """Make the app serve one ingress, where it has several. Raises `PlanningError` for one that it lacks."""
    serve_only = getattr(app, "serve_only", None)
    if serve_only is not None:
        serve_only(ingress)
    return app  # type: ignore[no-any-return]


class Lifespan:
    """Passes everything on to the app, and keeps what a startup that failed said."""

    def __init__(self, app: ASGIApp) -> None:
        self.failure: str | None = None
        """Why startup failed, usually a traceback; None: it did not."""
        self._app = app

    # No coroutine of its own for requests: they get the app's.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "lifespan":
            return self._lifespan(scope, receive, send)
        return self._app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def listen(message: Message) -> None:
            nonlocal answered
            answered = True
            if message["type"] == "lifespan.startup.failed":
                self.failure = message.get("message") or "the app gave no reason"
            await send(message)

        try:
            await self._app(scope, receive, listen)
        except BaseException as error:  # whatever it is, uvicorn takes it from here
            if not answered:
                self.failure = "".join(traceback.format_exception(error))
            raise


def _does_not_import(name: str, app_dir: str, error: BaseException) -> TargetError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame)]
    if isinstance(error, ModuleNotFoundError) and not frames:
        return TargetError(f"there is no module {error.name!r} in {app_dir} or among the installed ones")
    return fails(f"the module {name!r} does not import", error)


def fails(what: str, error: BaseException) -> TargetError:
    """What failed and why, in one sentence; the end of the user's traceback is a note."""
    if isinstance(error, SystemExit):
        reason = f"it ends the process (SystemExit: {error.code})"
    else:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    found = TargetError(f"{what}: {reason.splitlines()[0]}")
    found.add_note(users_traceback(error))
    return found


def users_traceback(error: BaseException) -> str:
    """The end of a traceback, without what is ours of it."""
    shown = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in shown.stack if _is_the_users(frame)]
    shown.stack = traceback.StackSummary.from_list(frames[-SHOWN_FRAMES:])
    # What led to it ends in the same lines of user code more often than it says something new.
    shown.__cause__ = shown.__context__ = None
    return "".join(shown.format()).rstrip()


def _is_the_users(frame: traceback.FrameSummary) -> bool:
    return frame.filename != importlib.__file__ and not frame.filename.startswith(("<frozen importlib", OURS))


def names(module: ModuleType) -> str:
    """Some of the public names of a module, for an error."""
    found = [
        name for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    ]
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return (", ".join(sorted(found)[:MOST_NAMES]) or "no public names") + more
