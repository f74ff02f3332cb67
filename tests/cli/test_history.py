"""What `history` prints."""

import io
from datetime import datetime

from app_toolkit.cli.history import HistoryScreen
from app_toolkit.control.revisions import RevisionState, RevisionStatus


def test_each_revision_is_a_line_with_the_time_of_this_machine() -> None:
    output, since = io.StringIO(), datetime(2026, 3, 2, 16, 41, 55).timestamp()
    HistoryScreen.on(output).revisions(
        (
            RevisionStatus(12, since, None, RevisionState.EARLIER),
            RevisionStatus(13, since + 60, "chat scaled (num_replicas 2 -> 4)", RevisionState.RUNS),
        )
    )
    assert output.getvalue().splitlines() == [
        "  revision=12  since=2026-03-02 16:41:55  state=earlier  changes=unknown: the revision before it is not kept",
        "  revision=13  since=2026-03-02 16:42:55  state=runs  changes=chat scaled (num_replicas 2 -> 4)",
    ]
