"""The desired state of the admin server: whether the instance has one, with which options, and at which port."""

from app_toolkit.config.models import AdminOptions, HTTPOptions
from app_toolkit.types import Address

PORT = 8_001
"""The port that the admin server prefers if no option names one."""

START_S = 10.0
"""Seconds after the first application was applied until the admin server starts, even if no application is up."""


class Admin:
    """The desired state of the admin server, which runs in the process of the controller (`operate/admin_host.py`).

    It starts once an application and a proxy are up, so that it does not delay them, or `START_S` seconds after the
    first application was applied. From then on, it runs until the instance has shut down.
    """

    def __init__(self) -> None:
        self.port = 0
        """The port that the last server has chosen; 0: none has."""
        self.url: str | None = None
        """The URL of the server; None: it does not run."""
        self.failure: str | None = None
        """Why the server could not start; None: it has not failed."""
        self._options = AdminOptions()
        self._starts_at: float | None = None
        self._is_desired = False

    def move(self, http: HTTPOptions) -> None:
        """Set the options. If those of the admin server have changed, it chooses its port anew."""
        options = AdminOptions(**http.model_dump(include=set(AdminOptions.model_fields)))
        if options != self._options:
            self._options, self.port = options, 0

    def learn(self, address: Address | None, failure: str | None) -> None:
        """Store the address of a server that has started, or why it has not. The next one prefers the same port."""
        self.failure = failure
        if address is None:
            self.url = None
        else:
            self.url = f"http://{address.partition(':')[2]}"
            self.port = int(address.rpartition(":")[2])

    def start_by(self, at: float) -> None:
        """Let the admin server start at this time, or earlier if it is to start earlier already."""
        self._starts_at = at if self._starts_at is None else min(self._starts_at, at)

    def is_newly_desired(self, now: float) -> bool:
        """Return whether the admin server has become desired since the last call."""
        if self.due is None or now < self.due:
            return False
        self._is_desired = True
        return True

    @property
    def due(self) -> float | None:
        """When the admin server becomes desired; None: it is, or the time is not known."""
        return None if self._is_desired else self._starts_at

    @property
    def is_off(self) -> bool:
        """Whether the options switch the admin server off."""
        return not self._options.admin

    @property
    def desired(self) -> AdminOptions | None:
        """The options with which the server is to run; None: it is not to run."""
        return self._options if self._is_desired and not self.is_off else None

    @property
    def preferred_port(self) -> int:
        """The port to listen on if the options name none, and it is free; 0: any free port."""
        return self.port or (PORT if self._options.admin_port is None else self._options.admin_port)
