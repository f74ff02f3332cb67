"""Which nodes have proxies, and for how long."""

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.proxies import EMPTY_S, Proxies, are_needed
from app_toolkit.types import Address, NodeId
from tests.control.specs import application

HOME, NEXT = NodeId("home"), NodeId("next")


def targets(proxies):
    return {spec.template.node: spec.target for spec in proxies.specs().values()}


def ours(**options):
    proxies = Proxies(HOME)
    proxies.move(HTTPOptions(**options))
    return proxies


def test_home_has_them_before_any_replica_runs():
    assert targets(ours(proxies_per_node=3)) == {HOME: 3}


def test_one_proxy_finds_the_port_and_the_others_wait():
    proxies = ours(port=0, proxies_per_node=3)
    proxies.follow({NEXT}, {}, 0.0)
    assert targets(proxies) == {HOME: 1}
    proxies.learn(Address("tcp:[::1]:4711"))
    assert targets(proxies) == {HOME: 3, NEXT: 3}
    assert {spec.template.options["port"] for spec in proxies.specs().values()} == {4711}


def test_the_port_that_was_found_makes_no_new_revision():
    proxies = ours(port=0)
    [before] = proxies.specs().values()
    proxies.learn(Address("tcp:127.0.0.1:4711"))
    [after] = proxies.specs().values()
    assert before.template_hash == after.template_hash


def test_node_without_replicas_keeps_its_proxies_and_gets_no_new_ones():
    proxies = ours(proxies_per_node=3)
    proxies.follow({NEXT}, {}, 0.0)
    proxies.follow(set(), {NEXT: 3}, 1.0)
    assert (targets(proxies)[NEXT], proxies.due) == (3, 1.0 + EMPTY_S)
    proxies.follow(set(), {NEXT: 2}, 2.0)
    assert (targets(proxies)[NEXT], proxies.due) == (2, 1.0 + EMPTY_S)
    proxies.follow({NEXT}, {NEXT: 2}, 3.0)
    assert (targets(proxies)[NEXT], proxies.due) == (3, None)
    proxies.follow(set(), {NEXT: 3}, 4.0)
    proxies.follow(set(), {NEXT: 3}, 4.0 + EMPTY_S)
    assert targets(proxies) == {HOME: 3}
    assert not proxies.spread


def test_a_node_whose_proxies_went_with_its_replicas_is_forgotten_at_once():
    proxies = ours()
    proxies.follow({NEXT}, {NEXT: 1}, 0.0)
    assert proxies.spread
    proxies.follow(set(), {}, 1.0)
    assert (targets(proxies), proxies.due) == ({HOME: 1}, None)


def test_found_proxies_stay_until_replicas_have_had_time_to_report():
    proxies = ours()
    proxies.add_recovered(NEXT, 10.0)
    proxies.follow(set(), {NEXT: 1}, 10.0)
    assert targets(proxies) == {HOME: 1, NEXT: 1}
    proxies.follow(set(), {NEXT: 1}, 10.0 + EMPTY_S)
    assert targets(proxies) == {HOME: 1}


def test_the_replicas_of_ingresses_that_always_run_replace_proxies():
    always, sleeping = application(), application("docs", autoscaling_config={"min_replicas": 0, "max_replicas": 2})
    assert not are_needed("replica", [always])
    assert are_needed("replica", [always, sleeping]), "a request to one without replicas needs a process"
    assert are_needed("replica", []), "clients get 404"
    assert are_needed("proxy", [always])
