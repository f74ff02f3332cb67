"""The command line: `app-toolkit run | dev | plan | status | shutdown`."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from app_toolkit.cli.addresses import check_cluster_answers
from app_toolkit.cli.dev import dev as serve_in_one_process
from app_toolkit.cli.instance import Engine, Instance
from app_toolkit.cli.plan import PlanOptions, plan_here
from app_toolkit.cli.run import RunOptions
from app_toolkit.cli.run import run as serve_on_ray
from app_toolkit.cli.screen import Screen, report
from app_toolkit.cli.target import Target, resolve
from app_toolkit.config.models import HTTPOptions
from app_toolkit.config.project import Project, read_project
from app_toolkit.config.settings import Settings, read_settings, say_plain_logs, show_ray_token
from app_toolkit.errors import ConfigError

T = TypeVar("T")

app = typer.Typer(
    name="app-toolkit",
    help="Ordinary FastAPI routers: one process while you develop, replica actors on Ray when you serve.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="FILE[:ATTRIBUTE] or MODULE[:ATTRIBUTE]. Without it: [tool.fastapi] entrypoint of "
        "pyproject.toml, else main.py, app.py, api.py, or one of these in the folder app.",
    ),
]
AppDir = Annotated[
    Path | None,
    typer.Option(help="The folder that is put first on the import path.", exists=True, file_okay=False),
]
Name = Annotated[str | None, typer.Option(help="The application's name. [default: default]")]
RoutePrefix = Annotated[str | None, typer.Option(help="The path under which the application is served. [default: /]")]
NumReplicas = Annotated[
    int | None,
    typer.Option("--num-replicas", "-n", help="Replicas of every ingress. [default: what each of them asks for]"),
]
Address = Annotated[
    str | None,
    typer.Option(help="The Ray cluster to join: HOST:PORT or auto. [default: a Ray of our own]"),
]
RunningAddress = Annotated[str | None, typer.Option(help="The Ray cluster: HOST:PORT or auto. [default: auto]")]


class Format(StrEnum):
    json = "json"
    table = "table"


@app.command()
def run(
    target: TargetArgument = None,
    *,
    host: Annotated[str | None, typer.Option(help="Where the proxy listens. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="0: any free port. [default: 8000]", min=0, max=65_535)] = None,
    num_replicas: NumReplicas = None,
    address: Address = None,
    name: Name = None,
    route_prefix: RoutePrefix = None,
    app_dir: AppDir = None,
) -> None:
    """Serve an app on Ray: a proxy, and replicas for each of its ingresses. Ctrl-C drains them and stops."""
    project, settings = _configuration()
    _resolve(target, project, app_dir)  # a misspelt file is told before anything starts
    defaults = project.defaults
    http = HTTPOptions()
    options = RunOptions(
        target=target,
        app_dir=app_dir,
        http=HTTPOptions(
            host=_first(host, settings.host, defaults.host, http.host),
            port=_first(port, settings.port, defaults.port, http.port),
        ),
        plan=_plan_options(project, name, route_prefix, num_replicas),
        address=_address(address, project, settings),
    )
    say_plain_logs(colour=sys.stdout.isatty())
    if options.address not in (None, "auto"):
        show_ray_token()
    serve_on_ray(options, Screen(), _ray)


@app.command()
def dev(
    target: TargetArgument = None,
    *,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=0, max=65_535)] = 8000,
    reload: Annotated[bool, typer.Option(help="Restart the process when a file changes.")] = True,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Watch this folder; may be given more than once. [default: the current folder]"),
    ] = None,
    app_dir: AppDir = None,
) -> None:
    """Serve an app in one process, without Ray, as a developer wants it."""
    found = _resolve(target, read_project(Path.cwd()), app_dir)
    serve_in_one_process(found, host=host, port=port, reload=reload, reload_dirs=reload_dir or ())


@app.command()
def plan(
    target: TargetArgument = None,
    *,
    format: Annotated[Format, typer.Option(help="For programs or for people.")] = Format.table,
    num_replicas: NumReplicas = None,
    name: Name = None,
    route_prefix: RoutePrefix = None,
    app_dir: AppDir = None,
) -> None:
    """Show how an app would be laid out: its ingresses, and who owns which route. Starts nothing."""
    project, _ = _configuration()
    found = _resolve(target, project, app_dir)
    spec = plan_here(found, _plan_options(project, name, route_prefix, num_replicas))
    if format is Format.json:
        print(spec.model_dump_json(indent=2), flush=True)
    else:
        Screen().plan(spec)


@app.command()
def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="All that is known, for programs.")] = False,
    address: RunningAddress = None,
) -> None:
    """Show what runs on a cluster."""
    instance = _connect(address)
    try:
        found = instance.status()
        if as_json:
            print(json.dumps(found, indent=2))
        else:
            Screen().status(found)
    finally:
        instance.close()


@app.command()
def shutdown(*, address: RunningAddress = None) -> None:
    """Drain what runs on a cluster, wait for it, and remove it; the cluster itself stays."""
    instance = _connect(address)
    try:
        with Screen().waiting("Draining."):
            instance.shutdown()
    finally:
        instance.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command `app-toolkit`. Ends the process: with 0, or with 2 for a mistake that its user can mend."""
    try:
        app(None if arguments is None else list(arguments))
    except ConfigError as error:
        report(error)
        sys.exit(error.exit_code)


def _ray() -> Engine:
    # Imported here because `plan` and `dev` have no use for Ray, and `run` has something to do meanwhile.
    from app_toolkit.engines.ray import instance

    return instance.Instance


def _connect(option: str | None) -> Instance:
    project, settings = _configuration()
    address = _address(option, project, settings) or "auto"
    check_cluster_answers(address)
    if address != "auto":
        show_ray_token()
    return _ray().connect(address)


def _configuration() -> tuple[Project, Settings]:
    return read_project(Path.cwd()), read_settings()


def _resolve(target: str | None, project: Project, app_dir: Path | None) -> Target:
    return resolve(target, folder=Path.cwd(), entrypoint=project.entrypoint, app_dir=app_dir)


def _plan_options(
    project: Project, name: str | None, route_prefix: str | None, num_replicas: int | None
) -> PlanOptions:
    defaults, usual = project.defaults, PlanOptions()
    return PlanOptions(
        name=_first(name, defaults.name, usual.name),
        route_prefix=_first(route_prefix, defaults.route_prefix, usual.route_prefix),
        num_replicas=defaults.num_replicas if num_replicas is None else num_replicas,
    )


def _address(option: str | None, project: Project, settings: Settings) -> str | None:
    addresses = (option, settings.address, project.defaults.address)
    return next((address for address in addresses if address is not None), None)


def _first(*values: T | None) -> T:
    return next(value for value in values if value is not None)
