"""The command line, `app-toolkit`. `cli/operating.py` adds the commands that only send one to an instance."""

import inspect
import json
import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from enum import StrEnum
from importlib.metadata import version
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_args

import typer
import typer.core

from app_toolkit.cli.connecting import connecting
from app_toolkit.cli.deploy import DeployOptions
from app_toolkit.cli.deploy import deploy as deploy_on_cluster
from app_toolkit.cli.history import HistoryScreen
from app_toolkit.cli.keys import Action, changed_keys
from app_toolkit.cli.new import create_project
from app_toolkit.cli.operating import AdminURL, RunningAddress, Wait, WaitTimeoutS, add_commands, summary
from app_toolkit.cli.plan import plan_application, plan_here, plannings_of, reserved_stdout, results
from app_toolkit.cli.run import RunOptions
from app_toolkit.cli.run import run as serve_on_cluster
from app_toolkit.cli.screen import Screen, report
from app_toolkit.cli.target import Target, resolve
from app_toolkit.cli.up import down as end_background
from app_toolkit.cli.up import up as start_background
from app_toolkit.config.fields import description, nearest
from app_toolkit.config.files import SUFFIXES, ConfigFile, read_file
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import InstanceOptions, Options, PlanOptions, StartOptions, TrafficOptions
from app_toolkit.config.project import PYPROJECT, Project, named_proxy_options, read_project, resolve_options
from app_toolkit.config.render import Given, render
from app_toolkit.config.settings import only_at_start, read_variables, set_start_options
from app_toolkit.contract.identity import parts_of
from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.canary_analysis import EVERY, GUARDS, MIN_REQUESTS, STEPS, read_steps
from app_toolkit.control.command import Command
from app_toolkit.control.operations import Delete
from app_toolkit.control.queries import GetHistory, Shutdown
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, mirrored_to
from app_toolkit.control.weights import SetSplit, SetTraffic
from app_toolkit.declare.planning import about_data, shared_logs, stream_log_warnings
from app_toolkit.engines.select import engine_of_run
from app_toolkit.errors import ConfigError, FileError, InstanceEnded, ToolkitError
from app_toolkit.host.interrupts import Interrupts
from app_toolkit.instance import reach
from app_toolkit.observability.event_log import KEPT
from app_toolkit.observability.log_query import MOST_RECORDS, Level, LogQuery
from app_toolkit.observability.logs import handle_uvicorn_loggers
from app_toolkit.observability.slowest import MOST_SHOWN
from app_toolkit.operate import configuration
from app_toolkit.operate.client import WAIT_S, Client, Engine
from app_toolkit.operate.instance import Instance
from app_toolkit.userapp.ending import adopt_orphans, bounded_end

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")

PLANNED_S = 1.0
"""Seconds that the process of a plan may take for its end. The threads of the app have no request to finish."""


app = typer.Typer(
    name="app-toolkit",
    help="Serve ordinary FastAPI routers: in one process while you develop, in replicas in production.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ServedArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="The app, as FILE[:ATTRIBUTE] or MODULE[:ATTRIBUTE], or an application file, FILE.yaml. [default: the "
        "applications in pyproject.toml, its FastAPI entrypoint, or main.py, app.py or api.py here or in app/]",
    ),
]
AppDir = Annotated[
    Path | None,
    typer.Option(help="Put this folder first on the import path.", exists=True, file_okay=False),
]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"app-toolkit {version('app-toolkit')}")
        raise typer.Exit


