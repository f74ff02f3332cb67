"""The connection to an instance on a Ray cluster, for processes outside of it: the command line, scripts, tests."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Self, TypeVar

import ray
from ray._private import services as ray_services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from app_toolkit.control.command import Command
from app_toolkit.engines.ray import cluster
from app_toolkit.engines.ray.actors import NAMESPACE, SILENT_S, revive
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.engines.ray.orders import send
from app_toolkit.engines.ray.token import restrict_token
from app_toolkit.errors import ConfigError, InstanceEnded, ToolkitError
from app_toolkit.host.orders import Order
from app_toolkit.host.services import CONTROLLER
from app_toolkit.operate.remote import ControllerUnavailable, RemoteClient

R = TypeVar("R")


class RayControl:
    """Asks the actors of an instance."""

    def __init__(self, controller: Any, local: LocalRay | None, membership: "Membership | None") -> None:
        self._controller = controller
        self._local = local
        self._membership = membership

    def execute(self, command: Command[R], timeout_s: float | None = None) -> R:
        if not ray.is_initialized():  # another thread has disconnected, and Ray would start a cluster of its own
            raise InstanceEnded("this process has left the Ray cluster of the instance")
        reference = self._controller.execute.remote(command)
        try:
            while timeout_s is None and not ray.wait([reference], timeout=SILENT_S)[0]:
                revive(self._controller)
            result: R = ray.get(reference, timeout=timeout_s)
        except RayTaskError as error:
            if not isinstance(error.cause, ToolkitError):
                raise
            raise error.cause from None
        except ActorDiedError:
            raise InstanceEnded("the instance was shut down") from None
        except (ActorUnavailableError, GetTimeoutError) as error:
            raise ControllerUnavailable(str(error)) from error
        return result

    def ask(self, orders: Mapping[str, Order[Any, R]]) -> Mapping[str, R]:
        sent: dict[str, Any] = {}
        for process, order in orders.items():
            with suppress(ValueError):  # the process has ended
                sent[process] = send(ray.get_actor(process, namespace=NAMESPACE), order)
        limits = [order.answer_s for order in orders.values()]
        timeout_s = None if None in limits else max(filter(None, limits), default=0.0)
        ready, _ = ray.wait(list(sent.values()), num_returns=len(sent), timeout=timeout_s) if sent else ([], [])
        results: dict[str, R] = {}
        for process, reference in sent.items():
            if reference in ready:
                with suppress(RayError):  # the process has ended
                    results[process] = ray.get(reference)
        return {process: result for process, result in results.items() if result is not None}

    def addresses(self) -> Mapping[str, str]:
        state: Any = ray  # its functions have no types
        return {node["NodeID"]: node["NodeManagerAddress"] for node in state.nodes()}

    def links(self) -> Mapping[str, str]:
        services: Any = ray_services
        address = services.get_webui_url_from_internal_kv()  # None: Ray runs without its dashboard
        return {"Ray dashboard": f"http://{address}"} if address else {}

    def end_controller(self) -> None:
        with suppress(RayError):  # it has ended
            ray.kill(self._controller, no_restart=True)

    def close(self) -> None:
        if self._membership is not None:
            self._membership.leave()
        local, self._local = self._local, None
        if local is not None:
            local.close()


class RayClient(RemoteClient):
    """A connection to the instance on a Ray cluster.

    * `start_instance`, `connect` and `find` make this process a driver of the cluster, until `close` or the end of a
      `with`.
    * A local Ray ends with the connection. A cluster that was joined is not changed.
    """

    engine = "ray"

    def __init__(self, controller: Any, local: LocalRay | None = None, membership: "Membership | None" = None) -> None:
        """Use the actor of the controller.

        Parameters:
            controller: The actor.
            local: The cluster that this process has started. It ends with the connection. None: it has not.
            membership: Ends with the connection. None: the process does not belong to the cluster by app_toolkit.
        """
        super().__init__(RayControl(controller, local, membership), is_local=local is not None)

    @classmethod
    def connect(cls, address: str | None = None) -> Self:
        """Connect to the instance on the cluster at `address`, by default that of this machine.

        If this process is connected to a cluster already, use that cluster. Raises `ConfigError` if there is no
        cluster or no instance.
        """
        client = cls.find(address)
        if client is None:
            where = "of this machine" if address in (None, "auto") else f"at {address}"
            raise ConfigError(f"no app_toolkit instance runs on the Ray cluster {where}")
        return client

    @classmethod
    def find(cls, address: str | None = None) -> Self | None:
        """Connect as `connect` does. Return None if there is no instance. Raises `ConfigError` without a cluster."""
        membership = join(address or "auto")
        try:
            return cls(ray.get_actor(CONTROLLER, namespace=NAMESPACE), membership=membership)
        except ValueError:
            if membership is not None:
                membership.leave()
            return None

    def check_address(self, address: str) -> None:
        check_joined(address)


def is_driver() -> bool:
    """Return whether this process is connected to a cluster."""
    return bool(ray.is_initialized())


def use_token() -> None:
    """Make Ray send the access token, if there is one, to every cluster. By default Ray does so only for `auto`."""
    restrict_token()
    logging.getLogger("ray").setLevel(logging.ERROR)
    maybe_enable_token_auth_if_token_available()


class Membership:
    """A connection of this process to a Ray cluster, of which a process can have only one.

    The connections of app_toolkit share it: the last one that leaves disconnects the process.
    """

    _all: ClassVar[set["Membership"]] = set()
    _changing: ClassVar[threading.Lock] = threading.Lock()
    """Held while the process joins or leaves the cluster."""

    def __init__(self, *, is_local: bool) -> None:
        """`is_local`: the cluster ends with this connection, whoever else uses it."""
        self._is_local = is_local
        self._all.add(self)

    @classmethod
    def join(cls, connect: Callable[[], None], *, is_local: bool) -> Self | None:
        """Connect if this process is not connected. Return None if it is, but not by app_toolkit."""
        with cls._changing:
            if not ray.is_initialized():
                cls._all.clear()
                connect()
            elif not cls._all:
                return None
            return cls(is_local=is_local)

    def leave(self) -> None:
        """Disconnect the process if nobody else uses the connection. A second call does nothing."""
        with self._changing:
            if self in self._all:
                self._all.remove(self)
                if self._is_local:
                    self._all.clear()
                if not self._all:
                    ray.shutdown()


def check_joined(address: str) -> None:
    """Raise `ConfigError` if this process, which is a driver, belongs to another cluster."""
    cluster.refuse_url(address)
    own_address = ray.get_runtime_context().gcs_address
    if address not in ("auto", own_address):
        raise ConfigError(
            f"this process is a part of the Ray cluster at {own_address}, and cannot join one at {address}"
        )


def join(
    address: str | None, *, shows_output: bool = False, is_local: bool = False, advice: str = cluster.ADVICE
) -> Membership | None:
    """Make this process a driver. Return None if it was one before, and not by app_toolkit.

    Parameters:
        address: That of the cluster. None: the process must be a driver already.
        shows_output: Show the output of replicas here.
        is_local: The cluster ends with this connection.
        advice: What to do if no cluster answers.
    """
    if address is not None:
        cluster.refuse_url(address)
        if ray.is_initialized():
            check_joined(address)

    def connect() -> None:
        assert address is not None
        place = cluster.find(address, advice)
        use_token()
        try:
            ray.init(address=place, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=shows_output)
        except (ConnectionError, RuntimeError) as error:
            raise ConfigError(f"the Ray cluster at {place} cannot be joined: {error}") from error

    return Membership.join(connect, is_local=is_local)
