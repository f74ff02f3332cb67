"""`status --watch`: what runs, again whenever it changes."""

from collections.abc import Callable

from app_toolkit.cli.instance import LOOK_S, Instance, Status
from app_toolkit.cli.run import Interrupts
from app_toolkit.cli.screen import Screen
from app_toolkit.errors import InstanceEnded


def watch(instance: Instance, screen: Screen, show: Callable[[Status], None]) -> None:
    """Until a Ctrl-C or SIGTERM, or until the instance is shut down."""
    after = -1  # the first look waits for nothing
    with Interrupts() as interrupts:
        while interrupts.nobody_asked():
            try:
                number, status = instance.progress(after, LOOK_S)
                if number > after:
                    screen.begin_anew()
                    show(status)
            except InstanceEnded as error:
                screen.say(f"Nothing is left to see: {error}.")
                return
            after = number
