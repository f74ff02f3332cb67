"""Fixtures and checks for every test: asyncio, the session's Ray, and nothing of ours left running."""

import asyncio
import functools
import gc
import inspect
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import certifi
import pytest
from hypothesis import settings

from tests.groups import REQUIRE, ROOT, left_out_tests, required_tests

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.replica.client import Serve
    from tests.running import Start

# Otherwise each of the hundreds of processes that the tests start compiles the package anew, which takes seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A command that a script starts with `&` ignores SIGINT, and so would each process that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The admin server takes a second of one CPU and 100 MB for each instance, and few tests need it.
os.environ["APP_TOOLKIT_ADMIN"] = "false"

# An example may take any time on a busy machine, and 50 show what 100 do. Tests with their own options start from this.
# Each run has the same examples, so that a failure comes from a change. `--hypothesis-profile=search` has others.
settings.register_profile("app_toolkit", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=500, print_blob=True)
settings.load_profile("app_toolkit")

LEAVE_S = 20.0
"""Seconds that a task or a thread may take to end after it was stopped."""

OURS = str(Path(__file__).parent.parent / "app_toolkit")

START_RAY = frozenset({"cluster", "run"})
"""The fixtures that start Ray. A test that uses one of them is marked `ray`."""

START_INSTANCES = START_RAY | {"processes"}
"""The fixtures that start an instance of several processes."""

NO_RAY = "/dev/null/only-tests-marked-ray-start-Ray"
"""A folder that cannot be made. Ray does not start if it is to keep its files there."""


REQUIRED = required_tests(os.environ.get(REQUIRE, ""))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _not_skipped((yield))


R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def _not_skipped(report: R) -> R:
    """Let a test fail that would be skipped, if it belongs to a group that is required."""
    if report.skipped and not hasattr(report, "wasxfail") and report.nodeid.partition("::")[0] in REQUIRED:
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} must not be skipped with {REQUIRE}: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ledger of `benchmarks.chaos.victim` in the instances of the session."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("victim") / "ledger"
        patch.setenv("VICTIM_LEDGER", str(path))
        yield path


@pytest.fixture(scope="session")
def cluster(ledger: Path) -> "Iterator[Cluster]":
    """The Ray of the session and the controller on it. Both start for the first test that asks."""
    from tests.cluster import running  # Ray takes a second to import, and few tests need it

    with running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def processes(ledger: Path) -> "Iterator[Cluster]":
    """An instance on processes of this machine. It starts for the first test that asks."""
    from tests.cluster import running_on_processes

    with running_on_processes() as cluster:
        yield cluster


@pytest.fixture
def processes_found(processes: "Cluster", monkeypatch: pytest.MonkeyPatch) -> "Cluster":
    """The same instance, which commands and functions find by themselves during the test."""
    monkeypatch.setenv("APP_TOOLKIT_RUNTIME_DIR", processes.folder)
    # Otherwise a process in which other tests have started Ray would find that instance.
    monkeypatch.setenv("APP_TOOLKIT_ADDRESS", processes.address())
    return processes


@pytest.fixture
def serve() -> "Iterator[Serve]":
    """Starts replicas in this process, without an engine. They stop after the test."""
    from tests.replica.client import Serve

    serving = Serve()
    yield serving
    serving.close()


@pytest.fixture
def run() -> "Iterator[Start]":
    """Starts `app-toolkit run`, each time with a Ray of its own. What still runs after the test is killed."""
    from tests.running import runs

    with runs() as start:
        yield start


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    left_out = {ROOT / path for path in left_out_tests()}
    for item in items:
        assert isinstance(item, pytest.Function)
        if item.path in left_out:
            item.add_marker("slow")
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if START_RAY.intersection(item.fixturenames) or any(each == "ray" for each in parameters if type(each) is str):
            item.add_marker("ray")
    # Tests that need a whole instance take longest. The short ones come last and fill the gap between the processes.
    on_instances = {item.path for item in items if START_INSTANCES.intersection(item.fixturenames)}
    items.sort(key=lambda item: (item.get_closest_marker("ray") is None, item.path not in on_instances))


def pytest_collection_finish() -> None:
    """Leave what the collection has made out of each collection of garbage, of which some tests need many."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let one process take all tests on Ray, so that they share one. Slow tests on Ray would take too long for one."""
    if config.getoption("dist") != "loadfile" or "not slow" not in config.getoption("markexpr"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if _is_on_ray(nodeid) else super()._split_scope(nodeid)

    return Scheduling(config, log)


def _is_on_ray(nodeid: str) -> bool:
    """Return whether a test may start Ray. The process that distributes tests knows no markers."""
    path, _, test = nodeid.partition("::")
    return re.search(r"[\[-]ray[]-]", test) is not None or _mentions_ray(ROOT / path)


@functools.cache
def _mentions_ray(path: Path) -> bool:
    return re.search(r"\b(cluster: Cluster|run: Start|mark\.ray)\b", path.read_text("utf-8")) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test without the marker `ray`, and every process that it starts, be unable to start Ray."""
    with pytest.MonkeyPatch.context() as patched:
        if not item.get_closest_marker("ray"):
            patched.setenv("RAY_TMPDIR", NO_RAY)
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def _runtime_folder() -> Iterator[None]:
    """Let commands find no instance but those of this test run."""
    # The paths of sockets begin with this one, and must be short.
    with (
        tempfile.TemporaryDirectory(prefix="at-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patched,
    ):
        os.chmod(folder, 0o755)  # other users are kept out by the folders below it
        patched.setenv("APP_TOOLKIT_RUNTIME_DIR", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def _data_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the folders for the data of apps be those of this test run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        patched.delenv("APP_TOOLKIT_DATA", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let each HTTP client read the certificate of one authority. To read those of all takes 25 ms."""
    first, end, _ = Path(certifi.where()).read_text("utf-8").partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("authorities") / "one.pem"
    path.write_text(first + end)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(certifi, "where", lambda: str(path))
        patched.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LEAVE_S
    while (left := [t for t in threading.enumerate() if t not in before and _must_end(t)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert not left, f"the test left threads behind: {', '.join(thread.name for thread in left)}"


def _must_end(thread: threading.Thread) -> bool:
    # Daemon threads of libraries (AnyIO's idle workers, Ray's client) belong to whoever needed them first.
    return not thread.daemon or thread.name.startswith("app-toolkit")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    # What an async fixture started it also ends, and only after the test: there is nothing to check before.
    fixtures = [d.func for defs in pyfuncitem._fixtureinfo.name2fixturedefs.values() for d in defs]
    if inspect.iscoroutinefunction(pyfuncitem.obj) and not any(
        inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in fixtures
    ):
        pyfuncitem.obj = _no_task_outlives(pyfuncitem.obj)


def _no_task_outlives(
    test: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def checked(**arguments: Any) -> None:
        before = asyncio.all_tasks()
        await test(**arguments)
        left = {task for task in asyncio.all_tasks() - before if _is_ours(task)}
        if left:
            _, left = await asyncio.wait(left, timeout=LEAVE_S)
        assert not left, f"the test left tasks behind: {', '.join(repr(task) for task in left)}"

    return checked


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(OURS)
