"""What an engine provides to each of its processes."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.host.runtime_folder import RuntimeFolder
from app_toolkit.interfaces import Payloads, Snapshot, Store, Version
from app_toolkit.types import NodeId

CONTROLLER: Final = "controller"
"""The name of the process of the controller."""


class Services(Protocol):
    """The connection of one process to the engine and to the controller.

    `watch` and `report` are awaited on the event loop that serves requests, or on that of a script's calls. All other
    methods may block.
    """

    @property
    def store(self) -> Store:
        """The store of the controller. It is used on several event loops, also in several threads at the same time."""
        ...

    @property
    def node(self) -> NodeId:
        """The node that this process runs on."""
        ...

    @property
    def address(self) -> str:
        """The address at which other nodes reach this one."""
        ...

    def nodes(self) -> Sequence[str]:
        """Return the addresses of the nodes that are alive. Several nodes may have the same address."""
        ...

    @property
    def folder(self) -> RuntimeFolder:
        """The private folder of this session on this host, locked until this process ends. Raises `InsecurePath`."""
        ...

    @property
    def log_folder(self) -> Path | None:
        """The folder for the log files of this node, which may be in one that others can write to. None: keep none."""
        ...

    def listener(self, host: str, port: int) -> socket.socket | None:
        """Return a socket that is bound to this address, and accepts clients of the instance; None: bind it yourself.

        The caller closes it. `port`: 0: any free port.
        """
        ...

    def payloads(self) -> AbstractContextManager[Payloads | None]:
        """Return a context with the transfer of large payloads; None: they are sent over sockets like all others."""
        ...

    async def watch(
        self, name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = ""
    ) -> Mapping[str, Snapshot]:
        """Return the snapshots that the controller has published since `seen`, for the client process of this name.

        Return an empty mapping after a while if there are none, or if no controller answers.
        """
        ...

    async def report(self, name: str, loads: Loads, compared: Compared, lost: Lost) -> bool:
        """Report the loads of the process of this name, the requests of the live revisions that are compared, and those
        that were lost with replicas.

        Return whether the controller has taken all of them.
        """
        ...

    async def push_metrics(self, process: str, snapshot: bytes) -> bool:
        """Send the metrics of the process of this name (`observability/snapshots.py`) to the controller.

        Return False if no admin server runs, or it has not taken them. It is awaited on any event loop.
        """
        ...
