"""The address of the admin server."""

import socket

import pytest

from app_toolkit.admin.server import bind
from app_toolkit.config.models import AdminOptions
from app_toolkit.errors import StartupError


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