@app.callback()
def every(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


class CommandLine(Options):
    """The options that are set on the command line."""

    @classmethod
    def display_name(cls, option: str = "") -> str:
        return "--" + option.replace("_", "-")


def _option(name: str) -> Any:
    """Return the type of a command line option. `ServingCommand` adds its help."""
    field = Options.model_fields[name]
    kinds = get_args(field.annotation) or (field.annotation,)
    kind: Any = next((number_type for number_type in (int, float) if number_type in kinds), str)
    flags = [CommandLine.display_name(name), *(["-n"] if name == "num_replicas" else [])]
    if field.annotation is bool:
        kind, flags = bool, [f"{flags[0]}/{CommandLine.display_name(f'no_{name}')}"]
    return Annotated[kind | None, typer.Option(*flags, metavar=_notes(name).get("metavar"))]


def _notes(name: str) -> Mapping[str, Any]:
    """Return what the model notes of an option: `none`, the meaning of the default None, and `metavar`."""
    notes = Options.model_fields[name].json_schema_extra
    return notes if isinstance(notes, dict) else {}


def _help(name: str) -> str:
    """Return the help of a command line option, from the model."""
    default, about = Options.model_fields[name].default, description(Options, name)
    shown = _notes(name).get("none") or (str(default).lower() if isinstance(default, bool) else default)
    return f"{about[:1].upper()}{about[1:]}. [default: {shown}]"


class ServingCommand(typer.core.TyperCommand):
    """A command that takes options of the model. Only its help reads their descriptions, because that takes long."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            name = parameter.name
            if (
                isinstance(parameter, typer.core.TyperOption)
                and parameter.help is None
                and name in Options.model_fields
            ):
                parameter.help = _help(name)
        super().format_help(ctx, formatter)


OPTIONS: dict[str, Any] = {
    **{name: _option(name) for name in Options.model_fields},
    "no_access_log": Annotated[bool, typer.Option("--no-access-log", help="The same as `--access-log false`.")],
}
PLAN_OPTIONS = tuple(PlanOptions.model_fields)
SERVE_OPTIONS = (*PLAN_OPTIONS, *InstanceOptions.model_fields, "no_access_log")
BACKGROUND_OPTIONS = tuple(name for name in StartOptions.model_fields if name != "log_file")


def takes(*names: str, **types: Any) -> Callable[[F], F]:
    """Add options to a command, before `--app-dir`. All commands share them, so a command reads them from its context.

    `types`: types of options that differ in this command.
    """

    def decorate(command: F) -> F:
        signature = inspect.signature(command)
        declared = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        at = [parameter.name for parameter in declared].index("app_dir")
        annotations = {name: {**OPTIONS, **types}[name] for name in names}
        options = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotations[name]) for name in names
        ]
        vars(command)["__signature__"] = signature.replace(parameters=[*declared[:at], *options, *declared[at:]])
        return command

    return decorate


FileApplication = Annotated[
    str | None, typer.Option("--application", help="Use only this application of the file. [default: all of them]")
]
ApplicationArgument = Annotated[str, typer.Argument(metavar="APP", help="The name of the application.")]


class Format(StrEnum):
    json = "json"
    table = "table"
    yaml = "yaml"


@app.command(cls=ServingCommand)
@takes(*SERVE_OPTIONS, *StartOptions.model_fields, "engine")
def run(
    context: typer.Context,
    target: ServedArgument = None,
    *,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Update the replicas when a Python file changes. It needs --engine processes."),
    ] = False,
    app_dir: AppDir = None,
    **_: Any,
) -> None:
    """Serve an app, or all apps of a file, with replicas. Press Ctrl-C to drain and stop."""
    chosen, what = _served(context, target, app_dir)
    options = RunOptions(**what, plan=chosen.part(PlanOptions), address=chosen.address, reload=reload)
    set_start_options(chosen)
    screen = Screen.of_server(stderr=chosen.log_file is not None)
    for name in StartOptions.model_fields:
        if context.params[name] is not None and chosen.address is not None:
            screen.say(f"{CommandLine.display_name(name)} has no effect here: {only_at_start(name)}.")
    serve_on_cluster(options, screen, engine_of_run(chosen.engine, chosen.address))


@app.command(cls=ServingCommand)
@takes(*PLAN_OPTIONS, *HTTPOptions.model_fields, "no_access_log", *BACKGROUND_OPTIONS, "engine")
def up(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="The app, as FILE[:ATTRIBUTE] or MODULE[:ATTRIBUTE], or an application file, FILE.yaml. [default: "
            "none, until you deploy one]",
        ),
    ] = None,
    *,
    app_dir: AppDir = None,
    **_: Any,
) -> None:
    """Serve an app, or all apps of a file, in the background. Return once they serve."""
    if target is not None:
        chosen, what = _served(context, target, app_dir)
    else:
        project = read_project(Path.cwd())
        chosen = _chosen(context, project)
        http = chosen.part(HTTPOptions)
        what = {"target": None, "app_dir": app_dir, "http": http, "named": http}
    if chosen.address is not None:
        raise ConfigError(
            f"up starts processes of this machine, and the address {chosen.address!r} names another instance: "
            "use `app-toolkit deploy`"
        )
    set_start_options(chosen.model_copy(update={"log_file": None}))  # no process shows the records of the others
    options = RunOptions(**what, plan=chosen.part(PlanOptions), command_line=main)
    start_background(options, Screen(), engine_of_run(chosen.engine or "processes", None))


@app.command()
def down(
    context: typer.Context,
    *,
    address: Annotated[
        str | None, typer.Option(help="The instance: processes-PID. [default: the only one of this machine]")
    ] = None,
) -> None:
    """Drain and delete all applications of an instance on processes, end it, and return once it has ended."""
    end_background(engine_of_run("processes", None), address, Screen())


@app.command(cls=ServingCommand)
@takes(*SERVE_OPTIONS, "admin_url", address=RunningAddress, admin_url=AdminURL)
def deploy(
    context: typer.Context,
    target: ServedArgument = None,
    *,
    traffic: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="Start the new revision beside the running one, and send it this percentage of the requests.",
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="Give this name to a new revision that starts beside the running one.")
    ] = None,
    mirror: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="Start the new revision beside the running one, and send it copies of this percentage of the "
            "requests. Nobody gets its responses.",
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Pack this file although files of its name are left out, such as .env or data/*.db. You can repeat "
            "this option. [default: none]",
        ),
    ] = None,
    application: FileApplication = None,
    wait: Wait = False,
    wait_timeout_s: WaitTimeoutS = WAIT_S,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change. Change nothing.")] = False,
    app_dir: AppDir = None,
    **_: Any,
) -> None:
    """Deploy an app, or all apps of a file, to a running instance or a Ray cluster, until you delete them."""
    chosen, what = _served(context, target, app_dir, application)
    operated, address = _operated(CommandLine(**_given(context)), chosen)
    options = DeployOptions(
        **what,
        include=include or (),
        traffic=TrafficOptions.given(traffic, tag, mirror),
        plan=chosen.part(PlanOptions),
        address=address,
        dry_run=dry_run,
        wait=wait,
        timeout_s=wait_timeout_s,
    )
    deploy_on_cluster(options, Screen(), operated)


@app.command()
def new(
    template: Annotated[
        str | None,
        typer.Argument(metavar="TEMPLATE", help="The template: api, chat or batch-inference. [default: you are asked]"),
    ] = None,
    answers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE", help="An answer to the template, such as project_name='My API'. You can give several."
        ),
    ] = None,
    *,
    output_dir: Annotated[Path, typer.Option(help="Create the folder of the project in this folder.")] = Path("."),
    no_input: Annotated[
        bool, typer.Option("--no-input", help="Ask nothing: use the default of every answer that is not given.")
    ] = False,
) -> None:
    """Create a project from a template."""
    made = create_project(template, answers or (), output_dir, ask=not no_input)
    Screen().say(f"Created {made}. Its README.md has the next two commands.")


@app.command(cls=ServingCommand)
@takes("loop", "log_level", "log_format")
def dev(
    context: typer.Context,
    target: ServedArgument = None,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=0, max=65_535)] = 8000,
    reload: Annotated[bool, typer.Option(help="Restart the process when a file changes.")] = True,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Watch this folder. You can repeat this option. [default: the current folder]"),
    ] = None,
    app_dir: AppDir = None,
    application: FileApplication = None,
    **_: Any,
) -> None:
    """Serve an app, or all apps of a file, in one process, and restart when a file changes."""
    # Imported here, so that an instance does not import the server of one process when it starts.
    from app_toolkit.cli.dev import Served, loop_of
    from app_toolkit.cli.dev import dev as serve_in_one_process

    project = read_project(Path.cwd())
    file = _file(context, target, project)
    chosen = _chosen(context, project)
    set_start_options(chosen)
    if file is None:
        _refuse_application(application)
        served, loop = Served(_resolve(target, project, app_dir)), chosen.loop
    else:
        if application is not None:
            file.application(application)
        served = Served(file=Path(file.document.source).resolve(), application=application)
        loop = loop_of(file, application)
    serve_in_one_process(served, host=host, port=port, reload=reload, reload_dirs=reload_dir or (), loop=loop)


@app.command(cls=ServingCommand)
@takes(*PLAN_OPTIONS)
def plan(
    context: typer.Context,
    target: ServedArgument = None,
    *,
    format: Annotated[Format, typer.Option(help="The output format.")] = Format.table,
    app_dir: AppDir = None,
    application: FileApplication = None,
    rest: Annotated[bool, typer.Option("--rest", hidden=True)] = False,
    **_: Any,
) -> None:
    """Show the deployments and the routes of an app, or of all apps of a file. Starts nothing."""
    folder = Path.cwd()
    project = read_project(folder)
    file = _file(context, target, project, rest=rest)
    chosen = _chosen(context, project, file)
    overrides: dict[str, Mapping[str, Given]] = {}
    output = context.with_resource(reserved_stdout(until_exit=bool(context.obj)))
    handle_uvicorn_loggers("warning")
    if file is None:
        _refuse_application(application)
        options = chosen.part(PlanOptions)
        specs = [plan_here(_resolve(target, project, app_dir), options, written=format is Format.yaml)]
        if options.num_replicas is not None:
            overrides[options.name] = {
                name: {"num_replicas": options.num_replicas}
                for name in specs[0].ingresses
                if specs[0].deployment(name).config.num_replicas == options.num_replicas
            }
    else:
        specs = [plan_application(file, application)] if application is not None else _planned(file)
        overrides = {name: in_file.deployments for name, in_file in file.applications.items()}
    included = {} if file is None else {name: in_file.options.include for name, in_file in file.applications.items()}
    if format is not Format.json:  # `run` and `deploy` read the JSON, and warn themselves
        sentences = [sentence for spec in specs for sentence in about_data(spec, included.get(spec.name, ()))]
        for sentence in (*stream_log_warnings(specs), *dict.fromkeys(sentences)):
            print(sentence, file=sys.stderr)
    if format is Format.yaml:
        instance = InstanceOptions(**{k: v for k, v in chosen.given.items() if k in InstanceOptions.model_fields})
        print(render(specs, instance, folder, overrides, included=included), end="", file=output)
    elif format is Format.json:
        shown = [json.loads(spec.model_dump_json()) for spec in specs]
        print(json.dumps(shown if file is not None and application is None else shown[0], indent=2), file=output)
    else:
        screen = Screen.on(output)
        for spec in (*specs, *shared_logs(specs)):
            screen.plan(spec)


@app.command()
def status(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Show replicas and the last error also for healthy deployments.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the status after each change, until Ctrl-C.")] = False,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Show the applications of an instance."""
    screen = Screen()

    def show(status: InstanceStatus) -> None:
        load = instance.load()
        if as_json:
            print(
                json.dumps(
                    {
                        **asdict(status),
                        "load": {name: asdict(deployment_load) for name, deployment_load in load.items()},
                    },
                    indent=2,
                )
            )
        else:
            screen.status(status, load, replicas=replicas)

    with _connected(context) as instance:
        if watch:
            _watch(instance.client, screen, show)
        else:
            show(instance.status())


@app.command()
def config(context: typer.Context, *, address: RunningAddress = None, admin_url: AdminURL = None) -> None:
    """Print the configuration of what runs on an instance, as an application file."""
    with _connected(context) as instance:
        print(configuration.write(instance.client), end="", flush=True)


@app.command()
def events(
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="APP[/DEPLOYMENT]", help="Only events of this application or deployment. [default: all]"
        ),
    ] = None,
    *,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, max=KEPT, help="Show at most so many events, the newest ones.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show new events, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Show what the controller of an instance has done, and why."""
    screen = Screen()
    with _connected(context) as instance, Interrupts() as interrupts:
        try:
            for events in instance.client.events(subject, last, lambda: follow and interrupts.not_interrupted()):
                if subject is not None and not events:  # the events of an application that was deleted are shown
                    instance.status().check_name(subject)
                if as_json:
                    for event in events:
                        print(json.dumps(asdict(event)), flush=True)
                else:
                    screen.events(events)
        except InstanceEnded as error:
            screen.say(f"The events ended: {error}.")


