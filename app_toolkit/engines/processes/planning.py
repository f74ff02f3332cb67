"""The planning of an app in a template, which forks the replicas of the app afterwards: it is imported once."""

import json
from collections.abc import Callable
from contextlib import suppress

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices, planning_name
from app_toolkit.engines.processes.wire import Call, PeerGone, call
from app_toolkit.errors import PlanningError
from app_toolkit.operate.client import CANCEL_POLL_S, Planning


class TemplatePlanning(Planning):
    """Plans one app in a process that the supervisor of this instance starts.

    The controller makes this process the template of the app, if its replicas need what it has imported. Otherwise the
    process ends with the planning.
    """

    def __init__(self, services: ProcessServices, app: str) -> None:
        """Start planning. `app`: its name, as of `Engine.begin_instance`."""
        self._app = app
        self._name = planning_name(app)
        self._supervisor = services.path_of(SUPERVISOR)
        call(self._supervisor, "start", "template", self._name)
        self._plan = Call(services.path_of(self._name), "plan", (app,))

    def result(self, goes_on: Callable[[], bool]) -> ApplicationSpec | None:
        while goes_on():
            try:
                self._plan.read(CANCEL_POLL_S)
            except TimeoutError:
                continue
            except PeerGone:
                why = call(self._supervisor, "ended", self._name)
                raise PlanningError(f"planning {self._app} failed: {why}") from None
            if self._plan.is_answered:
                planned: str | int = self._plan.result()
                if isinstance(planned, int):
                    raise SystemExit(planned)
                return ApplicationSpec(**json.loads(planned))
        return None

    def close(self) -> None:
        self._plan.close()
        with suppress(PeerGone):  # the instance has ended
            call(self._supervisor, "kill", self._name)
