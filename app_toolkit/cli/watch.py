"""`status --watch`: what runs, again whenever it changes."""

from collections.abc import Callable

from app_toolkit.cli.screen import Screen
from app_toolkit.client.client import Client
from app_toolkit.client.interrupts import Interrupts
from app_toolkit.core.status import InstanceStatus
from app_toolkit.errors import InstanceEnded


def watch(client: Client, screen: Screen, show: Callable[[InstanceStatus], None]) -> None:
    """Until a Ctrl-C or SIGTERM, or until the instance is shut down."""
    shown = -1
    with Interrupts() as interrupts:
        try:
            for status in client.watch(interrupts.nobody_asked):
                if status.change > shown:
                    screen.begin_anew()
                    show(status)
                shown = status.change
        except InstanceEnded as error:
            screen.say(f"Nothing is left to see: {error}.")
