"""Reads and writes the desired state in the store, and repairs or reports corrupt values."""

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.controller.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from app_toolkit.core.rollout import Rollout
from app_toolkit.errors import ConfigError, Conflict, CorruptValue, StaleEpoch
from app_toolkit.interfaces import CODE, Store, code_key
from app_toolkit.observability.event_log import EventLog

T = TypeVar("T")

NOTHING: Mapping[str, bytes] = {}

EPOCH = "epoch"
HTTP = "http"
PORT = "port"
LEASES = "lease"

APPLICATIONS = "applications/"
"""The prefix of the key of an application's rollout. The name of the application follows."""

COPIES = "copies/"
"""The prefix of the key of a copy. The key of the original follows."""

EPOCHS_LOST = 1_000_000
"""How far to skip ahead if the last epoch cannot be read: more epochs than can have been taken."""


def application_key(name: str) -> str:
    return f"{APPLICATIONS}{name}"


def application_of_key(key: str) -> str | None:
    """Return the application that a key belongs to; None: it is not the key of an application."""
    return key.removeprefix(APPLICATIONS) if key.startswith(APPLICATIONS) else None


@dataclass(slots=True)
class StoredState:
    """The state that the previous controller stored."""

    rollouts: dict[str, Rollout] = field(default_factory=dict)
    """By the name of the application."""
    http: HTTPOptions | None = None
    port: int = 0
    """The port that the proxies listened on; 0: none yet."""
    leases: dict[str, Any] = field(default_factory=dict)
    """The value of `Leases.plain`."""
    corrupt: dict[str, str] = field(default_factory=dict)
    """The keys of which neither the value nor the copy can be read, each with a sentence about the consequences."""


