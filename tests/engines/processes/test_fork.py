"""What happens to a child while it begins."""

import pytest

from tests import prepared

BEGIN = """
import os, signal, sys
from app_toolkit.engines.processes.fork import fork, fork_for, fork_here
from app_toolkit.userapp.ending import adopt_orphans
"""

UNNAMEABLE = r"\ud800"
"""A name that the system cannot show, so that the beginning of the child fails."""


def output(program: str) -> tuple[list[str], str]:
    """Return the lines that a program and its children print, and their errors."""
    done = prepared.run(BEGIN + program)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "forked",
    [f"fork_here('{UNNAMEABLE}')", f"adopt_orphans(); fork_for(os.getpid(), lambda: print('ran'), '{UNNAMEABLE}')"],
    ids=["fork_here", "fork_for"],
)
def test_a_child_that_cannot_begin_ends_with_its_error_and_never_continues_as_its_parent(forked: str) -> None:
    lines, errors = output(f"{forked}; print(os.waitstatus_to_exitcode(os.wait()[1]))")
    assert lines == ["1"]
    assert "UnicodeEncodeError" in errors


def test_a_signal_to_the_process_group_during_a_fork_does_not_run_the_handler_of_the_parent_in_the_child() -> None:
    lines, _ = output(
        """
signal.signal(signal.SIGINT, lambda number, frame: print("handled", flush=True))
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
pid = fork(lambda: print("ran"), "child")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    assert lines == ["ran", "0"]


def test_a_process_whose_user_code_ignores_the_ends_of_children_can_be_forked() -> None:
    lines, errors = output(
        """
adopt_orphans()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
fork_for(os.getpid(), lambda: print("ran"), "child")
try:
    os.wait()
except ChildProcessError:
    print("all have ended")
"""
    )
    assert (lines, errors) == (["ran", "all have ended"], "")
