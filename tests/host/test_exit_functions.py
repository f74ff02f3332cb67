"""What a replica does after its app has ended, which under uvicorn Python does when the program ends."""

from pathlib import Path

import pytest

from tests import prepared

REPLICA = """
import os, sys, threading, time
from pathlib import Path
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.host.process import ReplicaProcess
from app_toolkit.host.runtime_folder import RuntimeFolder
from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import ReplicaId
from tests.host.test_process import LoneServices

services = LoneServices()
services.folder = RuntimeFolder("session", Path(sys.argv[1]))
id = ReplicaId("shop.shop-1-1")
spec = ReplicaSpec(id, "shop", DeploymentConfig(name="shop"), "served:app", sys.argv[1], "", ReloadableOptions(10))
replica = ReplicaProcess(id, services)

def obey():
    try:
        replica.start(spec, ReplicaSetKey("shop", "shop"), "v1", b"secret")
        if sys.argv[2] == "drained":
            replica.drain(5)
        replica.stop(float(sys.argv[3]))
    except Exception as error:
        print(f"the start failed: {str(error).splitlines()[-1]}", flush=True)
    os._exit(0)  # as Ray does

threading.Thread(target=obey, daemon=True).start()
while True:
    time.sleep(0.001)
"""

APP = """
import atexit, logging.handlers, multiprocessing, os, tempfile, threading, time, weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from fastapi import FastAPI

lifespan_has_ended = threading.Event()

def say(text):
    thread = threading.current_thread()
    place = "on the main thread" if thread is threading.main_thread() else "elsewhere"
    os.write(1, f"{text} {place}\\n".encode())  # whole lines, whatever other threads write

@asynccontextmanager
async def lifespan(app):
    yield
    print("the lifespan ends", flush=True)
    lifespan_has_ended.set()

app = FastAPI(lifespan=lifespan)
"""


def ended(folder: Path, code: str, *, order: str = "stopped", timeout_s: float = 10) -> tuple[list[str], str]:
    """The lines that a replica with this app writes when it is stopped, and its log."""
    folder.chmod(0o700)
    (folder / "served.py").write_text(APP + code)
    done = prepared.run(REPLICA, folder, order, timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("order", ["stopped", "drained"])
def test_exit_functions_run_on_the_main_thread_after_the_lifespan_last_one_first(tmp_path: Path, order: str) -> None:
    code = """
atexit.register(say, "first registered")
@atexit.register
def broken(): raise ValueError("of an exit function")
@atexit.register
def leaves(): raise SystemExit(3)
atexit.register(say, "last registered")
weakref.finalize(app, say, "finalized")
"""
    lines, log = ended(tmp_path, code, order=order)
    assert lines == [
        "the lifespan ends",
        "finalized on the main thread",
        "last registered on the main thread",
        "first registered on the main thread",
    ]
    assert "ValueError: of an exit function" in log


def test_what_the_standard_library_does_at_the_end_of_a_program_is_done(tmp_path: Path) -> None:
    code = f"""
temporary = tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, prefix="temporary-")

file = logging.FileHandler({str(tmp_path / "app.log")!r})
logger = logging.getLogger("shop")
logger.addHandler(logging.handlers.MemoryHandler(1000, target=file))
logger.warning("sold out")

child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
child.start()
with open({str(tmp_path / "pid")!r}, "w") as pid:
    pid.write(str(child.pid))

def finish(text):
    lifespan_has_ended.wait()
    time.sleep(0.2)
    say(text)

atexit.register(say, "registered")
threading.Thread(target=finish, args=("the thread ends",), daemon=False).start()
pool = ThreadPoolExecutor(1)
pool.submit(finish, "the first task ends")
pool.submit(say, "the second task ends")
"""
    lines, _ = ended(tmp_path, code)
    assert not list(tmp_path.glob("temporary-*"))
    assert (tmp_path / "app.log").read_text() == "sold out\n"
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()
    tasks = {"the thread ends elsewhere", "the first task ends elsewhere", "the second task ends elsewhere"}
    assert lines[0] == "the lifespan ends"
    assert set(lines[1:4]) == tasks
    assert lines[4:] == ["registered on the main thread"]


@pytest.mark.parametrize(
    ("code", "awaited"),
    [
        ("atexit.register(time.sleep, 60)", "the functions of atexit"),
        (
            "threading.Thread(target=time.sleep, args=(60,), name='consumer', daemon=False).start()",
            "its threads: consumer",
        ),
    ],
)
def test_what_does_not_end_is_named_and_delays_the_end_only_until_the_time_limit(
    tmp_path: Path, code: str, awaited: str
) -> None:
    lines, log = ended(tmp_path, code, timeout_s=2.5)
    assert lines == ["the lifespan ends"]
    assert f"shop.shop-1-1 waits for {awaited}" in log
    assert "; its process is killed in 1 s" in log


def test_exit_functions_run_if_the_app_fails_to_start(tmp_path: Path) -> None:
    code = "atexit.register(say, 'registered')\nraise ValueError('not configured')\n"
    lines, _ = ended(tmp_path, code)
    why = "the module 'served' does not import: ValueError: not configured"
    assert lines == ["registered on the main thread", f"the start failed: {why}"]
