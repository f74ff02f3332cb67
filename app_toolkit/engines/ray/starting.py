"""Starts an instance, and a local Ray for it if there is no cluster to join."""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app_toolkit.config import settings
from app_toolkit.engines.ray import environment
from app_toolkit.engines.ray.actors import NAMESPACE
from app_toolkit.engines.ray.client import Membership, RayClient, is_driver, join, use_token
from app_toolkit.engines.ray.controller import ControllerActor
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.engines.ray.token import make_token
from app_toolkit.errors import ConfigError
from app_toolkit.host.runtime_folder import check_runtime_folder
from app_toolkit.host.services import CONTROLLER


def start_instance(*, address: str | None = None, num_cpus: float | None = None, with_lease: bool = True) -> RayClient:
    """Join the cluster at `address`, or start a local Ray with `num_cpus` logical CPUs, and take a lease.

    If this process is a driver already, use its cluster. `with_lease=False`: take no lease. An instance that is started
    by this call then stays until it is shut down, also if others take leases and end them. Raises `ConfigError` if
    there is no cluster at the address, or Ray cannot be started.
    """
    local = None
    if address is None and not is_driver():
        local = _start_ray(num_cpus)
        address = local.address
    membership = None
    try:
        membership = join(address, shows_output=with_lease) if local is None else _join_own(local)
        # The first proxy runs on the node of the controller, so this node is preferred: users expect the proxy at the
        # address that this process shows.
        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        controller = ControllerActor.options(
            name=CONTROLLER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=this_node,
        ).remote(lasting=not with_lease)
        client = RayClient(controller, local, membership)
        if with_lease:
            client.acquire_lease()
    except BaseException:
        if membership is not None:
            membership.leave()
        if local is not None:
            local.close()
        raise
    return client


def _start_ray(num_cpus: float | None) -> LocalRay:
    check_runtime_folder()
    try:
        make_token()
    except OSError as error:
        raise ConfigError(f"Ray keeps its access token in ~/.ray, which cannot be written: {error}") from error
    use_token()
    options = settings.start_options()
    return LocalRay(num_cpus, environment.folder(), options.log_format if options.log_file == "-" else None)


def _join_own(local: LocalRay) -> Membership | None:
    """Make this process a driver of its local Ray. The error says that it is this Ray that cannot be joined."""
    try:
        return join(local.address, is_local=True, advice="it was stopped again")
    except ConfigError as error:
        raise ConfigError(f"the local Ray has started, but this process cannot join it: {error}") from error.__cause__
