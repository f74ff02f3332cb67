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
    """Return the rows of one scenario, with the details of each, for a terminal."""
    found = [Row(**row) for row in rows]
    return table(
        ("measurement", "required", "measured", "result"),
        [
            (row.says + (f" ({row.saw})" if row.saw else ""), row.required, _figure(row.value), WORDS[row.holds])
            for row in found
        ],
    )


def scenario_text(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return what was measured of one scenario: what never occurred, and a table with a column for each engine."""
    columns = [{row["says"]: Row(**row) for row in entry["rows"]} for entry in entries]
    names = list(dict.fromkeys(name for column in columns for name in column))
    absent = [name for name in names if all(_never(column[name]) for column in columns if name in column)]
    if absent:
        yield f"Zero, as required: {'; '.join(_grouped(absent))}."
    if others := [name for name in names if name not in absent and any(_shown(column.get(name)) for column in columns)]:
        yield table(
            ("measurement (required)", *(ENGINES[entry["engine"]] for entry in entries)),
            [(name, *(_cell(column.get(name)) for column in columns)) for name in others],
        )


def _grouped(names: Sequence[str]) -> Iterator[str]:
    """Yield the names; those that differ only before a colon, as in `GET: failed`, once together."""
    subjects: dict[str, list[str]] = {}
    for name in names:
        subject, colon, rest = name.partition(": ")
        subjects.setdefault(rest if colon else name, []).append(subject if colon else "")
    for rest, of_rest in subjects.items():
        yield f"{rest} ({', '.join(of_rest)})" if any(of_rest) else rest


def _shown(row: Row | None) -> bool:
    """Return whether the table has the row. It leaves out minimums that only say that enough was measured."""
    return row is not None and (not row.at_least or bool(row.unit) or not row.holds)


def _never(row: Row) -> bool:
    return row.value == row.limit == 0 and not row.at_least


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{_figure(row.value)} ({row.required})" + ("" if row.holds else ", **missed**")


def summary(results: Mapping[str, Any]) -> str:
    """Return a table with one row per scenario and a column per engine."""
    scenarios: dict[str, dict[str, Mapping[str, Any]]] = {}
    for entry in results["scenarios"]:
        scenarios.setdefault(f"{entry['bar']}: {entry['title']}", {})[entry["engine"]] = entry
    shown = [engine for engine in ENGINES if any(engine in entries for entries in scenarios.values())]
    return table(
        ("scenario: bounds that are met", *(ENGINES[engine] for engine in shown)),
        [
            (name, *(_met(entries[engine]) if engine in entries else "" for engine in shown))
            for name, entries in scenarios.items()
        ],
    )


def _met(entry: Mapping[str, Any]) -> str:
    if entry["failed"] is not None:
        return verdict(entry)
    met = f"{sum(Row(**row).holds for row in entry['rows'])} of {len(entry['rows'])}"
    return met if holds(entry) else f"{met}, **missed**"


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
        "Each scenario starts `app-toolkit run` on Ray or on processes of this machine. Handlers write to a ledger "
        "when they start, end or are cancelled. Clients send requests on a fixed schedule, and measure latencies from "
        "the scheduled time. *C* is the capacity in requests per second, measured in a closed loop before."
    )
    yield (
        f"The machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']:.0f} GB, "
        f"{machine['system']}. " + ", ".join(f"{name} {version}" for name, version in results["versions"].items()) + "."
    )
    for engine in ENGINES:
        if of_engine := [entry for entry in results["scenarios"] if entry["engine"] == engine]:
            yield _how(engine, of_engine)
    yield "## Summary"
    yield summary(results)
    bars: dict[str, list[Mapping[str, Any]]] = {}
    for entry in results["scenarios"]:
        bars.setdefault(entry["bar"], []).append(entry)
    for bar, entries in bars.items():
        yield f"## {bar}: {entries[0]['title']}"
        yield entries[0]["says"]
        for entry in entries:
            if entry["failed"] is not None:
                yield f"Not measured on {ENGINES[entry['engine']]}: {entry['failed']}."
        if measured := [entry for entry in entries if entry["failed"] is None]:
            yield from scenario_text(measured)


def _how(engine: str, entries: Sequence[Mapping[str, Any]]) -> str:
    dates, forms = sorted({entry["date"] for entry in entries}), sorted({entry["form"] for entry in entries})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{ENGINES[engine]}: {period}, {' and '.join(forms)} form."


def _figure(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value == int(value) else number(value)
