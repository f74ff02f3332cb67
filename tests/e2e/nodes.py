"""A Ray of several nodes on this machine, with an instance on it: a process of its own.

One line of JSON is one order, and brings one line of answer. When standard input closes, everything ends.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from app_toolkit.config.models import DeploymentConfig, HTTPOptions, IngressSpec, ResourceOptions
from app_toolkit.control.operations import Delete, Deploy
from app_toolkit.control.queries import GetStatus
from app_toolkit.declare.planning import plan
from app_toolkit.engines.ray.actors import NAMESPACE
from app_toolkit.engines.ray.starting import start_instance
from app_toolkit.userapp.loading import load

FOLDER = str(Path(__file__).parent)
HEARTBEAT = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1_000,
    "health_check_failure_threshold": 3,
}
"""A node that died is known to be dead within a second or two."""


class Nodes:
    def __init__(self, nodes: int) -> None:
        self.cluster = Cluster()
        memory = 80_000_000
        self.cluster.add_node(
            num_cpus=2,
            object_store_memory=memory,
            _system_config=HEARTBEAT,
            include_dashboard=False,
        )
        # Before there are others: nodes of one machine have one address, and we are to be on the first.
        self.client = start_instance(address=self.cluster.address)
        self.others = [self.cluster.add_node(num_cpus=2, object_store_memory=memory) for _ in range(nodes - 1)]
        self.cluster.wait_for_nodes()

    def deploy(
        self,
        replicas: int,
        cpus: float,
        proxies: int,
        name: str = "spread",
        most: int | None = None,
    ) -> None:
        """The first one is at the root; at most `most` replicas are on a node."""
        app: Any = load("spread:app", FOLDER)
        prefix = "/" if name == "spread" else f"/{name}"
        spec = plan(app, target="spread:app", app_dir=FOLDER, name=name, route_prefix=prefix)
        config = DeploymentConfig(
            name="app",
            num_replicas=replicas,
            health_check_period_s=0.5,
            resources=ResourceOptions(num_cpus=cpus),
            max_replicas_per_node=most,
        )
        spec = spec.model_copy(update={"deployments": (IngressSpec(config=config),)})
        self.client.execute(
            Deploy(spec, HTTPOptions(port=0, proxies_per_node=proxies, admin=False), owner=self.client.owner)
        )

    def delete(self, name: str) -> None:
        self.client.execute(Delete(name))

    def status(self) -> Any:
        return asdict(self.client.execute(GetStatus()))

    def url(self) -> str:
        url = self.client.execute(GetStatus()).url
        assert url is not None, "no proxy is up"
        return url

    def pid(self, actor: str) -> int:
        handle: Any = ray.get_actor(actor, namespace=NAMESPACE)
        return int(ray.get(handle.here.remote()))

    def kill_node(self, number: int) -> str:
        """The raylet, at once; all that runs on the node ends with it."""
        node = self.others[number]
        self.cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id)

    def close(self) -> None:
        self.client.shutdown()
        self.cluster.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints is no answer
    os.environ["RAY_allow_out_of_band_object_ref_serialization"] = "0"
    nodes = Nodes(int(sys.argv[1]))
    try:
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            do: Callable[..., Any] = getattr(nodes, name)
            print(json.dumps(do(*arguments)), file=answers, flush=True)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