class StateStore:
    """Reads and writes the store for the controller of one epoch.

    * Every value except packed code is a checkpoint and is stored twice. If a value is corrupt, its copy is used, and
      the value is repaired. The copy is written first and deleted first, so it is never older than the value.
    * If another controller has taken a later epoch, or the last epoch cannot be read any more, `replaced` is called and
      `StaleEpoch` is raised.
    """

    def __init__(self, store: Store, event_log: EventLog, replaced: Callable[[], None]) -> None:
        self.epoch = 0
        self.warnings: dict[str, str] = {}
        """A sentence about each corrupt value and its replacement, by key, until the value is written again."""
        self.store = store
        self._event_log = event_log
        self._replaced = replaced

    # The epoch

    async def take_epoch(self) -> int:
        """Take and return the next epoch. From then on, every earlier controller counts as replaced."""
        while True:
            last, copy = await self._both(EPOCH)
            taken = self._number(last, copy)
            if taken is None:
                taken = await self._last_known_epoch() + EPOCHS_LOST
            epoch = taken + 1
            with contextlib.suppress(Conflict):
                await self.store.compare_and_set(COPIES + EPOCH, copy, _epoch(epoch))
                await self.store.compare_and_set(EPOCH, last, _epoch(epoch))
                self.epoch = epoch
                return epoch

    async def check_epoch(self) -> None:
        """Raise `StaleEpoch` if this controller was replaced. Repair the epoch if one of its two values is corrupt."""
        mine = _epoch(self.epoch)
        while (both := await self._both(EPOCH)) != (mine, mine):
            number = self._number(*both)
            if number != self.epoch:
                self._replaced()
                taken = (
                    "the last epoch cannot be read"
                    if number is None
                    else f"another controller has taken epoch {number}"
                )
                raise StaleEpoch(f"this controller has epoch {self.epoch}, and {taken}")
            with contextlib.suppress(Conflict):  # another controller takes the next epoch at this moment
                for key, value in zip((EPOCH, COPIES + EPOCH), both, strict=True):
                    if value != mine:
                        await self.store.compare_and_set(key, value, mine)

    def _number(self, last: bytes | None, copy: bytes | None) -> int | None:
        """Return the last epoch that was taken; 0: none was taken; None: neither value can be read."""
        if last is None and copy is None:
            return 0
        known = []
        for key, value in ((EPOCH, last), (COPIES + EPOCH, copy)):
            try:
                known += [] if value is None else [decode_checkpoint(EPOCH, value).epoch]
            except CorruptValue as error:
                self._warn(key, error, "the next epoch is computed from the other values in the store")
        return max(known, default=None)

    async def _last_known_epoch(self) -> int:
        """Return the latest epoch of all values that can be read."""
        epochs = [0]
        for key in await self.store.keys(""):
            value = None if key.startswith(CODE) else await self.store.get(key)
            if value is not None:
                with contextlib.suppress(CorruptValue):
                    epochs.append(decode_checkpoint(key.removeprefix(COPIES), value).epoch)
        return max(epochs)

    # Desired state

    async def read(self) -> StoredState:
        stored = StoredState()
        keys = [*await self.store.keys(APPLICATIONS), *await self.store.keys(COPIES + APPLICATIONS)]
        for key in sorted({key.removeprefix(COPIES) for key in keys}):
            rollout = await self._read(stored, key, Rollout.model_validate_json)
            if rollout is not None:
                stored.rollouts[rollout.name] = rollout
        stored.http = await self._read(stored, HTTP, HTTPOptions.model_validate_json)
        stored.port = await self._read(stored, PORT, int) or 0
        stored.leases = await self._read(stored, LEASES, _leases) or {}
        return stored

    async def put_application(self, rollout: Rollout, code: Mapping[str, bytes] = NOTHING) -> None:
        """Store a rollout. The packed code, by hash, is stored before the revisions that need it."""
        for hash, packed in code.items():
            await self._put(code_key(hash), packed)
        await self._put_both(application_key(rollout.name), rollout.model_dump_json().encode())

    async def delete_application(self, name: str) -> None:
        await self._delete_both(application_key(name))

    async def delete_code_except_of(self, versions: Collection[ApplicationSpec]) -> None:
        """Delete the packed code that none of these revisions needs. Replicas that start later unpack the rest."""
        named = {code_key(hash) for spec in versions for hash in spec.packed}
        for key in await self.store.keys(CODE):
            if key not in named:
                await self._delete(key)

    async def put_http(self, options: HTTPOptions) -> None:
        await self._put_both(HTTP, options.model_dump_json().encode())

    async def delete_http(self) -> None:
        await self._delete_both(HTTP)

    async def put_port(self, port: int) -> None:
        await self._put_both(PORT, b"%d" % port)

    async def put_leases(self, plain: dict[str, Any]) -> None:
        await self._put_both(LEASES, json.dumps(plain).encode())

    async def delete_all(self) -> None:
        """Delete the desired state, except the options of the proxies.

        If the controller restarts during a shutdown, the next controller therefore retires the remaining replicas and
        proxies.
        """
        keys = [*await self.store.keys(APPLICATIONS), *await self.store.keys(COPIES + APPLICATIONS)]
        for key in sorted({key.removeprefix(COPIES) for key in keys}):
            await self._delete_both(key)
        for key in await self.store.keys(CODE):
            await self._delete(key)
        for key in (LEASES, PORT):
            await self._delete_both(key)

    # Values and their copies

    async def _both(self, key: str) -> tuple[bytes | None, bytes | None]:
        return await self.store.get(key), await self.store.get(COPIES + key)

    async def _read(self, stored: StoredState, key: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the value of a key, or its copy if the value is corrupt.

        Returns None if nothing is stored under the key, or if both are corrupt. `stored.corrupt` then has the key.
        """
        value, copy = await self._both(key)
        if value is None and copy is None:
            return None
        message, why = _parsed(key, value, parse)
        copied, why_not = _parsed(key, copy, parse)
        if why is None:
            if why_not is not None and copy is not None:
                self._warn(COPIES + key, why_not, "this is a copy and is written again")
            if copy != value:
                await self._repair(COPIES + key, copy, value)
            return message
        if why_not is None:
            self._warn(key, why, "its copy is used instead")
            await self._repair(key, value, copy)
            return copied
        self._warn(key, why, f"its copy cannot be used, either; {_instead(key)}")
        stored.corrupt[key] = self.warnings[key]
        return None

    async def _repair(self, key: str, before: bytes | None, value: bytes | None) -> None:
        assert value is not None
        with contextlib.suppress(Conflict):  # a later controller has written the key meanwhile
            await self.store.compare_and_set(key, before, value)

    async def _put_both(self, key: str, content: bytes) -> None:
        value = encode_checkpoint(key, Checkpoint(content, self.epoch))
        await self._put(COPIES + key, value)
        await self._put(key, value)
        self._clear_warning(key)

    async def _delete_both(self, key: str) -> None:
        await self._delete(COPIES + key)
        await self._delete(key)
        self._clear_warning(key)

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

    def _warn(self, key: str, why: CorruptValue, instead: str) -> None:
        message = f"the value of {key!r} in the state store is corrupt: {why}; {instead}"
        if self.warnings.get(key) != message:
            self.warnings[key] = message
            self._event_log.append(application_of_key(key.removeprefix(COPIES)) or "", "Corrupt", cause=message)

    def _clear_warning(self, key: str) -> None:
        self.warnings.pop(key, None)
        self.warnings.pop(COPIES + key, None)


def _parsed(key: str, value: bytes | None, parse: Callable[[bytes], T]) -> tuple[T | None, CorruptValue | None]:
    """Return the parsed value, or the error if it is missing or corrupt."""
    if value is None:
        return None, CorruptValue("it is missing")
    try:
        return parse(decode_checkpoint(key, value).content), None
    except CorruptValue as error:
        return None, error
    except (ValueError, ConfigError):  # whose message may quote the content, which may contain secrets
        return None, CorruptValue("its content does not have the format of this version")


def _epoch(number: int) -> bytes:
    """Return the value that a controller stores when it takes an epoch. The content is empty."""
    return encode_checkpoint(EPOCH, Checkpoint(b"", number))


def _leases(content: bytes) -> dict[str, Any]:
    leases: dict[str, Any] = json.loads(content)
    return leases


def _instead(key: str) -> str:
    """Return what happens if both the value and the copy of a key are corrupt, as a part of a sentence."""
    if key.startswith(APPLICATIONS):
        return "the replicas of the application stay as they are until it is deployed again or deleted"
    if key == HTTP:
        return "the proxies stay as they are until their options are deployed again or no proxy is left"
    return "the value is ignored"
