"""Write a section of docs/measurements.md from recorded results. Pure functions: they take JSON and return text."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.measures import MEASURES, Measure

Results = Mapping[str, Any]
Round = Callable[[str, str, str], float | None]
"""(contender, measure, figure) → the figure of one round."""

TITLES = {contender.name: contender.title for contender in CONTENDERS}
BARE, OURS, RAY_SERVE = "bare", "toolkit-2", "ray-serve"
OURS_ALONE = "toolkit-1"
BEST = ("ray-serve-best-1", "ray-serve-best-2")
ALL = "python -m benchmarks.peers && python -m benchmarks --peers --write-docs"
DISTURBED_PERCENT = 15.0
"""CPU in percent of a core that other processes may use during a measurement. Above it, the figure is left out."""

UNITS = {"rps": "requests/s", "p50_ms": "p50, ms", "p99_ms": "p99, ms", "mb_s": "MB/s"}


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the rounds that have a figure; None if no round has one."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def rounds(results: Results, contender: str, measure: str, name: str) -> list[float | None]:
    """Return the figure of each round; None if it was not measured or if other processes used the machine."""
    figures = results["figures"].get(contender, {}).get(measure, {})
    values, others = figures.get(name, ()), figures.get("others_percent", ())
    return [
        None if (used or 0.0) > DISTURBED_PERCENT else value
        for value, used, _ in zip_longest(values, others, range(results["run"]["rounds"]))
    ]


def disturbed(results: Results) -> int:
    """Return how many measurements were disturbed by other processes."""
    measures = [figures for measures in results["figures"].values() for figures in measures.values()]
    return sum((used or 0.0) > DISTURBED_PERCENT for each in measures for used in each.get("others_percent", ()))


def figure(results: Results, contender: str, measure: str, name: str) -> float | None:
    return middle(rounds(results, contender, measure, name))


def best_of_ray_serve(results: Results, measure: str) -> float | None:
    """Return the better figure of tuned Ray Serve with one and with two replicas."""
    found = [figure(results, name, measure, MEASURES[measure].figures[0]) for name in BEST]
    there = [value for value in found if value is not None]
    return (min if MEASURES[measure].lower_is_better else max)(there) if there else None


# Bounds


class Missing(Exception):
    """A figure that is required for a bound was not measured."""


Need = Callable[[str, str, str], float]


@dataclass(frozen=True, slots=True)
class Bound:
    says: str
    value: Callable[[Need], float]
    limit: float
    at_most: bool = False
    unit: str = "×"


@dataclass(frozen=True, slots=True)
class Verdict:
    bound: Bound
    value: float | None
    """The median of the values of all rounds. None: not measured."""
    low: float = 0.0
    high: float = 0.0

    @property
    def short(self) -> float:
        """By how much the value misses the limit, as a fraction of the limit."""
        assert self.value is not None
        return abs(self.value - self.bound.limit) / self.bound.limit

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bound.limit if self.bound.at_most else self.value >= self.bound.limit


def _ratio(measure: str, name: str, to: str) -> Callable[[Need], float]:
    return lambda need: need(OURS, measure, name) / need(to, measure, name)


def _ratio_to_best(measure: str, name: str, best: Callable[[Sequence[float]], float]) -> Callable[[Need], float]:
    return lambda need: need(OURS, measure, name) / best([need(each, measure, name) for each in BEST])


def _above_bare(measure: str) -> Callable[[Need], float]:
    return lambda need: need(OURS, measure, "p50_ms") - need(BARE, measure, "p50_ms")


def _cpu_per_get(need: Need) -> float:
    ours = need(OURS, "get_32", "proxy_us") + need(OURS, "get_32", "replica_us")
    return ours / need(BARE, "get_32", "replica_us")


BOUNDS: tuple[Bound, ...] = (
    Bound("GET, 32 clients: requests/s relative to bare", _ratio("get_32", "rps", BARE), 1.1),
    Bound("GET, 32 clients: requests/s relative to tuned Ray Serve", _ratio_to_best("get_32", "rps", max), 2.5),
    Bound("GET, 32 clients: requests/s relative to Ray Serve with defaults", _ratio("get_32", "rps", RAY_SERVE), 15),
    Bound("POST, 32 clients: requests/s relative to bare", _ratio("post_32", "rps", BARE), 1.1),
    Bound("POST, 32 clients: requests/s relative to tuned Ray Serve", _ratio_to_best("post_32", "rps", max), 2),
    Bound("GET, 32 clients: CPU time of proxy and replicas relative to bare", _cpu_per_get, 1.6, at_most=True),
    Bound("GET, 1 client: p50 latency above bare", _above_bare("get_1"), 0.25, at_most=True, unit="ms"),
    Bound(
        "GET, 1 client: p99 latency relative to tuned Ray Serve",
        _ratio_to_best("get_1", "p99_ms", min),
        1 / 3,
        at_most=True,
    ),
    Bound("Stream of 100 events: streams/s relative to bare", _ratio("stream_8", "rps", BARE), 1.7),
    Bound("Stream of 100 events: streams/s relative to tuned Ray Serve", _ratio_to_best("stream_8", "rps", max), 1.7),
    Bound("WebSocket echo: p50 latency above bare", _above_bare("websocket"), 0.1, at_most=True, unit="ms"),
    Bound("Download of 10 MB: MB/s relative to bare", _ratio("download", "mb_s", BARE), 0.5),
    Bound("Upload of 10 MB: MB/s relative to bare", _ratio("upload", "mb_s", BARE), 0.4),
)
"""The performance targets for app_toolkit with two replicas."""


def judge(results: Results, bounds: Sequence[Bound] = BOUNDS) -> list[Verdict]:
    """Compute each bound within each round, because the speed of the machine changes between rounds."""
    return [_verdict(bound, results) for bound in bounds]


def _verdict(bound: Bound, results: Results) -> Verdict:
    values = []
    for number in range(results["run"]["rounds"]):
        try:
            values.append(bound.value(_needs(results, number)))
        except Missing:
            continue
    return Verdict(bound, median(values), min(values), max(values)) if values else Verdict(bound, None)


def _needs(results: Results, number: int) -> Need:
    def need(contender: str, measure: str, name: str) -> float:
        value = rounds(results, contender, measure, name)[number]
        if value is None:
            raise Missing
        return value

    return need


# Tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. The first column is left-aligned, the others are right-aligned."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replace_section(page: str, heading: str, section: str) -> str:
    """Return the page with this text below the heading `## heading`. Without that, it is added at the end."""
    before, _, after = page.partition(f"\n## {heading}\n")
    _, begin, others = after.partition("\n## ")
    return f"{before.rstrip()}\n\n## {heading}\n\n{section.strip()}\n{begin}{others}"


def with_document(page: str, document: str) -> str:
    """Return the page with this document as one of its sections: `# title` and `## heading` become one level lower."""
    title, _, text = document.partition("\n")
    return replace_section(page, title.removeprefix("# "), re.sub("^## ", "### ", text, flags=re.MULTILINE))


def number(value: float | None) -> str:
    """Format a number with three significant digits, or as an integer from 100 on."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def bounds_table(verdicts: Sequence[Verdict], alone: Sequence[Verdict] | None = None) -> str:
    """Return a table of the bounds. `alone`: the verdicts for one replica, whose medians get a column of their own."""
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        (
            verdict.bound.says,
            f"{'≤' if verdict.bound.at_most else '≥'} {number(verdict.bound.limit)} {verdict.bound.unit}",
            number(verdict.value),
            "–" if verdict.value is None else f"{number(verdict.low)} to {number(verdict.high)}",
            words[verdict.holds],
        )
        for verdict in verdicts
    ]
    head: tuple[str, ...] = ("target", "required", "median", "lowest to highest round", "result")
    if alone is None:
        return table(head, rows)
    return table((*head, "one replica"), [(*row, number(one.value)) for row, one in zip(rows, alone, strict=True)])


