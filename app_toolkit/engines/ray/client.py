"""The connection to an instance on a Ray cluster, for processes outside of it: the command line, scripts, tests."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

import ray
from ray._private import services as ray_services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from app_toolkit.client.commands import Command
from app_toolkit.client.remote import ControllerUnavailable, RemoteClient
from app_toolkit.engines.ray import cluster
from app_toolkit.engines.ray.actors import CONTROLLER, NAMESPACE, SILENT_S, revive
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.engines.ray.orders import send
from app_toolkit.engines.ray.token import restrict_token
from app_toolkit.errors import ConfigError, InstanceEnded, ToolkitError
from app_toolkit.host.orders import Order

R = TypeVar("R")


class RayControl:
    """Asks the actors of an instance."""

    def __init__(self, controller: Any, local: LocalRay | None, *, joined: bool) -> None:
        self._controller = controller
        self._local = local
        self._joined = joined

    def execute(self, command: Command[R], timeout_s: float | None = None) -> R:
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
        if self._joined:
            ray.shutdown()
        local, self._local = self._local, None
        if local is not None:
            local.close()


class RayClient(RemoteClient):
    """A connection to the instance on a Ray cluster.

    * `start_instance`, `connect` and `find` make this process a driver of the cluster, until `close` or the end of a
      `with`.
    * A local Ray ends with the connection. A cluster that was joined is not changed.
    """

    def __init__(self, controller: Any, local: LocalRay | None = None, *, joined: bool = True) -> None:
        """`joined`: this client made the process a driver, so `close` disconnects it from Ray."""
        super().__init__(RayControl(controller, local, joined=joined), is_local=local is not None)

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
        joined = join(address or "auto")
        try:
            return cls(ray.get_actor(CONTROLLER, namespace=NAMESPACE), joined=joined)
        except ValueError:
            if joined:
                ray.shutdown()
            return None

    def check_address(self, address: str) -> None:
        join(address)


def is_driver() -> bool:
    """Return whether this process is connected to a cluster."""
    return bool(ray.is_initialized())


def use_token() -> None:
    """Make Ray send the access token, if there is one, to every cluster. By default Ray does so only for `auto`."""
    restrict_token()
    logging.getLogger("ray").setLevel(logging.ERROR)
    maybe_enable_token_auth_if_token_available()


def join(address: str | None, *, shows_output: bool = False, advice: str = cluster.ADVICE) -> bool:
    """Make this process a driver. Return False if it was one before. `address` None: it must be one already.

    `shows_output`: show the output of replicas here. `advice`: what to do if no cluster answers.
    """
    if address is not None:
        cluster.refuse_url(address)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise ConfigError(f"this process is a part of the Ray cluster at {here}, and cannot join one at {address}")
        return False
    assert address is not None
    address = cluster.find(address, advice)
    use_token()
    try:
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=shows_output)
    except (ConnectionError, RuntimeError) as error:
        raise ConfigError(f"the Ray cluster at {address} cannot be joined: {error}") from error
    return True
