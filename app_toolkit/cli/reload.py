"""`run --reload`: updates the applications after each change of their Python files."""

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from app_toolkit.cli.screen import Screen, report
from app_toolkit.control.status import InstanceStatus
from app_toolkit.errors import Superseded, ToolkitError
from app_toolkit.operate import launch
from app_toolkit.operate.client import Client
from app_toolkit.operate.launch import Manifest
from app_toolkit.operate.progress import ended, is_serving

POLL_MS = 200
"""Milliseconds between two checks whether to stop watching files."""


class Reloading:
    """Watches folders on a thread. `step` updates the applications as `deploy` does, so no request is lost.

    A change that cannot be planned, or that does not start, is reported, and the last version serves on.
    """

    def __init__(self, folders: Iterable[str], plan: Callable[[], Manifest | None], screen: Screen) -> None:
        """`plan`: plans the applications; the result is None if the user wants to end. It may raise `SystemExit`
        after it has reported an error.
        """
        self._folders = sorted(set(folders))
        self._plan = plan
        self._screen = screen
        self._changed = threading.Event()
        self._failure: Exception | None = None
        """Why no folder is watched any more, until it is reported; None: all of them are."""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="app-toolkit reload", daemon=True)
        self._revisions: dict[str, int] = {}
        """Those of an update that goes on."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    def step(self, client: Client, status: InstanceStatus) -> None:
        """Begin an update if a file has changed, and report the end of an update, or of the watch."""
        if self._failure is not None:
            why = str(self._failure).rstrip(".")
            folders = ", ".join(self._folders)
            self._screen.say(f"Changes in {folders} are not seen any more: {why}. Start the command again.")
            self._failure = None
        if self._changed.is_set():
            self._changed.clear()
            self._update(client)
            return
        for name, revision in self._revisions.items():
            error = ended(status, name, revision)
            if error is not None:
                self._revisions = {}
                if not isinstance(error, Superseded):  # by another client, which reports what becomes of it
                    self._refuse(error)
                return
        if self._revisions and is_serving(status, self._revisions.keys()):
            self._revisions = {}
            self._screen.say("The change serves.")

    def _watch(self) -> None:
        import watchfiles  # here, because most instances watch no files

        changes = watchfiles.watch(
            *self._folders,
            watch_filter=watchfiles.PythonFilter(),
            stop_event=self._ends,
            rust_timeout=POLL_MS,
        )
        try:
            for _ in changes:
                self._changed.set()
        except Exception as error:  # a folder was removed, or the system watches too many files
            self._failure = error

    def _update(self, client: Client) -> None:
        self._screen.say("A file has changed.")
        try:
            manifest = self._plan()
            if manifest is not None:
                self._revisions = launch.apply(client, launch.commands_with_lease(client, manifest))
        except (SystemExit, ToolkitError) as error:
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        if isinstance(error, ToolkitError):
            report(error)
        self._screen.say("The last version serves on.")
