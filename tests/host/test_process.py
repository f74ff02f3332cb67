"""A replica or proxy process, without an engine that starts it."""

import asyncio
import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from app_toolkit.contract.identity import ProxySetKey
from app_toolkit.contract.replica_spec import ProxySpec
from app_toolkit.errors import StaleEpoch
from app_toolkit.host import process
from app_toolkit.host.orders import CheckEpoch, Describe, Start, serve
from app_toolkit.host.process import ProxyProcess
from app_toolkit.host.services import Services
from app_toolkit.types import NodeId, ReplicaId
from tests import prepared
from tests.memory import MemoryStore
from tests.security.other_user import needs_root


class LoneServices:
    """The services of a process on one node, without a controller."""

    node, address = NodeId("n"), "127.0.0.1"
    log_folder = None

    def __init__(self) -> None:
        self.store = MemoryStore()

    def nodes(self) -> list[str]:
        return [self.address]

    def listener(self, host: str, port: int) -> socket.socket | None:
        return None

    def payloads(self) -> nullcontext[None]:
        return nullcontext()

    async def watch(self, name: str, seen: object, prefix: object = "") -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def report(self, name: str, *report: object) -> bool:
        return False

    async def push_metrics(self, process: str, snapshot: bytes) -> bool:
        return True


def proxy() -> ProxyProcess:
    return ProxyProcess(ReplicaId("proxy@n-1"), cast(Services, LoneServices()))


def start(proxy: ProxyProcess, epoch: int) -> Any:
    spec = ProxySpec(proxy.name, {"port": 0}, NodeId("n"))
    return serve(proxy, Start(spec, ProxySetKey(NodeId("n")), "r1", b"secret", epoch=epoch))


def test_a_stale_order_to_start_changes_nothing() -> None:
    started = proxy()
    serve(started, CheckEpoch(epoch=7))
    with pytest.raises(StaleEpoch, match="an order of epoch 6 came after one of epoch 7"):
        start(started, 6)
    assert not hasattr(started, "server")
    assert serve(started, Describe(epoch=7)) is None


def test_a_process_ends_if_a_later_controller_has_replaced_the_one_that_ordered_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(Exception):
        pass

    def leave(code: int) -> None:
        raise Gone(code)

    monkeypatch.setattr(process.os, "_exit", leave)
    monkeypatch.setattr(process, "last_epoch", lambda store: 7)
    started = proxy()
    with pytest.raises(Gone, match="0"):
        start(started, 6)
    assert not hasattr(started, "server")


REPLICA = """
import json, os, sys
from pathlib import Path
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.host.process import ReplicaProcess
from app_toolkit.host.runtime_folder import RuntimeFolder
from app_toolkit.config.models import ApplicationConfig, DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import ReplicaId
from tests.host.test_process import LoneServices

services = LoneServices()
services.folder = RuntimeFolder("session", Path(sys.argv[1]))
live = ReloadableOptions(10)
id = ReplicaId("shop.shop-1-1")
options = ApplicationConfig(**json.loads(sys.argv[2]))
deployment = DeploymentConfig(name="shop")
spec = ReplicaSpec(id, "shop", deployment, "served:app", sys.argv[1], "", live, application_config=options)
replica = ReplicaProcess(id, services)
location = replica.start(spec, ReplicaSetKey("shop", "shop"), "v1", b"secret")
"""

ORDERS = """
from app_toolkit.host.orders import Describe, Drain, GetStatistics, Probe, Reconfigure, Stop, serve
serve(replica, Probe(30, epoch=1))
phases = [serve(replica, Describe(epoch=1)).phase_name]
serve(replica, Reconfigure(ReloadableOptions(20), 30, epoch=2))
slots = serve(replica, Describe(epoch=2)).reloadable.max_ongoing_requests
ongoing = serve(replica, GetStatistics()).ongoing
serve(replica, Drain(5, epoch=2))
phases.append(serve(replica, Describe(epoch=2)).phase_name)
serve(replica, Stop(5, epoch=2))
ended = serve(replica, GetStatistics())
print(json.dumps([location.address, phases, slots, ongoing, ended, "ray" in sys.modules]), flush=True)
os._exit(0)
"""

STOP = """
replica.stop(5)
os._exit(0)
"""