def measure_table(results: Results, name: str, measure: Measure) -> str:
    """Return a table of all contenders, with their figures relative to bare and to the better tuned Ray Serve."""
    main = measure.figures[0]
    bare, best = figure(results, BARE, name, main), best_of_ray_serve(results, name)
    rows = [
        (
            TITLES[contender],
            *(number(figure(results, contender, name, each)) for each in measure.figures),
            _times(figure(results, contender, name, main), bare),
            _times(figure(results, contender, name, main), best),
        )
        for contender in TITLES
        if name in results["figures"].get(contender, {})
    ]
    return table(
        ("", *(UNITS[each] for each in measure.figures), "relative to bare", "relative to tuned Ray Serve"), rows
    )


def _times(value: float | None, of: float | None) -> str:
    return "–" if value is None or not of else f"{number(value / of)} ×"


def cpu_table(results: Results, name: str) -> str:
    """Return a table of the CPU time per request, by role of the process, and of the number of busy cores."""
    rows = []
    for contender in TITLES:
        figures = results["figures"].get(contender, {}).get(name, {})
        spent = {
            each.removesuffix("_us"): figure(results, contender, name, each) or 0.0
            for each in figures
            if each.endswith("_us")
        }
        if spent:
            client = spent.pop("client", 0.0)
            rest = sum(spent.values()) - spent.get("proxy", 0.0) - spent.get("replica", 0.0)
            busy = (sum(spent.values()) + client) * (figure(results, contender, name, "rps") or 0.0) / 1e6
            figures_shown = (spent.get("proxy"), spent.get("replica"), rest, sum(spent.values()), client, busy)
            idle = figure(results, contender, "idle", "percent")
            rows.append((TITLES[contender], *map(number, figures_shown), number(idle)))
    head = ("", "proxy, µs", "replicas, µs", "other, µs", "total, µs", "client, µs", "cores busy", "idle, % of a core")
    return table(head, rows)


