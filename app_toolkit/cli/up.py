"""The commands `up` and `down`: start an instance in the background, and end it."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from threading import Thread

from app_toolkit.cli.plan import results
from app_toolkit.cli.run import RunOptions, manifest_of, plannings
from app_toolkit.cli.screen import Screen
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.control.operations import Listen
from app_toolkit.control.status import InstanceStatus
from app_toolkit.errors import InstanceEnded
from app_toolkit.operate import launch
from app_toolkit.operate.client import Client, Engine, Planning
from app_toolkit.operate.progress import is_serving, rows, serving_at

INTERRUPTED = 130
"""The exit code of a program that a Ctrl-C has ended."""


def up(options: RunOptions, screen: Screen, engine: Engine) -> None:
    """Start an instance in the background, deploy the applications, and return once they serve.

    Without a target and a file, the instance has no application. Raises `ConfigError` if one runs already, and the
    errors because of which an application does not serve. After an error or a Ctrl-C, nothing is left.
    """
    engine.check_background()
    launch.check(engine, None, options.http)
    is_empty = options.target is None and options.file is None
    planned: Iterable[Planning]
    with nullcontext(()) if is_empty else plannings(options, options.command_line) as planned:
        client = engine.start_in_background(options.http)
        try:
            with screen.working("Importing the app"):
                specs = results(planned, lambda: True) or []
            manifest = manifest_of(options, specs, screen)
            launch.warn_of_options(engine, manifest.specs)
            client.execute(Listen(options.http))
            try:
                status = _serve(client, manifest, screen)
            except Exception:
                client.shutdown()  # replicas that have started end in their own way
                raise
            _report(status, manifest.specs, client.detach(), screen)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        finally:
            client.close()


def _serve(client: Client, manifest: launch.Manifest, screen: Screen) -> InstanceStatus:
    """Deploy, and return the status once everything serves."""
    revisions = launch.apply(client, [*manifest.logs(()), *manifest.commands()])
    with screen.progress() as show:
        client.wait_until_serving(revisions, show=show)
    return next(status for status in client.watch() if status.url is not None and is_serving(status, [*revisions]))


def _report(status: InstanceStatus, specs: Iterable[ApplicationSpec], output: str, screen: Screen) -> None:
    served = [sentence for spec in specs for sentence in serving_at(status, spec)]
    for sentence in served or [f"The instance has no application yet, and listens at {status.url}"]:
        screen.say(sentence)
    if status.admin_url is not None:
        screen.say(f"Dashboard at {status.admin_url}")
    screen.say(f"{output} `app-toolkit down` drains and ends it.")


def down(engine: Engine, address: str | None, screen: Screen) -> None:
    """Shut an instance down, show the progress, and return once its processes have ended.

    Raises `ConfigError` if no instance runs at the address.
    """
    with engine.connect(address) as client:
        ending = Thread(target=client.shutdown, name="app-toolkit down")
        screen.say("Draining.")
        ending.start()
        with screen.progress() as show, suppress(InstanceEnded):
            for status in client.watch():
                show(rows(status, [application.name for application in status.applications]))
        ending.join()
