"""A running instance, seen from another process: one method that performs commands, and waiting for what they bring."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self, TypeVar

from app_toolkit.client.commands import Command, Delete, Deploy, GetApplication, GetStatus, Rollback
from app_toolkit.client.progress import Row, failures, is_serving, rolled_back, rows, unfinished
from app_toolkit.core import partial
from app_toolkit.core.diff import Diff, difference, of_part
from app_toolkit.core.rollout import Reverted
from app_toolkit.core.status import InstanceStatus, Load
from app_toolkit.errors import InstanceEnded, WaitTimeout

R = TypeVar("R")

LOOK_S = 0.5
"""Seconds that one wait for a change lasts at most; a Ctrl-C is noticed when it ends."""

WAIT_S = 600.0
"""Seconds to wait by default until an application is up; to start a large model takes minutes."""


class Client(ABC):
    """A connection to one instance: a controller with its proxies and replicas. Its methods block."""

    owner: str | None = None
    """The lease of this process, for what it deploys and holds; None: it holds nothing."""

    @abstractmethod
    def execute(self, command: Command[R]) -> R:
        """Have the controller perform a command.

        Raises what the command raises, and `InstanceEnded` if the instance was shut down.
        """

    @abstractmethod
    def load(self) -> Mapping[str, Load]:
        """Where requests are just now, by `APPLICATION/DEPLOYMENT`."""

    @abstractmethod
    def leave(self) -> None:
        """Delete what this process holds, wait for it, and disconnect; a local Ray ends with all that runs on it."""

    @abstractmethod
    def shutdown(self) -> None:
        """Drain everything, wait for it, and disconnect; a local Ray ends, too."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect. What runs goes on, unless it runs on a local Ray."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rollback(self, application: str) -> Reverted:
        """Go back to the last good version of an application. Raises `ConfigError` if there is none."""
        _, revision = self.execute(GetApplication(application))
        return self.execute(Rollback(application, revision))

    def part(self, whole: Deploy, only: Iterable[str]) -> tuple[Deploy, Diff]:
        """The command that deploys parts of an application alone, and what it changes.

        `only`: the deployments, by their names or by endpoints such as `"POST /embed"`. Raises `ConfigError` if there
        is no such application, it has no such deployment, or the parts do not fit together.
        """
        living, revision = self.execute(GetApplication(whole.spec.name))
        names = partial.named(only, living, whole.spec)
        spec = partial.taken_over(living, whole.spec, names)
        code = {hash: packed for hash, packed in whole.code.items() if hash in spec.packed}
        return replace(whole, spec=spec, code=code, expected=revision), of_part(difference(living, spec), names)

    def watch(self, wanted: Callable[[], bool] = lambda: True) -> Iterator[InstanceStatus]:
        """The status, then again when it changes and after `LOOK_S` seconds, as long as it is `wanted`.

        Raises `InstanceEnded` when the instance is shut down.
        """
        after = -1
        while wanted():
            status = self.execute(GetStatus(after, LOOK_S))
            after = status.change
            yield status

    def wait_until_serving(
        self,
        applications: Collection[str],
        timeout_s: float = math.inf,
        show: Callable[[Sequence[Row]], None] = lambda rows: None,
    ) -> InstanceStatus:
        """Wait until all that was deployed last of these is up, and nothing of before answers any more.

        `show` is called with each state on the way. Raises `StartupError` or `PlacementError` if one will not come up,
        and `WaitTimeout` after `timeout_s` seconds. Neither takes back what was deployed.
        """
        deadline = time.monotonic() + timeout_s
        for status in self.watch():
            shown = rows(status, applications)
            show(shown)
            for name in applications:
                if error := rolled_back(status.application(name)) or next(failures(status, name), None):
                    raise error
            left = unfinished(status, applications)
            if not left and is_serving(status, applications):
                return status
            if time.monotonic() >= deadline:
                late = [*(str(row) for row in shown if not row.group.is_up), *left]
                raise WaitTimeout(
                    f"not all is as it should be after {timeout_s:g} s: {'; '.join(late) or 'no proxy is up'}"
                )
        raise AssertionError("a watch ends only when it is not wanted")

    def wait_until_gone(self, deleted: Delete) -> None:
        """Wait until nothing is left of what was deleted."""
        with suppress(InstanceEnded):
            for status in self.watch():
                left = [group.name.partition("/")[2] for group in status.leaving_of(deleted.application)]
                if not left or deleted.deployment not in (None, *left):
                    return


class Engine(Protocol):
    """Connects to instances."""

    def start(self, *, address: str | None, num_cpus: float | None, held: bool = True) -> Client:
        """Join the Ray cluster at `address`; None: start a local Ray with so many logical CPUs.

        If no instance runs there, one is started. Unless `held`, it stays when this process has ended.
        """
        ...

    def find(self, address: str | None) -> Client | None:
        """The instance that runs there. Raises `ConfigError` if there is no cluster."""
        ...

    def connect(self, address: str | None) -> Client:
        """The instance that runs there. Raises `ConfigError` if there is none."""
        ...
