"""Applications and replica sets for the tests of decisions about several of them."""

from app_toolkit.config.models import ApplicationSpec, ClassConfig, ClassSpec, DeploymentConfig, IngressSpec, Route
from app_toolkit.contract.identity import are_proxies, replica_id
from app_toolkit.contract.replica_spec import ProxySpec
from app_toolkit.control.reconcile import ReplicaSetRecord, ReplicaSetSpec
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.replica_state import ReplicaRecord
from app_toolkit.interfaces import Location
from app_toolkit.types import Address, NodeId, ReplicaId
from tests.control.worlds import LIVE, replica_set_spec
from tests.keys import proxies_of

HOME, NEXT = NodeId("home"), NodeId("next")


def application(name="shop", *, prefix="/", model=False, **options):
    """An app of one ingress `web`, and of a class `model` where that is asked for."""
    ingress = IngressSpec(config=DeploymentConfig(name="web", **options))
    called = (ClassSpec(config=ClassConfig(name="model", sync_threads=3), methods={"write": "stream"}),)
    return ApplicationSpec(
        name=name,
        target="shop:app",
        app_dir="/srv",
        route_prefix=prefix,
        default=None if prefix is None else "web",
        deployments=(ingress, *(called if model else ())),
        routes=(Route(kind="http", pattern="^/$", methods=("GET",), path="/", owner="web"),),
    )


def proxies_spec(node=HOME, target=1):
    config = DeploymentConfig(name="proxies", startup_timeout_s=60.0, graceful_shutdown_timeout_s=3.0)
    template = ProxySpec(ReplicaId(""), {}, node, config)
    return ReplicaSetSpec(proxies_of(node), "p1", target, template, apart=True, routed=False)


def replica(key, number, phase, node=None, template_hash="v1", **facts):
    id = replica_id(key, 1, number)
    location = None if node is None else Location(Address(f"unix:/{id}"), node)
    return ReplicaRecord(id, key, template_hash, phase, since=0.0, location=location, reloadable=LIVE, **facts)


def replica_set(key, *phases, node=None, **facts):
    """Replicas in these phases, of a replica set which is desired."""
    replicas = tuple(replica(key, number, phase, node) for number, phase in enumerate(phases, 1))
    spec = proxies_spec(key.node) if are_proxies(key) else replica_set_spec(key=key, target=len(phases))
    return ReplicaSet(ReplicaSetRecord(key, replicas, starts=len(phases)), **{"spec": spec, "desired": True, **facts})
