"""Chooses the live revision of an application that serves a request, if several can."""

from collections.abc import Callable, Sequence

from app_toolkit.config.affinity import KeySource
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.targets import Target, choose
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.ingress_router import IngressRouter
from app_toolkit.exchange.request import value_at


def choose_revision(
    exchange: Exchange,
    able: Sequence[Target],
    routers: dict[ReplicaSetKey, IngressRouter],
    tag_source: KeySource | None,
    draw: Callable[[], float],
) -> Target:
    """Return the live revision that serves the request.

    A tag decides first, then a session that exists, then a key, and then the shares.

    Parameters:
        exchange: The exchange of the request. Its `preference` is that of the last revision for which it was computed.
        able: The live revisions that can serve it.
        routers: The routers of the ingresses.
        tag_source: Where requests name the tag of a live revision. None: nowhere.
        draw: Returns a random number, at least 0 and below 1.
    """
    request = exchange.request
    tag = None if tag_source is None else value_at(tag_source, request)
    if tag is not None and (tagged := next((target for target in able if target.tag == tag), None)):
        return tagged
    keys = [] if request.shard_key is None else [request.shard_key]
    for target in able:
        exchange.place(target.replica_set)
        if target.weight and routers[target.replica_set].has_session(exchange.preference):
            return target
        if exchange.preference is not None and exchange.preference.key:
            keys.append(exchange.preference.key)
    return choose(able, keys[0] if keys else None, draw)
