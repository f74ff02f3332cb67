"""Why a process of Ray has ended, from what each way of ending leaves behind."""

from pathlib import Path

import pytest
from ray.exceptions import OutOfMemoryError, RayError

from app_toolkit.engines.ray import exits
from app_toolkit.engines.ray.exits import Exits, exit_sentence

DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: _Replica
\tactor_id: 12312baeaf62988e1f8ee14701000000
\tpid: 7822
\tname: shop.web-1-1
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: {type} Worker exit detail: {detail}"""
NO_TRACE = DIED.format(
    type="SYSTEM_ERROR",
    detail="Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) ...",
)
CRASH = b":actor_name:_Replica\n*** SIGSEGV received at time=1795624267 on cpu 0 ***\nPC: @ 0x7f7c06526f36\n"


@pytest.mark.parametrize(
    ("type", "detail", "sentence"),
    [
        ("SYSTEM_ERROR", "Worker exits unexpectedly. Worker exits with an exit code 5.", "ended with exit code 5"),
        (
            "SYSTEM_ERROR",
            "Worker exits unexpectedly by a signal. SystemExit is raised (sys.exit is called). Exit code: 1. "
            "The process receives a SIGTERM.",
            "ended: SIGTERM ended it",
        ),
        (
            "NODE_DIED",
            "The node died.",
            "ended: its worker process has died. Worker exit type: NODE_DIED Worker exit detail: The node died.",
        ),
    ],
)
def test_what_ray_says_is_shortened_to_the_exit_code_or_the_signal(type: str, detail: str, sentence: str) -> None:
    assert exit_sentence(DIED.format(type=type, detail=detail)) == f"the process {sentence}"


@pytest.mark.parametrize(
    ("output", "oom_killed", "sentence"),
    [
        (CRASH, False, "the process ended: SIGSEGV ended it"),
        (CRASH, True, "the process ended: SIGSEGV ended it"),
        (b"a line\n", False, "the process ended: SIGKILL ended it, or native code that called _exit"),
        (b"a line\n", True, "the process ended: SIGKILL ended it, probably the kernel's out-of-memory killer"),
        (None, False, "the process ended: a signal or os._exit ended it, and which one is not known"),
    ],
)
def test_a_process_that_ray_knows_nothing_about_is_judged_by_its_standard_error(
    monkeypatch: pytest.MonkeyPatch, output: bytes | None, oom_killed: bool, sentence: str
) -> None:
    monkeypatch.setattr(exits, "MEMORY_LIMITS", ())
    assert exit_sentence(NO_TRACE, output, oom_killed=oom_killed) == sentence


def test_the_file_of_the_process_is_read_and_the_memory_limit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, vmstat = tmp_path / "memory.max", tmp_path / "vmstat"
    limit.write_text(f"{2 * 2**30}\n")
    vmstat.write_text("pgfault 9\noom_kill 1\n")
    monkeypatch.setattr(exits, "MEMORY_LIMITS", (tmp_path / "missing", limit))
    monkeypatch.setattr(exits, "VMSTAT", vmstat)
    found = Exits(tmp_path)
    output = tmp_path / "worker-fa9c-ffffffff-7822.err"
    output.touch()
    died = RayError(NO_TRACE)
    assert found.why(died, is_local=True) == "the process ended: SIGKILL ended it, or native code that called _exit"
    vmstat.write_text("pgfault 9\noom_kill 2\n")
    killed = (
        "the process ended: SIGKILL ended it, probably the kernel's out-of-memory killer; the memory limit is 2.0 GiB"
    )
    assert found.why(died, is_local=True) == killed
    output.write_bytes(CRASH)
    assert found.why(died, is_local=True) == "the process ended: SIGSEGV ended it"
    assert "which one is not known" in found.why(died, is_local=False)
    output.unlink()
    assert "which one is not known" in found.why(died, is_local=True)


def test_an_end_by_rays_memory_monitor_says_so(tmp_path: Path) -> None:
    error = OutOfMemoryError("Task was killed due to the node\nrunning low on memory.")
    why = "Ray's memory monitor ended the process: Task was killed due to the node running low on memory."
    assert Exits(tmp_path).why(error, is_local=True) == why