@app.command()
def logs(
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="APP[/DEPLOYMENT]",
            help="Only records of the replicas of this application or deployment. [default: of all processes]",
        ),
    ] = None,
    *,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only records of this request, in all deployments and threads.")
    ] = None,
    level: Annotated[
        Level | None, typer.Option(help="Only records of this level and above.", case_sensitive=False)
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only records of this replica, also if it has ended, or of this proxy."),
    ] = None,
    proxies: Annotated[bool, typer.Option("--proxies", help="Only records of proxies.")] = False,
    controller: Annotated[bool, typer.Option("--controller", help="Only records of the controller.")] = False,
    revision: Annotated[
        int | None, typer.Option(help="Only records of replicas that started in this revision.")
    ] = None,
    last: Annotated[
        int,
        typer.Option("--last", "-n", min=1, max=MOST_RECORDS, help="Show at most so many records, the newest ones."),
    ] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show new records, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as one line of JSON.")] = False,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Show the log records of replicas, and what they print, from all nodes."""
    if proxies and controller:
        raise ConfigError("--proxies and --controller exclude each other")
    if subject is not None and (proxies or controller):
        raise ConfigError(f"{subject} names replicas, so --proxies and --controller would show nothing")
    application, deployment = parts_of(subject or "")
    query = LogQuery(
        application=application or None,
        deployment=deployment or None,
        kind="proxies" if proxies else "controller" if controller else None,
        revision=revision,
        replica=replica,
        request_id=request_id,
        level=level,
    )
    screen = Screen()
    with _connected(context) as instance, Interrupts() as interrupts:
        try:
            any_record = False
            for page in instance.client.follow_logs(query, last, lambda: follow and interrupts.not_interrupted()):
                screen.logs(page, as_json=as_json)
                any_record = any_record or bool(page.records)
            if not any_record:
                print("No records match.", file=sys.stderr)
        except InstanceEnded as error:
            screen.say(f"The logs ended: {error}.")


