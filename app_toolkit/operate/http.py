"""The client of an instance over its admin API, for machines without a connection to its cluster."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter

from app_toolkit import errors
from app_toolkit.config import settings
from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.command import Command, Query
from app_toolkit.control.queries import LONGEST_WAIT_S, GetStatus, Shutdown
from app_toolkit.control.status import Load
from app_toolkit.errors import ConfigError, InstanceEnded, ToolkitError
from app_toolkit.observability.log_query import MOST_RECORDS, LogPage, LogQuery
from app_toolkit.observability.slowest import SlowRequest
from app_toolkit.operate.admin.security import is_loopback
from app_toolkit.operate.client import Client, Driver, Engine
from app_toolkit.operate.encoding import (
    LOADS,
    LOGS,
    LOGS_REQUEST,
    SLOW,
    LogsRequest,
    adapter_of,
    path_of,
    result_adapter_of,
)

R = TypeVar("R")

CONNECT_S = 10.0
"""Seconds that a connection to the admin API may take."""

ANSWER_S = LONGEST_WAIT_S + 30.0
"""Seconds that the admin API may take to answer."""

BACK_S = 15.0
"""Seconds for which the admin server may be gone, because it was lost and is replaced."""

RETRY_INTERVAL_S = 0.5

JSON = {"content-type": "application/json"}

ERRORS: Mapping[str, type[ToolkitError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, ToolkitError) and kind.__init__ is ToolkitError.__init__
}
"""The errors that consist of a message, by their names."""


class HTTPClient(Client):
    """A connection to the admin API at a URL, `http://HOST:PORT`.

    A command that was sent is not sent again, except for queries. Raises `ConfigError` if the URL is invalid.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        """`token`: that of the admin API; None: it needs none."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"admin_url = {url!r}: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"admin_url = {url!r}: it should be http://HOST:PORT or https://HOST:PORT")
        if parsed.userinfo:
            raise ConfigError("admin_url must not have a user or a password: the token is in APP_TOOLKIT_ADMIN_TOKEN")
        self.url = url.rstrip("/")
        self.patience_s = BACK_S
        """Seconds for which a request is sent again if the admin server is gone."""
        self._was_connected = False
        self._http = httpx.Client(
            base_url=self.url,
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            verify=parsed.scheme == "https",  # to read the certificates of all authorities takes 0.1 s
            follow_redirects=False,  # they could take the token to another host
            trust_env=not is_loopback(parsed.host),  # a proxy of the environment would get the token, and not find us
        )

    def execute(self, command: Command[R]) -> R:
        kind = type(command)
        results: TypeAdapter[R] = result_adapter_of(kind)
        if isinstance(command, Query):
            values = adapter_of(kind).dump_python(command, mode="json")
            params = {name: value for name, value in values.items() if value is not None}
            return results.validate_json(self._ask("GET", path_of(kind), params=params))
        content = adapter_of(kind).dump_json(command)
        return results.validate_json(self._ask("POST", path_of(kind), content=content, headers=JSON))

    def load(self) -> Mapping[str, Load]:
        return LOADS.validate_json(self._ask("GET", "/api/load"))

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        content = LOGS_REQUEST.dump_json(LogsRequest(query, last, after))
        return LOGS.validate_json(self._ask("POST", "/api/logs", content=content, headers=JSON))

    def slow(self, name: str | None = None, last: int = 20) -> Sequence[SlowRequest]:
        params = {"last": last} if name is None else {"last": last, "name": name}
        return SLOW.validate_json(self._ask("GET", "/api/slow", params=params))

    def acquire_lease(self) -> None:
        """Raise `ConfigError`: only a process that is connected to the cluster can hold applications."""
        raise ConfigError(
            "applications of `run` need a connection to the instance itself; deploy them with `deploy` instead"
        )

    def leave(self) -> None:
        self.close()

    def shutdown(self) -> None:
        with suppress(InstanceEnded):
            self._ask("POST", path_of(Shutdown), content=b"{}", headers=JSON)
            self.patience_s = 0.0
            while True:
                self.execute(GetStatus())
                time.sleep(RETRY_INTERVAL_S)
        self.close()

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, **request: Any) -> bytes:
        """Send a request, and return the content of the response.

        Raises the error that the admin API reports, `InstanceEnded` if it answers no more, and `ConfigError` if it has
        never answered.
        """
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                response = self._http.request(method, path, **request)
                break
            except httpx.TransportError as error:
                # The next admin server serves at the same address. A query may have been answered twice.
                again = method == "GET" or isinstance(error, httpx.ConnectError)
                if not self._was_connected:
                    raise ConfigError(f"no admin API answers at {self.url}: {error}") from None
                if again and time.monotonic() < deadline:
                    time.sleep(RETRY_INTERVAL_S)
                    continue
                raise InstanceEnded(f"the admin API at {self.url} answers no more: {error}") from None
        self._was_connected = True
        if response.is_success:
            return response.content
        raise _error_of(response)


def _error_of(response: httpx.Response) -> ToolkitError:
    """Return the error that a response of the admin API reports."""
    try:
        report = response.json()
        error = ERRORS.get(report["error"], ConfigError)(report["detail"])
        notes = list(map(str, report["notes"]))
    except (ValueError, KeyError, TypeError):
        return ToolkitError(f"{response.url} answered with status {response.status_code}, and not as an admin API")
    for note in notes:
        error.add_note(note)
    return error


class HTTPEngine(Engine):
    """Connects to instances over their admin API, at URLs instead of addresses of clusters. Starts none."""

    capabilities = frozenset({"edge"})  # the instance refuses it otherwise

    def check(self, address: str) -> None:
        self.connect(address).close()

    def preload(self) -> None:
        """Do nothing."""

    def is_joined(self) -> bool:
        return False

    def start(
        self,
        *,
        address: str | None,
        num_cpus: float | None = None,
        with_lease: bool = True,
        http: HTTPOptions | None = None,
    ) -> Client:
        return self.connect(address)

    def find(self, address: str | None) -> Client | None:
        return self.connect(address)

    def connect(self, address: str | None) -> Client:
        assert address is not None
        client = HTTPClient(address, settings.admin_token())
        client.execute(GetStatus())
        return client

    def drive(self, client: Client) -> Driver:
        raise ConfigError("handles need a connection to the instance itself; its admin API is none")
