"""The output of `app-toolkit history`."""

from collections.abc import Iterable
from datetime import datetime

from app_toolkit.cli.screen import Screen
from app_toolkit.control.revisions import RevisionStatus


class HistoryScreen(Screen):
    """A screen that shows the revisions of an application."""

    def revisions(self, revisions: Iterable[RevisionStatus]) -> None:
        """Show each revision with the time of this machine, a line for each."""
        lines = [
            (
                f"{revision.number}",
                datetime.fromtimestamp(revision.since).isoformat(" ", "seconds"),
                revision.state.value,
                "unknown: the revision before it is not kept" if revision.changes is None else revision.changes,
            )
            for revision in revisions
        ]
        self._rows(("revision", "since", "state", "changes"), lines)