@app.command()
def dashboard(
    context: typer.Context,
    *,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the dashboard in the browser of this machine.")
    ] = True,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Print the address of the dashboard of an instance, and open it."""
    with _connected(context) as instance:
        url = instance.status().admin_url
    if url is None:
        raise ConfigError("the instance has no dashboard: its admin server is off, or has not started yet")
    Screen().say(f"Dashboard at {url}")
    if browser and not webbrowser.open(url):
        Screen().say("There is no browser on this machine that could open it.")


@app.command()
def grafana() -> None:
    """Print a dashboard for Grafana with all metrics, as JSON to import."""
    from app_toolkit.operate.grafana import dashboard as grafana_dashboard  # imports all modules that declare metrics

    print(json.dumps(grafana_dashboard(), indent=2))


@app.command()
def keys(
    action: Annotated[Action, typer.Argument(metavar="create|list|revoke", help="What to do.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name of the key.")] = None,
    *,
    file: Annotated[Path, typer.Option(help="The file of api_keys(file=...).", dir_okay=False)],
) -> None:
    """Create, list or revoke API keys in a file. A new key is printed, and not shown again."""
    for line in changed_keys(action, name, file):
        print(line)


@app.command()
def slow(
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="APP[/DEPLOYMENT]",
            help="Only requests for this application, or requests and calls for this deployment. "
            "[default: all requests]",
        ),
    ] = None,
    *,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=MOST_SHOWN, help="Show at most so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print each request as one line of JSON.")] = False,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Show the slowest requests of the last ten minutes, and where their time went."""
    screen = Screen()
    with _connected(context) as instance:
        requests = instance.slow(subject, last)
        if subject is not None and not requests:
            instance.status().check_name(subject)
        warnings = instance.logs(LogQuery(level="warning")).records if requests and not as_json else ()
    if as_json:
        for request in requests:
            print(json.dumps(asdict(request)))
    else:
        screen.slow(requests, warnings)


