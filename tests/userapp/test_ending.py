"""A process that has run user code ends in time, and so does everything that it has started."""

import subprocess

import psutil
import pytest

from tests import prepared

STARTS = {
    "a thread": "threading.Thread(target=time.sleep, args=(600,), name='consumer').start()",
    "a timer": "threading.Timer(600, print).start()",
    "a pool of threads": "ThreadPoolExecutor().submit(time.sleep, 600)",
    "a pool of processes": "ProcessPoolExecutor(1).submit(time.sleep, 600)",
    "a process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,)).start()",
    "a function of atexit": "atexit.register(time.sleep, 600)",
}

HEAD = """
import atexit, multiprocessing, os, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from app_toolkit.userapp.ending import adopt_orphans, bounded_end
with bounded_end({seconds}):
"""


def ran(code: str, seconds: float = 0.1) -> subprocess.CompletedProcess[str]:
    """Run code in the block of a process of its own."""
    lines = [f"    {line}\n" for line in code.splitlines()]
    script = HEAD.format(seconds=seconds) + "".join(lines)
    return prepared.run(script)


@pytest.mark.parametrize("kind", STARTS)
def test_what_the_code_has_started_is_not_waited_for(kind: str) -> None:
    done = ran(f"{STARTS[kind]}\nprint('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("own_session", [False, True])
def test_no_process_of_the_code_is_left(own_session: bool) -> None:
    done = ran(
        f"kept = subprocess.Popen(['sleep', '600'], stdout=2, start_new_session={own_session})\nprint(kept.pid)", 60
    )
    assert not psutil.pid_exists(int(done.stdout))


def test_a_process_whose_parent_has_ended_is_not_left() -> None:
    shell = "['sh', '-c', 'setsid sleep 600 >&2 & echo $!']"
    done = ran(f"adopt_orphans()\nsubprocess.run({shell})\n{STARTS['a thread']}")
    assert not psutil.pid_exists(int(done.stdout))


def test_functions_of_atexit_are_called_if_they_end() -> None:
    done = ran("atexit.register(print, 'a last word')", 60)
    assert (done.returncode, done.stdout) == (0, "a last word\n")


def test_the_exit_code_is_that_of_the_code() -> None:
    thread = STARTS["a thread"]
    assert ran(f"{thread}\nsys.exit(2)").returncode == 2
    assert ran(f"{thread}\nraise OSError").returncode == 1


POLL = "def poll(): time.sleep(600)\n"


@pytest.mark.parametrize(
    ("code", "waits_for"),
    [
        ("threading.Thread(target=poll, name='consumer').start()", "its threads: consumer (<string>:6 in poll)"),
        ("atexit.register(poll)", "the functions of atexit (<string>:6 in poll)"),
    ],
)
def test_a_long_end_is_one_line_with_what_is_waited_for(code: str, waits_for: str) -> None:
    done = ran(POLL + code, 1.2)
    assert done.stderr == f"The app has stopped, and its process waits for {waits_for}. It is ended after 0.2 s.\n"
