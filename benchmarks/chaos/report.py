"""What was seen, judged, and told. Pure: no clock, no process, no file."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import number, table

WORDS = {True: "holds", False: "**missed**"}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was measured, and its bound."""

    says: str
    value: float | None
    """None: it never came about, which no bound allows."""
    limit: float
    unit: str = ""
    at_least: bool = False
    """The bound is the least that is wanted, not the most."""
    saw: str = ""
    """What else is worth knowing of it."""
    clocked: bool = False
    """A speed, a latency, or how often one could look: it depends on who else uses the machine."""

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {_figure(self.limit)} {self.unit}".rstrip()


def plain(row: Row) -> dict[str, Any]:
    """As JSON can say it."""
    value = None if row.value is None or not math.isfinite(row.value) else round(row.value, 4)
    return {**asdict(row), "value": value}


def holds(entry: Mapping[str, Any]) -> bool:
    """Whether a scenario was measured, and all its rows hold."""
    return entry["failed"] is None and bool(entry["rows"]) and all(Row(**row).holds for row in entry["rows"])


def verdict(entry: Mapping[str, Any]) -> str:
    if entry["failed"] is not None:
        return f"not measured: {entry['failed']}"
    return WORDS[holds(entry)]


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [Row(**row) for row in rows]
    return table(
        ("what", "wanted", "measured", "verdict"),
        [
            (row.says + (f" ({row.saw})" if row.saw else ""), row.wanted, _figure(row.value), WORDS[row.holds])
            for row in found
        ],
    )


def summary(results: Mapping[str, Any]) -> str:
    """A line for each scenario."""
    return table(
        ("scenario", "bounds", "verdict"),
        [
            (
                f"{entry['bar']}: {entry['title']}",
                f"{sum(Row(**row).holds for row in entry['rows'])} of {len(entry['rows'])} hold",
                verdict(entry),
            )
            for entry in results["scenarios"]
        ],
    )


def document(results: Mapping[str, Any]) -> str:
    """`docs/reliability.md`."""
    return "\n\n".join(_paragraphs(results)) + "\n"


def _paragraphs(results: Mapping[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    yield "# Reliability"
    yield (
        "What becomes of requests when processes die, clients misbehave and too much is asked. This page is written by "
        "`python -m benchmarks.chaos --write-docs`; no figure in it was typed by hand. What was measured is in "
        "`benchmarks/chaos/results.json`."
    )
    yield (
        "Each scenario starts `app-toolkit run` anew on a Ray of its own, with an ordinary app whose handlers write "
        "into a ledger when they start, end or are cancelled. Requests are sent on a fixed schedule, each with an id "
        "of its own; a latency counts from when its request was due. *C* is how many requests a second the client and "
        "the system, which share the machine, manage in a closed loop right before."
    )
    yield (
        f"The machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']:.0f} GB, "
        f"{machine['system']}. " + ", ".join(f"{name} {version}" for name, version in results["versions"].items()) + "."
    )
    yield "```bash\npython -m benchmarks.chaos --write-docs\n```"
    yield "## In short"
    yield summary(results)
    for entry in results["scenarios"]:
        yield f"## {entry['bar']}: {entry['title']}"
        yield entry["says"]
        if entry["failed"] is not None:
            yield f"Not measured: {entry['failed']}."
            continue
        yield f"Measured on {entry['date']}, in its {entry['form']} form, {entry['seconds']:.0f} s."
        yield rows_table(entry["rows"])


def _figure(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value == int(value) else number(value)
