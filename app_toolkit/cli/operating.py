"""The commands that send one command to an instance, with what the command line names.

The class of a command has the help: its docstring, and the `Argument` of each field. `Commands` in
`operate/instance.py` lists the classes.
"""

import dataclasses
import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeAlias, get_args

import typer

from app_toolkit.config.settings import ADMIN_TOKEN
from app_toolkit.control.command import Argument, Command
from app_toolkit.operate.client import WAIT_S
from app_toolkit.operate.instance import commands

Wait = Annotated[
    bool, typer.Option("--wait", help="Show the progress until every replica is up, or the update has failed.")
]
WaitUnlessRefused = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Show the progress until every replica is replaced.")
]
WaitTimeoutS = Annotated[
    float, typer.Option(help="How long --wait waits, in seconds. The operation itself continues after that.", min=0)
]
RunningAddress = Annotated[
    str | None, typer.Option(help="The instance: processes-PID, HOST:PORT of its Ray cluster, or auto. [default: auto]")
]
AdminURL = Annotated[
    str | None,
    typer.Option(
        help="The admin API of the instance, http://HOST:PORT, instead of its address. The token is in "
        f"{ADMIN_TOKEN}. [default: none]"
    ),
]

Send: TypeAlias = Callable[[typer.Context, Command[Any]], None]


def summary(command: type[Command[Any]]) -> str:
    """Return the help of a command: the first paragraph of its docstring, up to the result."""
    return inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0].partition("The result ")[0].rstrip()


def add_commands(app: typer.Typer, send: Send) -> None:
    """Add a command for each one of an instance whose fields have an `Argument`.

    `send`: sends the command, and waits for its effect if the context has the option `wait`.
    """
    for name, kind in commands().items():
        if parameters := _parameters(kind):
            app.command(name.replace("_", "-"), help=summary(kind))(_function(kind, parameters, send))


def _function(kind: type[Command[Any]], parameters: list[Parameter], send: Send) -> Callable[..., None]:
    def function(context: typer.Context, **values: Any) -> None:
        send(context, kind(**{parameter.name: values[parameter.name] for parameter in parameters}))

    waiting = []
    if kind.started is not Command.started:
        waiting = [
            _option("wait", WaitUnlessRefused if kind.waits else Wait, kind.waits),
            _option("wait_timeout_s", WaitTimeoutS, WAIT_S),
        ]
    # Typer reads the parameters from the signature, as it does for a function that is written by hand.
    vars(function)["__signature__"] = Signature(
        [
            Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *sorted(parameters, key=lambda parameter: parameter.kind),
            *waiting,
            _option("address", RunningAddress, None),
            _option("admin_url", AdminURL, None),
        ]
    )
    return function


def _parameters(kind: Any) -> list[Parameter]:
    """Return the parameters of a command: one for each field of its class that has an `Argument`."""
    parameters = []
    for field in dataclasses.fields(kind):
        for note in getattr(field.type, "__metadata__", ()):
            if isinstance(note, Argument):
                declared = (typer.Option if field.kw_only else typer.Argument)(help=note.help, metavar=note.metavar)
                parameters.append(
                    Parameter(
                        field.name,
                        Parameter.KEYWORD_ONLY if field.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
                        default=Parameter.empty if field.default is dataclasses.MISSING else field.default,
                        annotation=Annotated[get_args(field.type)[0], declared],
                    )
                )
    return parameters


def _option(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