# The document


def document(results: Results) -> str:
    """Return the section as a document."""
    return "\n\n".join(_paragraphs(results)) + "\n"


def _paragraphs(results: Results) -> Iterator[str]:
    run, machine = results["run"], results["machine"]
    yield "# Requests benchmark"
    yield (
        "`python -m benchmarks --write-docs` writes this section. The figures of each round are in "
        f"`benchmarks/results.json`; they were measured on {run['date']}."
    )
    yield (
        f"All figures are medians of {run['rounds']} rounds. In each round, each contender is started, warmed up, "
        f"measured for {run['seconds']} s per measurement, and stopped, in a new random order. The load generator is "
        f"{run['load']} on the same machine, so contender and client share the cores. Only the ratios are comparable "
        "with other machines."
    )
    yield (
        f"The machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']:.0f} GB, "
        f"{machine['system']}. Sending a byte to another process and back takes {machine['round_trip_us']:.0f} µs. All "
        f"cores together run a Python program {machine['all_at_once']:.2f} times as fast as one core while the others "
        "are idle."
    )
    yield "Versions: " + ", ".join(f"{name} {version}" for name, version in results["versions"].items()) + "."
    yield (
        "*Bare* is one uvicorn process with uvloop and httptools and without an access log. *app_toolkit* is started "
        "with `app-toolkit run`, with no feature disabled and a deadline for each request. Its Ray workers run at "
        "normal priority; those of Ray Serve have Ray's default niceness of 15. *Ray Serve, defaults* has one replica "
        "and default options (`max_ongoing_requests` is 5, fewer than the 32 clients). *Ray Serve, tuned* runs with "
        "`RAY_SERVE_THROUGHPUT_OPTIMIZED=1`, `RAY_SERVE_ENABLE_HA_PROXY=1` and `max_ongoing_requests=1000`. All of "
        "these serve the same FastAPI app. LitServe, BentoML and Mosec serve only the POST endpoint."
    )
    if "remark" in run:
        yield run["remark"]
    if left_out := disturbed(results):
        yield (
            f"Left out: {left_out} measurements of single rounds, because other processes used more than "
            f"{DISTURBED_PERCENT:.0f} % of a core meanwhile."
        )
    for name, why in results["absent"].items():
        yield f"Not measured: {TITLES[name]} ({why})."
    for failure in results["failed"]:
        yield (
            f"Failed: {TITLES[failure['contender']]}, {failure['measure']}, round {failure['round'] + 1}: "
            f"`{failure['why']}`"
        )
    yield f"```bash\npython -m benchmarks --only {BARE} {OURS}\n{ALL}\n```"
    yield "## Targets"
    yield (
        "The targets apply to app_toolkit with two replicas. Ratios are computed within each round. *Tuned Ray Serve* "
        "is the better of Ray Serve with one and with two replicas."
    )
    verdicts = judge(results)
    alone = judge(_with_one_replica(results)) if OURS_ALONE in results["figures"] else None
    yield bounds_table(verdicts, alone)
    yield from _misses(results, verdicts)
    yield "![Requests per second at 32 clients, and streams](benchmarks.svg)"
    yield "## Figures"
    for name, measure in MEASURES.items():
        if any(name in figures for figures in results["figures"].values()):
            yield f"### {measure.title}"
            yield measure_table(results, name, measure)
    yield from _where_the_time_goes(results)


def _with_one_replica(results: Results) -> Results:
    """Return the results with the figures of one replica in place of those of two."""
    figures = results["figures"]
    return {**results, "figures": {**figures, OURS: figures[OURS_ALONE]}}


def _misses(results: Results, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a paragraph about missed targets, and about how much the speed of the machine varies."""
    missed = [verdict for verdict in verdicts if verdict.holds is False]
    bare = [value for value in rounds(results, BARE, "get_32", "rps") if value is not None]
    if missed and bare:
        each = "; ".join(f"{verdict.bound.says}, by {verdict.short:.0%}" for verdict in missed)
        yield (
            f"Missed: {each}. Bare itself served {number(min(bare))} to {number(max(bare))} GET requests per second in "
            "these rounds, which shows how much other users of the machine affect the figures. A proxy parses each "
            "request once more and passes it over two more sockets."
        )


def _where_the_time_goes(results: Results) -> Iterator[str]:
    yield "## CPU time"
    yield (
        "CPU time per GET with 32 clients, from `/proc/PID/stat` of each process before and after the load. *Cores "
        "busy* is the CPU time per request of contender and client, multiplied by the request rate. If it is near the "
        "number of cores, only less CPU time per request increases the rate."
    )
    yield cpu_table(results, "get_32")
    yield "CPU time per stream of 100 events:"
    yield cpu_table(results, "stream_8")
    if any(each.get("samples") for each in results["profiles"]):
        yield "`benchmarks/results.json` also has the shares of Python functions in this time, by py-spy."
