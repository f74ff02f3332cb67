"""The command line: `app-toolkit run | dev | plan | status | shutdown`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from app_toolkit.cli.addresses import check_cluster_answers
from app_toolkit.cli.dev import dev as serve_in_one_process
from app_toolkit.cli.instance import Engine, Instance
from app_toolkit.cli.plan import plan_application, plan_here, plannings_of, results
from app_toolkit.cli.run import RunOptions
from app_toolkit.cli.run import run as serve_on_ray
from app_toolkit.cli.screen import Screen, report
from app_toolkit.cli.target import Target, resolve
from app_toolkit.config.files import SUFFIXES, ConfigFile, read_file
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import InstanceOptions, Options, PlanOptions
from app_toolkit.config.project import PYPROJECT, Project, choose, read_project
from app_toolkit.config.settings import keep_priority, read_variables, say_plain_logs, show_ray_token
from app_toolkit.config.written import Said, written
from app_toolkit.errors import ConfigError

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
ServedArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="FILE[:ATTRIBUTE], MODULE[:ATTRIBUTE], or a file of applications, FILE.yaml. Without it: "
        "[tool.app_toolkit.applications] of pyproject.toml, else its [tool.fastapi] entrypoint, else main.py, app.py, "
        "api.py, or one of these in the folder app.",
    ),
]
AppDir = Annotated[
    Path | None,
    typer.Option(help="The folder that is put first on the import path.", exists=True, file_okay=False),
]


class CommandLine(Options):
    """What was said there."""

    @classmethod
    def called(cls, option: str = "") -> str:
        return "--" + option.replace("_", "-")


def _option(name: str, *flags: str, default: str = "") -> Any:
    """An option of `run`, with what its model says of it. `default` is what None stands for."""
    field = Options.model_fields[name]
    about = field.description or ""
    shown = default or (str(field.default).lower() if isinstance(field.default, bool) else field.default)
    return typer.Option(*flags, help=f"{about[:1].upper()}{about[1:]}. [default: {shown}]")


Name = Annotated[str | None, _option("name")]
RoutePrefix = Annotated[str | None, _option("route_prefix")]
NumReplicas = Annotated[
    int | None, _option("num_replicas", "--num-replicas", "-n", default="what each of them asks for")
]
RunningAddress = Annotated[str | None, typer.Option(help="The Ray cluster: HOST:PORT or auto. [default: auto]")]


class Format(StrEnum):
    json = "json"
    table = "table"
    yaml = "yaml"


@app.command()
def run(
    context: typer.Context,
    target: ServedArgument = None,
    *,
    host: Annotated[str | None, _option("host")] = None,
    port: Annotated[int | None, _option("port")] = None,
    ssl_certfile: Annotated[str | None, _option("ssl_certfile", default="HTTP")] = None,
    ssl_keyfile: Annotated[str | None, _option("ssl_keyfile", default="the certificate's file")] = None,
    forwarded_allow_ips: Annotated[str | None, _option("forwarded_allow_ips")] = None,
    proxies_per_node: Annotated[int | None, _option("proxies_per_node")] = None,
    max_connections: Annotated[int | None, _option("max_connections", default="what descriptors allow")] = None,
    keep_alive_timeout_s: Annotated[float | None, _option("keep_alive_timeout_s")] = None,
    head_timeout_s: Annotated[float | None, _option("head_timeout_s")] = None,
    access_log: Annotated[bool | None, _option("access_log")] = None,
    num_replicas: NumReplicas = None,
    address: Annotated[str | None, _option("address", default="a Ray of our own")] = None,
    name: Name = None,
    route_prefix: RoutePrefix = None,
    app_dir: AppDir = None,
) -> None:
    """Serve an app on Ray, or all of a file: a proxy, and replicas for each ingress. Ctrl-C drains them and stops."""
    project = read_project(Path.cwd())
    file = _file(context, target, project)
    chosen = _chosen(context, project, file)
    variables: Mapping[str, str] = {}
    # What is misspelt, or not there, is told before anything starts.
    if file is None:
        _resolve(target, project, app_dir)
    else:
        variables = read_variables(file.variables)
        file.check(variables)
    options = RunOptions(
        target=target,
        app_dir=app_dir,
        http=chosen.part(HTTPOptions),
        plan=chosen.part(PlanOptions),
        address=chosen.address,
        file=file,
        variables=variables,
    )
    say_plain_logs(colour=sys.stdout.isatty())
    keep_priority()
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
    if target is not None and Path(target).suffix in SUFFIXES:
        raise ConfigError(f"{target!r} is a file of applications, for `run` and `plan`")
    found = _resolve(target, read_project(Path.cwd()), app_dir)
    serve_in_one_process(found, host=host, port=port, reload=reload, reload_dirs=reload_dir or ())


@app.command()
def plan(
    context: typer.Context,
    target: ServedArgument = None,
    *,
    format: Annotated[Format, typer.Option(help="For programs or for people.")] = Format.table,
    num_replicas: NumReplicas = None,
    name: Name = None,
    route_prefix: RoutePrefix = None,
    app_dir: AppDir = None,
    application: Annotated[str | None, typer.Option(help="Of a file: this one alone. [default: all of them]")] = None,
) -> None:
    """Show how an app would be laid out, or all of a file: its ingresses, and who owns which route. Starts nothing."""
    folder = Path.cwd()
    project = read_project(folder)
    file = _file(context, target, project)
    chosen = _chosen(context, project, file)
    said: dict[str, Mapping[str, Said]] = {}
    if file is None:
        if application is not None:
            raise ConfigError(f"--application {application}: the target is one app, and no file of applications")
        options = chosen.part(PlanOptions)
        specs = [plan_here(_resolve(target, project, app_dir), options, written=format is Format.yaml)]
        if options.num_replicas is not None:
            said[options.name] = {name: {"num_replicas": options.num_replicas} for name in specs[0].ingresses}
    else:
        specs = [plan_application(file, application)] if application is not None else _planned(file)
        said = {name: each.deployments for name, each in file.applications.items()}
    if format is Format.yaml:
        instance = InstanceOptions(**{k: v for k, v in chosen.given.items() if k in InstanceOptions.model_fields})
        print(written(specs, instance, folder, said), end="", flush=True)
    elif format is Format.json:
        shown = [json.loads(spec.model_dump_json()) for spec in specs]
        print(json.dumps(shown if file is not None and application is None else shown[0], indent=2), flush=True)
    else:
        for spec in specs:
            Screen().plan(spec)


@app.command()
def status(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="All that is known, for programs.")] = False,
    address: RunningAddress = None,
) -> None:
    """Show what runs on a cluster."""
    instance = _connect(context)
    try:
        found, load = instance.status(), instance.load()
        if as_json:
            print(json.dumps({**found, "load": {name: asdict(each) for name, each in load.items()}}, indent=2))
        else:
            Screen().status(found, load)
    finally:
        instance.close()


@app.command()
def shutdown(context: typer.Context, *, address: RunningAddress = None) -> None:
    """Drain what runs on a cluster, wait for it, and remove it; the cluster itself stays."""
    instance = _connect(context)
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


def _connect(context: typer.Context) -> Instance:
    address = _chosen(context, read_project(Path.cwd())).address or "auto"
    check_cluster_answers(address)
    if address != "auto":
        show_ray_token()
    return _ray().connect(address)


def _chosen(context: typer.Context, project: Project, file: ConfigFile | None = None) -> Options:
    """Each option from the first place that has it: the command line, the environment, the file, the project, its
    default.
    """
    return choose(project, CommandLine(**_said(context)), file)


def _said(context: typer.Context) -> dict[str, Any]:
    """The options that the command line has."""
    return {
        name: value for name, value in context.params.items() if name in CommandLine.model_fields and value is not None
    }


def _file(context: typer.Context, target: str | None, project: Project) -> ConfigFile | None:
    """The file of applications that is meant; None: it is one app."""
    if target is None:
        file = project.file
    elif Path(target).suffix in SUFFIXES:
        file = read_file(Path(target))
    elif Path(target).name == PYPROJECT:
        file = read_project(Path(target).parent).file
        if file is None:
            raise ConfigError(f"{target} has no [tool.app_toolkit.applications]")
    else:
        return None
    if file is not None:
        of_one = [*(PlanOptions.model_fields.keys() & _said(context).keys())]
        of_one += ["app_dir"] if context.params.get("app_dir") is not None else []
        for name in sorted(of_one):
            raise ConfigError(
                f"{CommandLine.called(name)} is about one app; {file.document.source} says it for each of its own"
            )
    return file


def _planned(file: ConfigFile) -> list[ApplicationSpec]:
    with plannings_of(file) as plannings:
        return results(plannings, lambda: True) or []


def _resolve(target: str | None, project: Project, app_dir: Path | None) -> Target:
    return resolve(target, folder=Path.cwd(), entrypoint=project.entrypoint, app_dir=app_dir)
