"""Another user of this machine cannot reach a running instance."""

import os
import socket
from pathlib import Path

import ray

from app_toolkit.config.settings import runtime_folder
from tests.cluster import Served
from tests.security.other_user import needs_root, other_user, shared_folder

pytestmark = needs_root

ATTACKS = """
    session, runtime, taken = sys.argv[1], sys.argv[2], []

    def attempt(name, attack):
        try:
            attack()
        except OSError:
            return
        taken.extend([name] if name else [])

    def take_over(path):
        # Put another folder in the place of the socket's, and listen there under its name.
        was = os.path.dirname(path) + ".was"
        os.rename(os.path.dirname(path), was)
        try:
            os.mkdir(os.path.dirname(path))
            socket.socket(socket.AF_UNIX).bind(path)
            os.unlink(path)
            os.rmdir(os.path.dirname(path))
        finally:
            os.rename(was, os.path.dirname(path))

    sockets = [line.split()[-1] for line in open("/proc/net/unix") if line.split()[-1].endswith(".sock")]
    ours = sorted({path for path in sockets if path.startswith((session + "/app_toolkit", runtime))})
    for path in ours:
        attempt(f"take over {path}", lambda: take_over(path))
        attempt(f"connect to {path}", lambda: socket.socket(socket.AF_UNIX).connect(path))
        attempt(f"remove {path}", lambda: os.unlink(path))
        attempt(f"listen beside {path}", lambda: socket.socket(socket.AF_UNIX).bind(path + ".mine"))
    for folder in (runtime, runtime + "/logs"):
        attempt(f"list {folder}", lambda: os.listdir(folder))
        attempt(f"plant a link in {folder}", lambda: os.symlink("/etc/hostname", folder + "/access-x.log"))
        attempt(f"replace {folder}", lambda: os.rename(folder, folder + ".was"))
    access = []
    attempt("", lambda: access.extend(name for name in os.listdir(session + "/logs") if "access" in name))
    say({"sockets": len(ours), "taken": taken, "logs": access})
"""


def test_another_user_can_neither_reach_nor_replace_sockets_logs_and_locks(victim: Served) -> None:
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir()) / context.get_session_name()
    runtime = runtime_folder() / context.get_session_name()
    with victim.client() as client:
        pid = client.get("/pid").json()
        with other_user(ATTACKS, session, runtime) as other:
            found = other.says()
        assert found["sockets"] > 0
        assert (found["taken"], found["logs"]) == ([], [])
        assert client.get("/pid").json() == pid
    for path in (runtime, *runtime.rglob("*")):
        try:
            status = path.lstat()
        except FileNotFoundError:  # the socket of a replica of another test, which has just ended
            continue
        assert status.st_uid == os.geteuid()
        if "artifacts" not in path.parts:  # whose files have the modes that were packed, below a closed folder
            assert not status.st_mode & 0o077, path


def test_the_attacks_succeed_against_a_folder_in_one_that_others_may_write_to() -> None:
    with shared_folder() as session, socket.socket(socket.AF_UNIX) as listener:
        (session / "app_toolkit").mkdir(mode=0o700)
        listener.bind(f"{session}/app_toolkit/r.sock")
        listener.listen()
        with other_user(ATTACKS, session, session / "none") as other:
            assert other.says()["taken"] == [f"take over {session}/app_toolkit/r.sock"]