@contextmanager
def _connected(context: typer.Context) -> Iterator[Instance]:
    """Connect to the instance.

    Ctrl-C ends the process. The instance continues with the operation that it has received.
    """
    places = {name: context.params[name] for name in ("address", "admin_url")}  # the others are those of the command
    named = CommandLine(**{name: place for name, place in places.items() if place is not None})
    on, address = _operated(named, resolve_options(read_project(Path.cwd()), named))
    with connecting(address):
        client = on.connect(address)
    try:
        yield Instance(client, context.params.get("wait_timeout_s", WAIT_S))
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # disconnecting from a cluster that does not answer takes time
    finally:
        client.close()


def _change(context: typer.Context, command: Command[Any]) -> None:
    """Send a command, and with --wait, show the progress until it has its effect."""
    with _connected(context) as instance:
        result = instance.change(command)
        if outcome := command.outcome(result):
            Screen().say(outcome)
        if context.params.get("wait"):
            with Screen().progress() as show:
                instance.wait(command, result, show)


Revision = Annotated[
    int | None,
    typer.Argument(metavar="REVISION", help="The live revision. [default: the one beside the main revision]"),
]


@app.command()
def traffic(
    context: typer.Context,
    application_or_split: Annotated[
        str, typer.Argument(metavar="APP[/SPLIT]", help="The name of the application, or of one of its splits.")
    ],
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=WEIGHT",
            help="The weight of a live revision, such as 13=10, or of a member of the split, such as writer-v2=10.",
        ),
    ] = None,
    *,
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PERCENT",
            help="Send a live revision copies of this percentage of the requests of the others, such as 13=50, or a "
            "member of the split copies of their calls, such as writer-v3=50. 0 ends it. You can repeat this option.",
        ),
    ] = None,
    revision: Annotated[
        int | None, typer.Option(help="The live revision whose split is meant. [default: the main one]")
    ] = None,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Show the shares and mirrors of the live revisions, or of the members of a split, or set them."""
    application, split = parts_of(application_or_split)
    with _connected(context) as instance:
        if split is not None and (weights or mirror):
            members = _numbers(weights or (), str, "MEMBER=WEIGHT, such as writer-v2=10")
            copied = _numbers(mirror or (), str, "MEMBER=PERCENT, such as writer-v3=50")
            instance.change(SetSplit(application_or_split, members, copied, revision))
        elif weights or mirror:
            revisions = _numbers(weights or (), int, "REVISION=WEIGHT, such as 13=10")
            mirrored = _numbers(mirror or (), int, "REVISION=PERCENT, such as 13=50")
            instance.change(SetTraffic(application, revisions, mirrored))
        shown_application = _application(instance, application)
        screen = Screen()
        if split is not None:
            shown_application = _live(shown_application, revision)
            shown = shown_application.split(split)
            screen.splits([shown])
            if shown.mirrors:
                load = instance.load()
                names = {
                    mirror_name: shown_application.key.replica_set(mirror_name).name for mirror_name in shown.mirrors
                }
                screen.mirrors(
                    {mirror_name: load[name].mirrored_calls for mirror_name, name in names.items() if name in load}
                )
            return
        screen.traffic(shown_application)
        if mirrors := [live.revision for live in shown_application.traffic if live.mirror]:
            load = instance.load()
            screen.mirrors({f"{number}": mirrored_to(_live(shown_application, number).key, load) for number in mirrors})


def _application(instance: Instance, name: str) -> ApplicationStatus:
    status = instance.status()
    application = status.application(name)
    if application is None:
        names = [named.name for named in status.applications]
        raise ConfigError(f"there is no application {name!r}{nearest(name, names)}")
    return application


def _live(application: ApplicationStatus, revision: int | None) -> ApplicationStatus:
    """Return the status of a live revision; None: of the main one. Raises `ConfigError` if it is not live."""
    live = application if revision is None else application.live(revision)
    if live is None:
        raise ConfigError(f"application {application.name!r} has no live revision {revision}")
    return live


def _numbers(texts: Sequence[str], name_of: Callable[[str], T], form: str) -> dict[T, float]:
    """Return the numbers by name. Raises `ConfigError` if a text has another form, or a name is there twice."""
    numbers: dict[T, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            numbers[name_of(name)] = float(number)
        except ValueError:
            raise ConfigError(f"{text!r} should be {form}") from None
    if len(numbers) < len(texts):
        raise ConfigError(f"a {form.partition('=')[0].lower()} is named twice: {' '.join(texts)}")
    return numbers


@app.command()
def rollout(
    context: typer.Context,
    application: ApplicationArgument,
    revision: Revision = None,
    *,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT,…",
            help="The shares of the requests that the live revision gets, one after the other. [default: "
            f"{','.join(f'{each:g}' for each in STEPS)}]",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"The least duration of a step, such as 30s. [default: {EVERY}]")
    ] = None,
    guard: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="A limit of the error rate or the latency, such as 'p95<300ms', or 'p95<1.2x' compared with the main "
            f"revision. You can repeat this option. [default: {', '.join(GUARDS)}]",
        ),
    ] = None,
    min_requests: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"The least number of requests of each revision in a step. [default: {MIN_REQUESTS}]"
        ),
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Keep the present share, whatever the guards find.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on. The present step begins again.")] = False,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    """Show the canary release of an application, or begin one: send a live revision more requests step by step.

    It begins with any of --steps, --every, --guard and --min-requests.
    """
    release = None
    if any(option is not None for option in (steps, every, guard, min_requests)):
        release = BeginRelease(
            application,
            revision,
            STEPS if steps is None else read_steps(steps),
            EVERY if every is None else every,
            guard or GUARDS,
            MIN_REQUESTS if min_requests is None else min_requests,
        )
    if (release is not None) + pause + resume > 1:
        raise ConfigError("--pause, --resume and the options of a new release exclude each other")
    with _connected(context) as instance:
        if release is not None:
            instance.change(release)
        elif pause or resume:
            instance.change(PauseRelease(application, paused=pause))
        status = _application(instance, application)
        if status.canary is None:
            raise ConfigError(f"application {application!r} has no canary release; begin one with --steps")
        Screen().canary(status.canary)


add_commands(app, _change)


@app.command(help=summary(GetHistory))
def history(
    context: typer.Context,
    application: ApplicationArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print each revision as one line of JSON.")] = False,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    with _connected(context) as instance:
        revisions = instance.history(application)
    if as_json:
        for revision in revisions:
            print(json.dumps(asdict(revision)))
    else:
        HistoryScreen().revisions(revisions)


@app.command(help=summary(Delete))
def delete(
    context: typer.Context,
    named: Annotated[
        str, typer.Argument(metavar="APP[/DEPLOYMENT]", help="The name of an application, or of one deployment of it.")
    ],
    *,
    revision: Annotated[
        int | None,
        typer.Option(
            help="Another live revision than the main one, or the one with the deployment. [default: the whole "
            "application, or the deployment of the main revision]"
        ),
    ] = None,
    address: RunningAddress = None,
    admin_url: AdminURL = None,
) -> None:
    operation = Delete(named, revision)
    with _connected(context) as instance:
        instance.change(operation)
        with Screen().waiting("Draining."):
            instance.wait(operation, None)


@app.command(help=summary(Shutdown))
def shutdown(context: typer.Context, *, address: RunningAddress = None, admin_url: AdminURL = None) -> None:
    with _connected(context) as instance, Screen().waiting("Draining."):
        instance.shutdown()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `app-toolkit` and end the process.

    The exit code is 0, or 2 for an error that the user can correct, or try again. `arguments`: None: those of this
    process. The threads and processes of an app that it plans then end with it.
    """
    plans = arguments is None and sys.argv[1:2] == ["plan"]
    if plans:
        adopt_orphans()
    with bounded_end(PLANNED_S) if plans else nullcontext():
        try:
            app(None if arguments is None else list(arguments), obj=plans)
        except ToolkitError as error:
            report(error)
            sys.exit(ConfigError.exit_code)


