"""A client whose status follows a script."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from app_toolkit.config.models import Capability
from app_toolkit.control.application import Reverted
from app_toolkit.control.command import Command
from app_toolkit.control.operations import AddCandidate, Deploy, Scale
from app_toolkit.control.promotion import Promote
from app_toolkit.control.queries import GetApplication, GetEvents, GetStatus
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.status import InstanceStatus, Load, ReplicaSetStatus, ReplicaStatus
from app_toolkit.engines.ray.engine import RayEngine
from app_toolkit.observability.event_log import EventPage
from app_toolkit.observability.log_query import MOST_RECORDS, LogPage, LogQuery
from app_toolkit.observability.slowest import SlowRequest
from app_toolkit.operate.client import Client, Driver, Engine

LISTENING = ReplicaStatus("proxy@3f20-1-1", "running", 1.0, "r", "tcp:127.0.0.1:8000", 0, None, None)
PROXY = ReplicaSetStatus("proxy@3f20", "healthy", 1, "r", {"running": 1}, (LISTENING,), 0, None)
UP = ReplicaSetStatus("shop/app", "healthy", 1, "r", {"running": 1}, (), 0, None)
STARTING = ReplicaSetStatus("shop/app", "starting", 1, "r", {"starting": 1}, (), 0, None)
UPDATING = ReplicaSetStatus("shop/app", "updating", 1, "r", {"running": 2}, (), 0, None)
FAILED = ReplicaSetStatus(
    "shop/app", "failed", 1, "r", {"running": 1}, (), 3, "Traceback\n  line\nValueError: no model"
)


class OneInstance(Client, Engine):
    """An engine, and the client of its only instance. A test overrides what may be used."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({"processes", "nodes", "resources", "ray"})

    def check(self, address: str) -> None: ...

    def preload(self) -> None: ...

    def is_joined(self) -> bool:
        return False

    def start(self, *, address: str | None, **_: object) -> Client:
        raise AssertionError("the instance runs already")

    def find(self, address: str | None) -> Client | None:
        return self

    def connect(self, address: str | None) -> Client:
        return self

    def drive(self, client: Client) -> Driver:
        raise AssertionError("no handle calls from here")

    def acquire_lease(self) -> None: ...

    def load(self) -> dict[str, Load]:
        return {}

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        raise AssertionError("nobody reads the logs")

    def slow(self, name: str | None = None, last: int = 20) -> list[SlowRequest]:
        return []

    def leave(self) -> None:
        raise AssertionError("nothing was deployed with a lease")

    def shutdown(self) -> None:
        raise AssertionError("what runs goes on")

    def close(self) -> None: ...


class Unloaded(RayEngine):
    """The engine on Ray, which a command must not load."""

    def preload(self) -> None:
        raise AssertionError("Ray was loaded")


class Scripted(OneInstance):
    """An engine and its one client. Its status takes the next step of the script whenever somebody looks."""

    revision = 1
    """The revision number that each command brings."""

    def __init__(self, *script: InstanceStatus | EventPage | LogPage | Exception) -> None:
        self.script = iter(script)
        self.did: list[object] = []

    def execute(self, command: Command[Any]) -> Any:
        match command:
            case GetStatus(after):
                step = next(self.script)
                if isinstance(step, Exception):
                    raise step
                return replace(step, change=after + 1)
            case GetApplication():
                return None, 3
            case GetEvents():
                self.did.append(command)
                step = next(self.script)
                if isinstance(step, Exception):
                    raise step
                return step
            case Rollback(application, 3):
                self.did.append(command)
                return Reverted(application, 3, 2, self.revision)
            case Deploy() | Scale() | Restart() | AddCandidate() | Promote():
                self.did.append(command)
                return self.revision
            case _:
                self.did.append(command)

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        self.did.append((query, last, after))
        step: Any = next(self.script)
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, LogPage)
        return step

    def close(self) -> None:
        self.did.append("close")
