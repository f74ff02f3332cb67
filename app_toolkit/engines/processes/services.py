"""What a process gets from this engine: see `host/services.py`."""

import asyncio
import contextlib
import socket
import time
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.engines.processes.capacity import NOTHING, Grant
from app_toolkit.engines.processes.store import SQLiteStore
from app_toolkit.engines.processes.wire import Peer, PeerGone, call
from app_toolkit.errors import ControlError
from app_toolkit.host.runtime_folder import LOGS, RuntimeFolder
from app_toolkit.host.services import CONTROLLER
from app_toolkit.interfaces import Payloads, Snapshot, Version
from app_toolkit.types import NodeId

HOME = NodeId("local")
"""The only node."""

SUPERVISOR = "supervisor"
"""The name of the process that starts and ends the others."""

PLANNING = "planning-"
"""The beginning of the names of processes that plan an app."""

STARTED = b"+"
"""What the owner of an instance receives once its processes can be asked."""

RELEASED = b"-"
"""What the owner of an instance sends to let it go on without an owner."""

OUTPUT = "output.log"
"""The file with what the processes of an instance in the background print, in the folder of the logs."""

RECORDS = "records"
"""The folder of the log files, beside the access logs."""

ALIVE_S = 5.0
"""Seconds that a supervisor has to answer."""

AGAIN_S = 0.1
"""Seconds before a process asks the controller again if that does not answer."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that the supervisor has started or taken over."""

    pid: int
    role: str
    template: str = ""
    """The template that has forked it; empty: the supervisor has."""
    granted: Grant = NOTHING
    """What it has reserved, for a controller that has not started it."""


def orders_path(folder: Path, process: str) -> str:
    """Return the path of the socket at which a process receives orders. `folder`: that of its session."""
    # A name may be longer than that of a file.
    return str(folder / f"{sha256(process.encode()).hexdigest()[:16]}.orders")


def is_alive(supervisor: str) -> bool:
    """Return whether the supervisor of an instance runs. `supervisor`: the path of its socket."""
    with contextlib.suppress(PeerGone):
        with contextlib.suppress(TimeoutError):  # it is very busy, or stopped
            call(supervisor, "running", timeout_s=ALIVE_S)
        return True
    return False


def planning_name(app: str) -> str:
    """Return the name of the process that plans an app."""
    return f"{PLANNING}{app}"


class ProcessServices:
    """The services of each process of an instance, and of the clients of the instance."""

    node = HOME
    address = "127.0.0.1"

    def __init__(self, session: str, base: Path | None = None) -> None:
        """Create the folder of the session, unless it exists. `base`: the folder that contains it.

        Raises `InsecurePath` if another user could read, change or replace its files.
        """
        self.session = session
        self.folder = RuntimeFolder(session, base)
        self.store = SQLiteStore(self.folder.path / "store.db")
        self.clients: socket.socket | None = None
        """The socket to which clients connect. The supervisor keeps it open while other processes are replaced."""
        self.host = ""
        """The address that it is bound to, as the options name it."""
        self._peers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Peer]] = weakref.WeakKeyDictionary()
        self._push_at = 0.0
        """When this process may push its metrics again, on its monotonic clock."""

    def nodes(self) -> list[str]:
        return [self.address]

    @property
    def log_folder(self) -> Path:
        return self.folder.folder(LOGS) / RECORDS

    @property
    def output(self) -> Path:
        """The file with what the processes print, if the instance runs in the background."""
        return self.folder.folder(LOGS) / OUTPUT

    def payloads(self) -> AbstractContextManager[Payloads | None]:
        return contextlib.nullcontext(None)

    def listener(self, host: str, port: int) -> socket.socket | None:
        if self.clients is None or host != self.host or port not in (0, self.clients.getsockname()[1]):
            return None
        return self.clients.dup()

    def path_of(self, process: str) -> str:
        """Return the path of the socket at which a process receives orders."""
        return orders_path(self.folder.path, process)

    def peer(self, process: str) -> Peer:
        """Return the connection of the running event loop to another process."""
        peers = self._peers.setdefault(asyncio.get_running_loop(), {})
        if process not in peers:
            peers[process] = Peer(self.path_of(process))
        return peers[process]

    def disconnect(self, process: str) -> None:
        """Close the connection of the running event loop to a process that has ended."""
        peer = self._peers.get(asyncio.get_running_loop(), {}).pop(process, None)
        if peer is not None:
            peer.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for peer in self._peers.pop(asyncio.get_running_loop(), {}).values():
            await peer.aclose()

    async def watch(
        self, name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = ""
    ) -> Mapping[str, Snapshot]:
        try:
            snapshots: Mapping[str, Snapshot] = await self.peer(CONTROLLER).call("watch", name, dict(seen), prefix)
        except (PeerGone, ControlError):  # the controller ends, or another one starts
            await asyncio.sleep(AGAIN_S)
            return {}
        return snapshots

    async def report(self, name: str, loads: Loads, compared: Compared, lost: Lost) -> bool:
        try:
            return bool(await self.peer(CONTROLLER).call("report", name, dict(loads), dict(compared), dict(lost)))
        except (PeerGone, ControlError):
            return False

    async def push_metrics(self, process: str, snapshot: bytes) -> bool:
        if time.monotonic() < self._push_at:
            return False
        try:
            accepted, again_s = await self.peer(CONTROLLER).call("push_metrics", process, snapshot)
        except (PeerGone, ControlError):
            return False
        self._push_at = time.monotonic() + again_s
        return bool(accepted)