def _operated(named: CommandLine, chosen: Options) -> tuple[Engine, str]:
    """Return how a command reaches the instance that it operates, and at which address.

    Raises `ConfigError` if the command line has the address of an instance and that of an admin API.
    """
    if named.address is not None and named.admin_url is not None:
        raise ConfigError("--address and --admin-url exclude each other")
    on, address = reach(chosen, named)
    return on, address or chosen.address or "auto"


def _watch(client: Client, screen: Screen, show: Callable[[InstanceStatus], None]) -> None:
    """Show the status after each change, until Ctrl-C, SIGTERM or SIGHUP, or until the instance is shut down."""
    shown = -1
    with Interrupts() as interrupts:
        try:
            for status in client.watch(interrupts.not_interrupted):
                if status.change > shown:
                    screen.begin_anew()
                    show(status)
                shown = status.change
        except InstanceEnded as error:
            screen.say(f"The watch ended: {error}.")


def _served(
    context: typer.Context, target: str | None, app_dir: Path | None, application: str | None = None
) -> tuple[Options, dict[str, Any]]:
    """Return the options, and the app or the file to serve. Mistakes are reported before anything starts.

    `application`: only this application of the file.
    """
    project = read_project(Path.cwd())
    file = _file(context, target, project)
    chosen = _chosen(context, project, file)
    variables: Mapping[str, str] = {}
    if file is None:
        _refuse_application(application)
        _resolve(target, project, app_dir)
    else:
        if application is not None:
            file = replace(file, applications={application: file.application(application)})
        variables = read_variables(file.variables)
        file.check(variables)
    return chosen, {
        "target": target,
        "app_dir": app_dir,
        "http": chosen.part(HTTPOptions),
        "named": named_proxy_options(project, CommandLine(**_given(context)), file),
        "file": file,
        "variables": variables,
    }


