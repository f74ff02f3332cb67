"""The engine on Ray, as the engine-independent code sees it. Each method imports Ray when it is called."""

import sys

from app_toolkit.config.models import HTTPOptions
from app_toolkit.engines.ray import cluster, environment
from app_toolkit.operate.client import Client, Driver, Engine


class RayEngine(Engine):
    capabilities = frozenset({"processes", "nodes", "resources", "ray"})

    def check(self, address: str) -> None:
        cluster.check(address)

    def preload(self) -> None:
        environment.set_plain_logs(colour=sys.stdout.isatty())
        environment.set_up_workers()
        import app_toolkit.engines.ray.starting  # noqa: F401

    def is_joined(self) -> bool:
        if sys.modules.get("ray") is None:  # None: its import is blocked
            return False
        from app_toolkit.engines.ray.client import is_driver

        return is_driver()

    def start(
        self,
        *,
        address: str | None,
        num_cpus: float | None = None,
        with_lease: bool = True,
        http: HTTPOptions | None = None,
    ) -> Client:
        from app_toolkit.engines.ray.starting import start_instance

        return start_instance(address=address, num_cpus=num_cpus, with_lease=with_lease)

    def find(self, address: str | None) -> Client | None:
        from app_toolkit.engines.ray.client import RayClient

        return RayClient.find(address)

    def connect(self, address: str | None) -> Client:
        if address is not None and not self.is_joined():
            cluster.check(address)  # so that an address at which no cluster answers costs no import of Ray

        from app_toolkit.engines.ray.client import RayClient

        return RayClient.connect(address)

    def drive(self, client: Client) -> Driver:
        from app_toolkit.engines.driver import LoopDriver
        from app_toolkit.engines.ray.actors import RayServices

        return LoopDriver(client, RayServices())