def run_replica(folder: Path, app: str, orders: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Start a replica of an app in a process of its own, and give it these orders."""
    folder.chmod(0o700)
    (folder / "served.py").write_text(app)
    return prepared.run(REPLICA + orders, folder, json.dumps(options))


def test_a_replica_obeys_all_orders_without_ray(tmp_path: Path) -> None:
    done = run_replica(tmp_path, "from fastapi import FastAPI\napp = FastAPI()\n", ORDERS)
    assert done.returncode == 0, done.stderr
    address, *rest = json.loads(done.stdout)
    assert address.startswith(f"unix:{tmp_path}/session/")
    assert rest == [["running", "draining"], 20, 0, None, False]


FORKS = """
import os, sys
from dataclasses import replace
from pathlib import Path
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.host.orders import GetStatistics, Start, Stop, serve
from app_toolkit.host.preparation import Preparation, prepare
from app_toolkit.host.process import ReplicaProcess
from app_toolkit.host.runtime_folder import RuntimeFolder
from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import ReplicaId
from tests.host.test_process import LoneServices

services = LoneServices()
services.log_folder = Path(sys.argv[1], "logs")
services.folder = RuntimeFolder("session", Path(sys.argv[1]))
live = ReloadableOptions(10)
config = DeploymentConfig(name="shop")
template = ReplicaSpec(ReplicaId("template-1"), "shop", config, "served:app", sys.argv[1], "", live)
prepared = prepare(template, services, imports=True)
for number in (1, 2):
    child = os.fork()
    if child == 0:
        id = ReplicaId(f"shop.shop-1-{number}")
        spec = replace(template, id=id, reloadable=ReloadableOptions(number))
        assert Preparation.of(spec) == Preparation.of(template) != Preparation.of(replace(spec, code="x"))
        replica = ReplicaProcess(id, services, prepared)
        serve(replica, Start(spec, ReplicaSetKey("shop", "shop"), "v1", b"secret", epoch=1))
        print("serves", serve(replica, GetStatistics()).ongoing, flush=True)
        serve(replica, Stop(5, epoch=1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_forks_of_a_prepared_process_import_nothing_and_have_logs_of_their_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    lifespan = "    print('starts', flush=True)\n    yield\n"
    (tmp_path / "served.py").write_text(
        "from contextlib import asynccontextmanager\nfrom fastapi import FastAPI\nprint('imported', flush=True)\n"
        f"@asynccontextmanager\nasync def lifespan(app):\n{lifespan}app = FastAPI(lifespan=lifespan)\n"
    )
    done = prepared.run(FORKS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["imported", "starts", "serves 0", "starts", "serves 0"]
    lines = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    messages = {name: [json.loads(line)["message"] for line in text.splitlines()] for name, text in lines.items()}
    assert {name.partition(".log")[0]: said for name, said in messages.items() if said} == {
        "template-1": ["imported"],
        "shop.shop-1-1": ["starts", "serves 0"],
        "shop.shop-1-2": ["starts", "serves 0"],
    }


KEEPS = """
import asyncio, json, os, sys
from pathlib import Path
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.host.process import ReplicaProcess
from app_toolkit.host.runtime_folder import RuntimeFolder
from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.interfaces import ReloadableOptions, code_key
from app_toolkit.types import ReplicaId
from app_toolkit.userapp.artifact import pack, select
from tests.host.test_process import LoneServices

runtime, folder, application, is_deployed, working_dir = sys.argv[1:]
services = LoneServices()
services.folder = RuntimeFolder("session", Path(runtime))
artifact = pack(select(Path(folder)))
asyncio.run(services.store.compare_and_set(code_key(artifact.hash), None, artifact.archive))
live = ReloadableOptions(10)
id = ReplicaId("shop.shop-1-1")
files = {"artifact": artifact.hash, "working_dir": working_dir} if is_deployed else {"working_dir": folder}
spec = ReplicaSpec(
    id, application, DeploymentConfig(name="shop"), "served:app", "." if is_deployed else folder, "", live, **files
)
replica = ReplicaProcess(id, services)
try:
    replica.start(spec, ReplicaSetKey("shop", "shop"), "v1", b"secret")
except BaseException as error:
    print(json.dumps(str(error.__cause__ or error)), flush=True)
else:
    print(json.dumps(sys.modules["served"].app.state.said), flush=True)
    replica.stop(5)
os._exit(0)
"""

COUNTS = """
import os, sqlite3
from fastapi import FastAPI

app = FastAPI()
PLACE = os.environ.get("APP_TOOLKIT_DATA", ".")
database = sqlite3.connect(f"{PLACE}/app.db")
with database:
    database.execute("CREATE TABLE IF NOT EXISTS starts(code)")
    database.execute("INSERT INTO starts VALUES (?)", [CODE])
codes = [code for code, in database.execute("SELECT code FROM starts")]
app.state.said = codes, os.path.dirname(PLACE)
"""


@pytest.fixture
def starts(tmp_path: Path) -> Callable[..., Any]:
    """What the replica of an app with a database says after it has started with some code."""
    runtime, home = tmp_path / "runtime", tmp_path / "home"
    runtime.mkdir(mode=0o700)

    def start(
        code: str,
        application: str = "shop",
        *,
        deployed: bool = True,
        folder: str = "app",
        working: str = ".",
        **env: str,
    ) -> Any:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        (path / "served.py").write_text(code)
        environment = {**os.environ, "XDG_DATA_HOME": str(home), **env}
        arguments = runtime, path, application, "yes" if deployed else "", working
        done = prepared.run(KEEPS, *arguments, env=environment)
        assert done.returncode == 0, done.stderr
        (tmp_path / "logged").write_text(done.stderr)
        return json.loads(done.stdout)

    return start


def test_data_stays_when_the_code_of_an_application_is_replaced(starts: Callable[..., Any], tmp_path: Path) -> None:
    one, other = f"CODE = 1{COUNTS}", f"CODE = 2{COUNTS}"
    place = str(tmp_path / "home" / "app_toolkit" / "applications")
    assert starts(one) == [[1], place]
    assert starts(other) == [[1, 2], place]
    assert starts(one, "another") == [[1], place]
    assert stat.S_IMODE((tmp_path / "home" / "app_toolkit" / "applications" / "shop").stat().st_mode) == 0o700


def test_apps_that_run_from_a_folder_keep_their_data_by_folder(starts: Callable[..., Any], tmp_path: Path) -> None:
    code, place = f"CODE = 1{COUNTS}", str(tmp_path / "home" / "app_toolkit" / "projects")
    assert starts(code, "default", deployed=False) == [[1], place]
    assert starts(code, "default", deployed=False) == [[1, 1], place]
    assert starts(code, "default", deployed=False, folder="other") == [[1], place]
    assert not (tmp_path / "app" / "app.db").exists()


def test_data_is_kept_where_the_environment_says(starts: Callable[..., Any], tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    assert starts(f"CODE = 1{COUNTS}", APP_TOOLKIT_DATA=str(own)) == [[1], str(tmp_path)]
    assert (own / "app.db").exists()
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("working", [".", "only-here"])
def test_an_app_that_writes_beside_its_code_does_not_start(starts: Callable[..., Any], working: str) -> None:
    code = f"CODE = 1{COUNTS}".replace("{PLACE}/", "./")
    assert "[Errno 13] app.db cannot be written, because each revision" in starts(code, working=working)


def test_without_a_place_for_data_only_apps_that_write_fail(starts: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    assert "keep data in the folder of the environment variable APP_TOOLKIT_DATA" in starts(f"CODE = 1{COUNTS}")
    assert starts("from fastapi import FastAPI\napp = FastAPI()\napp.state.said = 'started'\n") == "started"


@needs_root  # whom permissions do not stop
def test_a_replica_that_stops_names_what_other_programs_wrote_below_its_files(
    starts: Callable[..., Any], tmp_path: Path
) -> None:
    code = "import subprocess\nfrom fastapi import FastAPI\napp = FastAPI()\napp.state.said = ''\n"
    starts(code)
    assert "written below" not in (tmp_path / "logged").read_text()
    starts(f"{code}subprocess.run(['touch', 'native.db'], check=True)\n")
    assert "native.db: written below the files of a revision, which the next" in (tmp_path / "logged").read_text()


WITH_UVICORNS_LOGGERS = """
import logging
from contextlib import asynccontextmanager
from fastapi import FastAPI

def log(when):
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access"):
        logging.getLogger(name).info("%s of %s", when, name)

log("import")

@asynccontextmanager
async def lifespan(app):
    for handler in logging.getLogger("uvicorn.access").handlers:
        handler.setFormatter(logging.Formatter("mine: %(message)s"))
    log("start")
    yield

app = FastAPI(lifespan=lifespan)
"""


def test_replicas_show_what_apps_log_with_the_loggers_of_uvicorn(tmp_path: Path) -> None:
    done = run_replica(tmp_path, WITH_UVICORNS_LOGGERS, STOP)
    assert [line.partition(" INFO ")[2] or line for line in done.stderr.splitlines()] == [
        "uvicorn: import of uvicorn",
        "uvicorn.error: import of uvicorn.error",
        "uvicorn.asgi: import of uvicorn.asgi",
        "uvicorn.access: import of uvicorn.access",
        "uvicorn: start of uvicorn",
        "uvicorn.error: start of uvicorn.error",
        "uvicorn.asgi: start of uvicorn.asgi",
        "mine: start of uvicorn.access",
    ]


OWN_LOGGING = {
    "version": 1,
    "formatters": {"own": {"format": "own: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
    "loggers": {"uvicorn.error": {"level": "INFO"}},
}


def test_logging_configuration_of_an_application_decides_about_the_loggers_of_uvicorn(tmp_path: Path) -> None:
    app = f"{WITH_UVICORNS_LOGGERS}\nlogging.getLogger('uvicorn.access').handlers[0].setFormatter(None)\n"
    done = run_replica(tmp_path, app, STOP, logging_config=OWN_LOGGING)
    lines = done.stderr.splitlines()
    assert all(line.startswith("own: ") for line in lines)
    assert len([line for line in lines if " of uvicorn" in line]) == 8
    assert "own: Application startup complete." in lines, "the configuration asks for what uvicorn itself logs"


def test_logging_configuration_without_handlers_of_the_root_logger_loses_no_record_of_uvicorns(tmp_path: Path) -> None:
    config = {"version": 1, "loggers": {"shop": {"level": "DEBUG"}}}
    done = run_replica(tmp_path, WITH_UVICORNS_LOGGERS, STOP, logging_config=config)
    assert len(done.stderr.splitlines()) == 8
