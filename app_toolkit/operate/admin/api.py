"""The admin API: a route for each operation and query, and for what a client asks the processes."""

import inspect
import json
import logging
import threading
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Query as QueryField

from app_toolkit.config.document import from_yaml
from app_toolkit.control.command import Command, Query
from app_toolkit.control.queries import Shutdown
from app_toolkit.control.status import Load
from app_toolkit.observability.log_query import LogPage
from app_toolkit.observability.slowest import MOST_SHOWN, SlowRequest
from app_toolkit.operate import configuration
from app_toolkit.operate.client import Client
from app_toolkit.operate.encoding import (
    LOADS,
    LOGS,
    SLOW,
    LogsRequest,
    path_of,
    result_adapter_of,
    result_type,
)
from app_toolkit.operate.instance import api_commands

logger = logging.getLogger("app_toolkit.admin")

JSON, YAML = "application/json", "application/yaml"
"""The media types of a configuration."""


def create_router(client: Client) -> APIRouter:
    """Return the routes, which perform the commands by this client."""
    router = APIRouter()
    for command in api_commands():
        _add(router, client, command)

    @router.get("/api/load", response_model=dict[str, Load], summary="Load")
    def get_load() -> Response:
        """Return where requests wait or run now, by `APPLICATION/DEPLOYMENT`."""
        return _json(LOADS.dump_json(client.load()))

    @router.post("/api/logs", response_model=LogPage, summary="Logs")
    def read_logs(request: LogsRequest) -> Response:
        """Return log records of all nodes. `after`: the positions of the page before, for what was written since."""
        return _json(LOGS.dump_json(client.logs(request.query, request.last, request.after)))

    @router.get("/api/slow", response_model=list[SlowRequest], summary="Slow")
    def get_slow(name: str | None = None, last: Annotated[int, QueryField(ge=1, le=MOST_SHOWN)] = 20) -> Response:
        """Return the slowest requests of the last minutes. `name`: `APPLICATION`, or `APPLICATION/DEPLOYMENT`."""
        return _json(SLOW.dump_json(client.slow(name, last)))

    @router.get("/api/config", responses={200: {"content": {JSON: {}, YAML: {}}}}, summary="Configuration")
    def get_configuration(request: Request) -> Response:
        """Return the configuration of the instance as an application file, in JSON, or in YAML if `Accept` names it.

        References to environment variables are returned as written. `***` stands for each secret that is plain text.
        """
        text = configuration.write(client)
        if YAML in request.headers.get("accept", ""):
            return Response(text, media_type=YAML)
        return _json(json.dumps(from_yaml(text, "configuration").data).encode())

    return router


def _add(router: APIRouter, client: Client, command: type[Command[Any]]) -> None:
    """Add the route of a command. A GET has its fields in the query string, and a POST in the body."""

    results = result_adapter_of(command)

    def perform(command: Any) -> Response:
        if isinstance(command, Shutdown):
            # The shutdown ends this process, too, so it would never return.
            threading.Thread(target=_shut_down, args=(client,), name="app-toolkit shutdown", daemon=True).start()
            return Response(status_code=202)
        return _json(results.dump_json(client.change(command)))

    def query(**values: Any) -> Response:
        return perform(command(**values))

    with_query = issubclass(command, Query)
    # FastAPI reads the fields from the signature, as it does for a function that is written by hand.
    parameters = [Parameter("command", Parameter.KEYWORD_ONLY, annotation=command)]
    if with_query:
        parameters = list(inspect.signature(command).parameters.values())
    endpoint = query if with_query else perform
    vars(endpoint)["__signature__"] = Signature(parameters)
    router.add_api_route(
        path_of(command),
        endpoint,
        methods=["GET" if with_query else "POST"],
        name=command.__name__,
        summary=command.__name__,
        description=inspect.cleandoc(command.__doc__ or ""),
        response_model=result_type(command),
        status_code=202 if command is Shutdown else 200,
    )


def _shut_down(client: Client) -> None:
    try:
        client.shutdown()
    except Exception:
        logger.exception("the shutdown that the admin API has ordered failed")


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")
