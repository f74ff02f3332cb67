"""Reads and writes the desired state in the store."""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.control.application import Application
from app_toolkit.control.checkpoint import corrupt, decode_checkpoint, encode_checkpoint
from app_toolkit.errors import ConfigError, Conflict, CorruptValue, StaleEpoch
from app_toolkit.interfaces import CODE, Store, code_key

T = TypeVar("T")

EPOCH = "epoch"
HTTP = "http"
PORT = "port"
ADMIN_PORT = "admin-port"
LEASES = "lease"

APPLICATIONS = "applications/"
"""The prefix of the key of an application. Its name follows."""


def application_key(name: str) -> str:
    return f"{APPLICATIONS}{name}"


@dataclass(slots=True)
class StoredState:
    """The state that the previous controller stored."""

    applications: dict[str, Application] = field(default_factory=dict)
    """The applications by name."""
    http: HTTPOptions | None = None
    port: int = 0
    """The port that the proxies listened on; 0: none yet."""
    admin_port: int = 0
    """The port that the admin server listened on; 0: none yet."""
    leases: dict[str, Any] = field(default_factory=dict)
    """The value of `Leases.plain`."""


class StateStore:
    """Reads and writes the store for the controller of one epoch.

    * Every value except packed code is a checkpoint. Each method raises `CorruptValue` if a value that it needs cannot
      be read. The controller then does nothing, because it does not know what is desired.
    * If another controller has taken a later epoch, `replaced` is called and `StaleEpoch` is raised.
    """

    def __init__(self, store: Store, replaced: Callable[[], None]) -> None:
        self.epoch = 0
        self.store = store
        self._replaced = replaced

    # The epoch

    async def take_epoch(self, *, discard: bool = False) -> int:
        """Take and return the next epoch. From then on, every earlier controller counts as replaced.

        `discard`: if the last epoch cannot be read, take one that is certainly later.
        """
        while True:
            try:
                last = await self.store.get(EPOCH)
                epoch = read_epoch(last) + 1
            except CorruptValue:
                if not discard:
                    raise
                await self.store.delete(EPOCH)
                last, epoch = None, int(time.time())  # no instance has had as many controllers
            with contextlib.suppress(Conflict):
                await self.store.compare_and_set(EPOCH, last, encode_checkpoint(EPOCH, b"%d" % epoch))
                self.epoch = epoch
                return epoch

    async def check_epoch(self) -> None:
        """Raise `StaleEpoch` if this controller was replaced."""
        stored = read_epoch(await self.store.get(EPOCH))
        if stored != self.epoch:
            self._replaced()
            raise StaleEpoch(f"this controller has epoch {self.epoch}, and another controller has taken epoch {stored}")

    # Desired state

    async def read(self) -> StoredState:
        keys = await self.store.keys(APPLICATIONS)
        stored = [await self._read(key, Application.model_validate_json) for key in keys]
        return StoredState(
            {application.name: application for application in stored if application is not None},
            await self._read(HTTP, HTTPOptions.model_validate_json),
            await self._read(PORT, int) or 0,
            await self._read(ADMIN_PORT, int) or 0,
            await self._read(LEASES, json.loads) or {},
        )

    async def put_code(self, code: Mapping[str, bytes]) -> None:
        """Store packed code, by hash. Call it before `put_application` with a revision that needs it."""
        for hash, packed in code.items():
            await self._put(code_key(hash), packed)

    async def put_application(self, application: Application) -> None:
        await self._put_checkpoint(application_key(application.name), application.model_dump_json().encode())

    async def delete_application(self, name: str) -> None:
        await self._delete(application_key(name))

    async def delete_code_except_of(self, versions: Collection[ApplicationSpec]) -> None:
        """Delete the packed code that none of these revisions needs. Replicas that start later unpack the rest."""
        named = {code_key(hash) for spec in versions for hash in spec.packed}
        for key in await self.store.keys(CODE):
            if key not in named:
                await self._delete(key)

    async def put_http(self, options: HTTPOptions) -> None:
        await self._put_checkpoint(HTTP, options.model_dump_json().encode())

    async def put_port(self, port: int) -> None:
        await self._put_checkpoint(PORT, b"%d" % port)

    async def put_admin_port(self, port: int) -> None:
        await self._put_checkpoint(ADMIN_PORT, b"%d" % port)

    async def put_leases(self, plain: dict[str, Any]) -> None:
        await self._put_checkpoint(LEASES, json.dumps(plain).encode())

    async def delete_all(self) -> None:
        """Delete the desired state, except the options of the proxies.

        If the controller restarts during a shutdown, the next controller therefore retires the remaining replicas and
        proxies.
        """
        for key in (*await self.store.keys(APPLICATIONS), *await self.store.keys(CODE), LEASES, PORT, ADMIN_PORT):
            await self._delete(key)

    async def discard(self) -> StoredState:
        """Delete the desired state without reading it, and return that nothing is stored."""
        await self.delete_all()
        await self._delete(HTTP)
        return StoredState()

    # Values

    async def _read(self, key: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed value of a key; None: nothing is stored under it."""
        value = await self.store.get(key)
        if value is None:
            return None
        content = decode_checkpoint(key, value)
        try:
            return parse(content)
        except (ValueError, ConfigError):
            raise corrupt(key, "its content does not have the format of this version") from None

    async def _put_checkpoint(self, key: str, content: bytes) -> None:
        await self._put(key, encode_checkpoint(key, content))

    async def _delete(self, key: str) -> None:
        await self.check_epoch()
        await self.store.delete(key)

    async def _put(self, key: str, value: bytes) -> None:
        before = await self.store.get(key)
        if before == value:
            return
        await self.check_epoch()  # otherwise a later controller may have written `before`
        try:
            await self.store.compare_and_set(key, before, value)
        except Conflict:
            await self.check_epoch()  # only a controller that has replaced this one writes to the store
            raise


def read_epoch(value: bytes | None) -> int:
    """Return the last epoch that was taken, from the value of `EPOCH`; 0: none was taken."""
    return 0 if value is None else int(decode_checkpoint(EPOCH, value))
