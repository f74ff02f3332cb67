"""The address of the admin server, and when it creates its app."""

import socket

import httpx
import pytest
from fastapi import FastAPI

from app_toolkit.config.models import AdminOptions
from app_toolkit.errors import StartupError
from app_toolkit.operate.admin.app import create_app
from app_toolkit.operate.admin.server import AdminServer, bind
from app_toolkit.operate.aggregate import MetricsAggregate
from tests.operate.admin.instance import Instance


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_second_instance_on_a_machine_gets_another_port_unless_it_names_one() -> None:
    with bind(AdminOptions(), 0) as first:
        taken = port_of(first)
        with bind(AdminOptions(), taken) as second:
            assert port_of(second) != taken
        with pytest.raises(StartupError, match=rf"^the admin server cannot listen on port {taken} of 127\.0\.0\.1: "):
            bind(AdminOptions(admin_port=taken), 0)
    with bind(AdminOptions(), taken) as after:
        assert port_of(after) == taken


def test_host_without_an_address_is_named() -> None:
    with pytest.raises(StartupError, match=r"^admin_host = 'no-such-host.invalid' has no address: "):
        bind(AdminOptions(admin_host="no-such-host.invalid"), 0)


@pytest.mark.parametrize("has_request", [False, True])
def test_app_is_created_with_the_first_request(has_request: bool) -> None:
    instance, options = Instance(), AdminOptions(admin_port=0)
    created: list[FastAPI] = []

    def create() -> FastAPI:
        created.append(create_app(instance, MetricsAggregate(), options, None))
        return created[0]

    server = AdminServer(create, options, 0)
    url = f"http://{server.start().removeprefix('tcp:')}/api/load"
    assert not created
    if has_request:
        assert [httpx.get(url, trust_env=False).status_code for _ in range(2)] == [200, 200]
    server.stop(10.0)
    assert not server.is_running
    assert len(created) == has_request
    instance.close()