def _refuse_application(application: str | None) -> None:
    if application is not None:
        raise ConfigError(f"--application {application}: the target is one app, not an application file")


def _chosen(context: typer.Context, project: Project, file: ConfigFile | None = None) -> Options:
    """Combine the options of all sources. Earlier sources override later ones.

    The order is: the command line, the environment, the file, the project, the default.
    """
    return resolve_options(project, CommandLine(**_given(context)), file)


def _given(context: typer.Context) -> dict[str, Any]:
    """Return the options that are set on the command line."""
    options = {
        name: value for name, value in context.params.items() if name in CommandLine.model_fields and value is not None
    }
    return {**options, "access_log": False} if context.params.get("no_access_log") else options


def _file(context: typer.Context, target: str | None, project: Project, *, rest: bool = False) -> ConfigFile | None:
    """Return the application file to use, or None if the target is one app.

    `rest`: return the part of the file that can be read, because its mistakes have been reported.
    """
    if target is None:
        file = project.file
    elif Path(target).suffix in SUFFIXES:
        try:
            file = read_file(Path(target))
        except FileError as error:
            if not rest:
                _report_all_mistakes(error, variables=context.info_name != "plan")  # shows references
            return cast(ConfigFile, error.rest)
    elif Path(target).name == PYPROJECT:
        file = read_project(Path(target).parent).file
        if file is None:
            raise ConfigError(f"{target} has no [tool.app_toolkit.applications]")
    else:
        return None
    if file is not None:
        of_one = [*(PlanOptions.model_fields.keys() & _given(context).keys())]
        of_one += ["app_dir"] if context.params.get("app_dir") is not None else []
        for name in sorted(of_one):
            raise ConfigError(
                f"{CommandLine.display_name(name)} applies to one app; in {file.document.source} set it for each "
                "application"
            )
    return file


def _report_all_mistakes(error: FileError, *, variables: bool) -> NoReturn:
    """Report the mistakes in a file, then those that show only when its apps are imported, and end the process.

    `variables`: also report environment variables that the file refers to and that are not set.
    """
    report(error)
    file: ConfigFile = error.rest
    if variables:
        try:
            file.check(read_variables(file.variables))
        except ConfigError as unset:
            report(unset)
    with plannings_of(file, rest=True) as plannings:
        results(plannings, lambda: True)
    sys.exit(ConfigError.exit_code)


def _planned(file: ConfigFile) -> list[ApplicationSpec]:
    with plannings_of(file) as plannings:
        return results(plannings, lambda: True) or []


def _resolve(target: str | None, project: Project, app_dir: Path | None) -> Target:
    return resolve(target, folder=Path.cwd(), entrypoint=project.entrypoint, app_dir=app_dir)
