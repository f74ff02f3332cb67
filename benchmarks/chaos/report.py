"""Compare measurements with their bounds, and write the page. Pure functions: no clock, no process, no file."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import number, table

ENGINES = {"ray": "Ray", "processes": "processes"}
"""What the page calls each engine."""

WORDS = {True: "met", False: "**missed**"}


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement and its bound."""

    says: str
    value: float | None
    """None: the event never occurred, so the bound is missed."""
    limit: float
    unit: str = ""
    at_least: bool = False
    """The bound is a minimum. False: it is a maximum."""
    saw: str = ""
    """Details that the page shows in parentheses."""
    clocked: bool = False
    """The value depends on what else runs on the machine, such as a throughput or a latency."""

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def required(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {_figure(self.limit)} {self.unit}".rstrip()


def plain(row: Row) -> dict[str, Any]:
    """Return the row as a JSON object. A value that is not finite becomes None."""
    value = None if row.value is None or not math.isfinite(row.value) else round(row.value, 4)
    return {**asdict(row), "value": value}


def holds(entry: Mapping[str, Any]) -> bool:
    """Whether the scenario was measured and all its bounds are met."""
    return entry["failed"] is None and bool(entry["rows"]) and all(Row(**row).holds for row in entry["rows"])


def verdict(entry: Mapping[str, Any]) -> str:
    if entry["failed"] is not None:
        return f"not measured: {entry['failed']}"
    return WORDS[holds(entry)]


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [Row(**row) for row in rows]
    return table(
        ("measurement", "required", "measured", "result"),
        [
            (row.says + (f" ({row.saw})" if row.saw else ""), row.required, _figure(row.value), WORDS[row.holds])
            for row in found
        ],
    )


def summary(results: Mapping[str, Any]) -> str:
    """Return a table with one row per engine and scenario."""
    return table(
        ("engine", "scenario", "bounds", "result"),
        [
            (
                ENGINES[entry["engine"]],
                f"{entry['bar']}: {entry['title']}",
                f"{sum(Row(**row).holds for row in entry['rows'])} of {len(entry['rows'])} met",
                verdict(entry),
            )
            for entry in results["scenarios"]
        ],
    )


def document(results: Mapping[str, Any]) -> str:
    """Return the text of `docs/reliability.md`."""
    return "\n\n".join(_paragraphs(results)) + "\n"


def _paragraphs(results: Mapping[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    yield "# Reliability"
    yield (
        "This page shows how app_toolkit behaves when processes are killed, when clients misbehave, and when the load "
        "exceeds the capacity. `python -m benchmarks.chaos --write-docs` generates it from the measurements in "
        "`benchmarks/chaos/results.json`."
    )
    yield (
        "Each scenario starts `app-toolkit run` with an instance of its own, on Ray or on processes of this machine "
        "(`--engine processes`). The handlers of the application write to a file, the ledger, when they start, end or "
        "are cancelled. The client sends requests, each with a unique ID, on a fixed schedule, and measures latencies "
        "from the scheduled time. *C* is the capacity in requests per second, measured in a closed loop at the start "
        "of the scenario; client and system share the machine."
    )
    yield (
        f"The machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']:.0f} GB, "
        f"{machine['system']}. " + ", ".join(f"{name} {version}" for name, version in results["versions"].items()) + "."
    )
    yield "```bash\npython -m benchmarks.chaos --write-docs\n```"
    bars = [entry["bar"] for entry in results["scenarios"]]
    yield "## Summary"
    yield summary(results)
    shown = set()
    for entry in sorted(results["scenarios"], key=lambda entry: bars.index(entry["bar"])):
        if entry["bar"] not in shown:
            shown.add(entry["bar"])
            yield f"## {entry['bar']}: {entry['title']}"
            yield entry["says"]
        if entry["failed"] is not None:
            yield f"Not measured on {ENGINES[entry['engine']]}: {entry['failed']}."
            continue
        yield (
            f"Measured on {ENGINES[entry['engine']]} on {entry['date']} in the {entry['form']} form, which took "
            f"{entry['seconds']:.0f} s."
        )
        yield rows_table(entry["rows"])


def _figure(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value == int(value) else number(value)
