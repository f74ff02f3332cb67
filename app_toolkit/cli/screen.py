"""The output of the commands: live tables on a terminal, plain lines otherwise."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, SplitSpec
from app_toolkit.config.options import StartOptions
from app_toolkit.contract.identity import ReplicaSetKey, proxy_set_of
from app_toolkit.contract.mirror_counts import Difference, MirrorCounts
from app_toolkit.control.diff import Diff, Effect
from app_toolkit.control.status import (
    FAILED,
    HEALTHY,
    UNHEALTHY,
    WAITING,
    ApplicationStatus,
    CanaryStatus,
    InstanceStatus,
    Load,
    ReplicaSetStatus,
    SplitStatus,
    TrafficStatus,
)
from app_toolkit.errors import ToolkitError
from app_toolkit.host.interrupts import discard_output
from app_toolkit.observability.event_log import LoggedEvent
from app_toolkit.observability.log_formats import shown
from app_toolkit.observability.log_query import LoggedRecord, LogPage
from app_toolkit.observability.records import OK
from app_toolkit.observability.slowest import SlowRequest
from app_toolkit.observability.stalls import WARN_AFTER_S, WATCHDOG, Blocked
from app_toolkit.operate.progress import SHOWN_LINES, SHOWN_NODE, Row, rolled_back, rows

COLOURS = {HEALTHY: "green", FAILED: "red", UNHEALTHY: "red", WAITING: "yellow"}

WIDEST = 100_000
"""More columns than any table needs."""


class ServingConsole(Console):
    """The console of a program that serves, and continues to do so if the reader of its output leaves."""

    def on_broken_pipe(self) -> None:
        discard_output(self.file.fileno())


class Screen:
    """Standard output, or another console. Text is shown as it is, without markup."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    @classmethod
    def on(cls, output: TextIO) -> Self:
        """Return a screen for another stream than standard output."""
        return cls(Console(file=output, highlight=False, soft_wrap=True))

    @classmethod
    def of_server(cls, *, stderr: bool = False) -> Self:
        """Return a screen for a command that serves. It shows nothing more if the reader of its output has left.

        `stderr`: it is on standard error, because a program reads standard output.
        """
        return cls(ServingConsole(highlight=False, soft_wrap=True, stderr=stderr))

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)

    def begin_anew(self) -> None:
        """Clear a terminal. Does nothing if standard output is no terminal."""
        if self._console.is_terminal:
            self._console.clear()

    @contextmanager
    def progress(self) -> Iterator[Callable[[Sequence[Row]], None]]:
        """Return a function that shows rows: in a live table on a terminal, or else a line for each changed row."""
        shown: dict[str, str] = {}

        def show_changes(rows: Sequence[Row]) -> None:
            for row in rows:
                if shown.get(row.name) != (line := str(row)):
                    self.say(line)
                    shown[row.name] = line

        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                yield lambda rows: live.update(_progress(rows), refresh=True)
        else:
            yield show_changes

    @contextmanager
    def working(self, sentence: str) -> Iterator[None]:
        """Show a sentence during an operation on a terminal. Show nothing if standard output is no terminal."""
        if self._console.is_terminal:
            with self._console.status(Text(sentence)):
                yield
        else:
            yield

    def waiting(self, sentence: str) -> AbstractContextManager[None]:
        """Show a sentence during an operation on a terminal, or else print it as one line."""
        if not self._console.is_terminal:
            self.say(sentence)
        return self.working(sentence)

    def plan(self, spec: ApplicationSpec) -> None:
        """Show an application as tables, or as one line for each deployment and route."""
        where = ", which serves no HTTP" if spec.route_prefix is None else f" at {spec.route_prefix}"
        log = "" if spec.stream_log == "memory" else f", with the stream log {spec.stream_log}"
        self.say(f"application {spec.name} ({spec.target} from {spec.app_dir}){where}{log}")
        deployments = [
            (
                deployment.config.name + (" (default)" if deployment.config.name == spec.default else ""),
                deployment.kind,
                _replicas(deployment.config),
                str(deployment.config.max_ongoing_requests),
                str(sum(route.owner == deployment.config.name for route in spec.routes))
                if deployment.kind == "ingress"
                else "",
            )
            for deployment in spec.deployments
        ]
        self._rows(("deployment", "kind", "replicas", "max ongoing requests", "routes"), deployments)
        routes = [
            (
                route.path or "/",
                ",".join(route.methods or ()) or ("mount" if route.kind == "both" else route.kind),
                route.owner or "none",
            )
            for route in spec.routes
        ]
        self._rows(("path", "methods", "ingress"), routes)
        self.splits(spec.splits)

    def difference(self, difference: Diff, route_prefix: str | None) -> None:
        """Show what deploying an application would change, with a line for each of its deployments."""
        changes = ["new"] if difference.is_new else [str(change) for change in difference.changes]
        if difference.is_empty:
            changes = ["no changes"]
        at = f" at {route_prefix}" if route_prefix is not None else ""
        self.say(f"application {difference.name}{at}" + (f": {', '.join(changes)}" if changes else ""))
        for deployment in difference.deployments:
            why = ", ".join(map(str, deployment.changes))
            effect = (
                deployment.effect
                if deployment.effect in (Effect.KEPT, Effect.UNCHANGED)
                else f"will be {deployment.effect}"
            )
            self.say(f"  {deployment.name}: {effect}" + (f" ({why})" if why else ""))

    def status(self, status: InstanceStatus, load: Mapping[str, Load], *, replicas: bool = False) -> None:
        """Show every application with its proxies and deployments, a line for each, and the load of the deployments.

        For deployments that are not healthy, or with `replicas` for all, also show each replica and the last error.
        """
        for application in status.applications:
            self.say(f"application {application.name}{_where(application, status.url)}")
            if error := rolled_back(application):
                self.say(f"  {error}")
                for note in getattr(error, "__notes__", ()):
                    self._traceback(note.splitlines())
            for name, text, since in application.facts.shown:
                when = "" if since is None else f" since {datetime.fromtimestamp(since).isoformat(' ', 'minutes')}"
                self.say(f"  {name}{when}: {text}")
            if application.traffic:
                self.traffic(application)
            elif application.canary is not None and application.canary.outcome == "returned":
                self.canary(application.canary)
            self._live(rows(status, [application.name]), application, load, replicas=replicas)
            for traffic in application.traffic[1:]:
                live = application.live(traffic.revision)
                if live is not None:
                    self.say(f"  revision {live.revision}:")
                    live_rows = [Row(replica_set.key.deployment, replica_set) for replica_set in live.deployments]
                    self._live(live_rows, live, load, replicas=replicas)
        if not status.applications:
            self.say("no applications")
        of_start = {name: status.options[name] for name in StartOptions.model_fields if name in status.options}
        if changed := StartOptions(**of_start).model_dump(exclude_defaults=True):
            self.say(f"started with {', '.join(f'{name} = {value}' for name, value in changed.items())}")
        if status.admin_url is not None:
            self.say(f"dashboard at {status.admin_url}")
        elif status.admin_failure is not None:
            self.say(f"no dashboard: {status.admin_failure}")

    def _live(self, rows: Sequence[Row], live: ApplicationStatus, load: Mapping[str, Load], *, replicas: bool) -> None:
        """Show rows of a live revision, the load of its deployments, and its splits. `replicas`: as of `status`."""
        self.splits(live.splits)
        keys = [replica_set.key.name for replica_set in live.deployments]
        ours = {key: load[key] for key in keys if key in load}
        if self._console.is_terminal:
            self._console.print(_table(rows, ours))
        for row in rows:
            if not self._console.is_terminal:
                self.say(f"  {row}")
            if replicas or row.replica_set.status != HEALTHY:
                self._replicas(row.replica_set, load)
        self._loads(ours)
        self._targets(live)

    def traffic(self, application: ApplicationStatus) -> None:
        """Show the live revisions of an application and their shares of the requests."""
        live = application.traffic or (TrafficStatus(application.serving_revision or application.revision, 1.0, 1.0),)
        lines = [
            (
                f"{revision.revision}",
                f"{100 * revision.share:.4g} %",
                f"{100 * revision.mirror:.4g} %" if revision.mirror else "",
                revision.tag or "",
                revision.state,
            )
            for revision in live
        ]
        self._rows(("revision", "traffic", "mirror", "tag", "state"), lines)
        if application.canary is not None:
            self.canary(application.canary)

    def mirrors(self, mirrors: Mapping[str, MirrorCounts]) -> None:
        """Show what became of mirrored requests or calls by mirror, and the last differences."""
        lines: list[tuple[str, ...]] = []
        differences: list[Difference] = []
        for name, counts in mirrors.items():
            differences += counts.differences
            numbers = (counts.completed, counts.dropped, counts.too_large, counts.failed)
            compared = (counts.compared, counts.different_status, counts.different_body)
            times = [
                f"{1_000 * s / counts.compared:.1f} ms" if counts.compared else ""
                for s in (counts.primary_s, counts.mirror_s)
            ]
            lines.append((name, *map(str, numbers), *map(str, compared), *times))
        heads = ("mirrored to", "completed", "dropped", "too large", "failed")
        compared_heads = ("compared", "different status", "different body", "primary", "mirror")
        self._rows((*heads, *compared_heads), lines)
        for difference in differences:
            primary, mirror = (
                f"{status}, {size} bytes, {1_000 * seconds:.1f} ms"
                for status, size, seconds in (
                    (difference.primary_status, difference.primary_bytes, difference.primary_s),
                    (difference.mirror_status, difference.mirror_bytes, difference.mirror_s),
                )
            )
            self.say(f"  {difference.request} ({difference.request_id}): {primary}; mirror: {mirror}")

    def canary(self, canary: CanaryStatus) -> None:
        """Show how far a canary release is, and the requests of both revisions in its present step."""
        step = f"step {canary.step} of {len(canary.steps)}, {canary.steps[canary.step - 1]:g} %"
        if canary.outcome is not None:
            self.say(f"  canary release of revision {canary.revision}: {canary.outcome} in {step}: {canary.why}")
            return
        self.say(f"  canary release of revision {canary.revision}: {step}, for {canary.elapsed_s:.0f} s; {canary.why}")
        for whose, seen in (("candidate", canary.candidate), ("baseline", canary.baseline)):
            if seen is not None:
                times = ", ".join(
                    f"{name} {1000 * value:,.1f} ms"
                    for name, value in (("p50", seen.p50_s), ("p95", seen.p95_s), ("p99", seen.p99_s))
                )
                self.say(f"    {whose}: {seen.requests:,} requests, {seen.errors:,} errors, {times}")

    def splits(self, splits: Iterable[SplitStatus | SplitSpec]) -> None:
        """Show the members of splits, their shares of the calls, and what they mirror."""
        lines = [
            (
                split.name,
                member,
                f"{100 * share:.4g} %",
                f"{100 * split.mirrors[member]:.4g} %" if member in split.mirrors else "",
            )
            for split in splits
            for member, share in split.shares.items()
        ]
        if lines:
            self._rows(("split", "member", "traffic", "mirror"), lines)

    def events(self, events: Iterable[LoggedEvent]) -> None:
        """Show events of the controller, each with the time of this machine."""
        now = datetime.now()
        for event in events:
            at = (now - timedelta(seconds=event.age_s)).isoformat(" ", "seconds")
            first, *rest = (event.cause or "").splitlines() or [""]
            what = "  ".join(filter(None, (at, event.subject or "instance", event.name, event.replica or "")))
            if (processes := proxy_set_of(event.subject)) is not None:
                what = what.replace(processes.node, processes.node[:SHOWN_NODE])
            self.say(f"{what}: {_printable(first)}" if first else what)
            self._traceback(map(_printable, rest))

    def logs(self, page: LogPage, *, as_json: bool = False) -> None:
        """Show log records, as text or as lines of JSON, and on standard error, which nodes are missing."""
        for record in page.records:
            print(record.line if as_json else shown(record), flush=True)
        for address in page.missing:
            print(f"The logs of node {address} are missing: no proxy answers there.", file=sys.stderr)

    def slow(self, requests: Sequence[SlowRequest], warnings: Sequence[LoggedRecord] = ()) -> None:
        """Show slow requests with their stages in milliseconds, a line for each request and call.

        `warnings`: records of the same time. Those about blocked event loops are shown beside the requests that waited.
        """
        if not requests:
            self.say("no requests have ended in the last ten minutes")
            return
        lines: list[tuple[str, ...]] = []
        for request in requests:
            lines.append((*_slow_line(request), _blocked(request, warnings)))
            lines += [(*_slow_line(call, indent="  "), _blocked(call, warnings)) for call in request.calls]
        stages = ("body", "queue", "failed attempts", "app", "response")
        heads = ("began", "request", "for", "status", "ms", *stages, "replica", "request id", "loop blocked at")
        width = len(heads) if any(line[-1] for line in lines) else len(heads) - 1
        self._rows(heads[:width], [line[:width] for line in lines])

    def _replicas(self, replica_set: ReplicaSetStatus, load: Mapping[str, Load]) -> None:
        of_replicas = load.get(replica_set.key.name) if "/" in replica_set.name else None
        ongoing = {} if of_replicas is None else of_replicas.replicas
        for replica in replica_set.replicas:
            parts = [f"{replica.phase} for {replica.age_s:.0f} s"]
            if replica.unhealthy is not None:
                parts.append(replica.unhealthy)
            if replica.recycled is not None:
                parts.append(f"is replaced because {replica.recycled}")
            if replica.node is not None:
                parts.append(f"on node {replica.node[:SHOWN_NODE]}")
            if replica.id in ongoing:
                parts.append(f"{ongoing[replica.id]} ongoing")
            if replica.asks is not None:
                parts.append(f"requests {replica.asks}; the instance has {replica.free} free")
            self.say(f"    {replica.id}: {', '.join(parts)}")
        self._traceback((replica_set.last_error or "").strip().splitlines()[-SHOWN_LINES:])

    def _traceback(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.say(f"      {line}")

    def _loads(self, load: Mapping[str, Load]) -> None:
        """Show where requests wait or run, by deployment, and the limits that processes have reached."""
        if not self._console.is_terminal:
            places = ("wait in proxies", "wait in handles", "ongoing", "wait for a batch", "open streams")
            lines = [
                (
                    ReplicaSetKey.parse(name).deployment,
                    *map(
                        str,
                        (
                            deployment_load.proxies,
                            deployment_load.handles,
                            deployment_load.ongoing,
                            deployment_load.buffered,
                            deployment_load.streams,
                        ),
                    ),
                )
                for name, deployment_load in load.items()
            ]
            self._rows(("requests for", *places), lines)
        for name, deployment_load in load.items():
            for process, limits in deployment_load.reached.items():
                self.say(f"  {ReplicaSetKey.parse(name).deployment}: {process} has reached {limits}")

    def _targets(self, application: ApplicationStatus) -> None:
        """Show the autoscaled deployments with their targets."""
        following = [
            (
                ReplicaSetKey.parse(replica_set.name).deployment,
                f"{replica_set.target} of {scaling.min_replicas} to {scaling.max_replicas}",
                f"{scaling.load:.10g}",
                f"{scaling.average:.1f}",
                str(scaling.needed),
                scaling.why or "none yet",
            )
            for replica_set in application.deployments
            if (scaling := replica_set.scaling) is not None
        ]
        self._rows(("autoscaled", "target", "load", "on average", "needed", "last change"), following)

    def _rows(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        rows = list(rows)
        if not self._console.is_terminal:
            for row in rows:
                self.say("  " + "  ".join(f"{head}={cell}" for head, cell in zip(heads, row, strict=True)))
            return
        table = Table(*heads, box=None, header_style="bold")
        for row in rows:
            table.add_row(*map(Text, row))
        unbounded = self._console.options.update(max_width=WIDEST)
        if self._console.measure(table, options=unbounded).maximum <= self._console.width:
            self._console.print(table)
        else:
            for row in rows:
                self._wrapped([f"{head}={cell}" for head, cell in zip(heads, row, strict=True) if cell])

    def _wrapped(self, cells: Iterable[str]) -> None:
        """Show the cells of a row that is too wide for the terminal: on several lines, and none of them cut."""
        line = ""
        for cell in cells:
            if line and len(line) + len(cell) + 2 > self._console.width:
                self.say(line)
                line = "  "
            line += f"  {cell}"
        self.say(line)


def _printable(line: str) -> str:
    """Return a line whose control characters are escaped. A message of user code may have any."""
    return "".join(
        character if character.isprintable() or character == "\t" else ascii(character)[1:-1] for character in line
    )


def _slow_line(request: SlowRequest, indent: str = "") -> tuple[str, ...]:
    what = f"call {request.method}" if request.kind == "call" else f"{request.method} {request.path}"
    attempts = [f"{attempt.result} {_ms(attempt.seconds)}" for attempt in request.attempts]
    stages = (request.body_s, request.queued_s), (request.app_s, request.response_s)
    return (
        datetime.fromtimestamp(request.at).isoformat(" ", "milliseconds"),
        indent + _printable(what),
        request.deployment,
        str(request.status) if request.outcome == OK else f"{request.status} {request.outcome}",
        _ms(request.seconds),
        *map(_ms, stages[0]),
        ", ".join(attempts),
        *map(_ms, stages[1]),
        request.replica,
        request.request_id,
    )


def _blocked(request: SlowRequest, warnings: Iterable[LoggedRecord]) -> str:
    """Return the lines that blocked the event loop of the replica while the request was in it."""
    blocks: list[tuple[str, float, float]] = []
    for warning in warnings:
        if warning.replica == request.replica and warning.logger == WATCHDOG:
            at = datetime.fromisoformat(warning.time).timestamp()
            line = Blocked.line_in(warning.message)
            if line is not None:
                blocks.append((line, at - WARN_AFTER_S, at))
            elif blocks:  # the loop has gone on
                blocks[-1] = (*blocks[-1][:2], at)
    lines = [line for line, begin, end in blocks if begin <= request.at + request.seconds and request.at <= end]
    return ", ".join(dict.fromkeys(lines))


def _ms(seconds: float) -> str:
    return f"{1_000 * seconds:,.1f}"


def _where(application: ApplicationStatus, url: str | None) -> str:
    """Return the URL of an application and its latest revision, for the line that names the application."""
    revision, prefix = application.revision, application.route_prefix
    if prefix is None:
        return f", which serves no HTTP, revision {revision}"
    return f" at {prefix if url is None else url + prefix.rstrip('/')}, revision {revision}"


def _table(rows: Sequence[Row], load: Mapping[str, Load]) -> Table:
    """Return the table of the proxies and deployments of one application, for a terminal."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for head, side in (("", "left"), ("status", "left"), ("running", "right"), ("restarts", "right")):
        table.add_column(head, justify=side)  # type: ignore[arg-type]  # its type accepts only literals
    for head in ("ongoing", "waiting", "streams"):
        table.add_column(head, justify="right")
    table.add_column("")
    for row in rows:
        replica_set = row.replica_set
        row_load = load.get(replica_set.key.name) if "/" in replica_set.name else None
        requests = (
            ("", "", "")
            if row_load is None
            else (row_load.ongoing, row_load.proxies + row_load.handles, row_load.streams)
        )
        cells = (f"{replica_set.running}/{replica_set.target}", str(replica_set.restarts or ""), *map(str, requests))
        table.add_row(Text(row.name), _status(replica_set), *cells, Text(replica_set.reason))
    return table


def _status(replica_set: ReplicaSetStatus) -> Text:
    return Text(replica_set.status.replace("_", " "), style=COLOURS.get(replica_set.status, ""))


def _replicas(config: DeploymentConfig) -> str:
    bounds = config.autoscaling_config
    if bounds is None:
        return str(config.num_replicas)
    return f"{bounds.min_replicas} to {bounds.max_replicas}, {config.starting_replicas} at first"


def _progress(rows: Sequence[Row]) -> Table:
    """Return the table that is updated while an operation makes progress."""
    table = Table("", "running", "status", "", box=None, header_style="bold")
    for row in rows:
        replica_set = row.replica_set
        table.add_row(
            Text(row.name),
            f"{replica_set.running}/{replica_set.target}",
            _status(replica_set),
            Text(replica_set.reason),
        )
    return table


def report(error: ToolkitError) -> None:
    """Write an error to standard error as one sentence, followed by the traceback of user code if there is one."""
    for line in (f"Error: {error}", *getattr(error, "__notes__", ())):
        print(line, file=sys.stderr)
