"""Inject faults into a running app_toolkit, and compare the outcomes of its requests with bounds.

python -m benchmarks.chaos --write-docs          # all scenarios in the long form: about half an hour
python -m benchmarks.chaos B1 B9 --short         # two scenarios in the short form, about ten seconds each
python -m benchmarks.chaos --engine processes    # on processes of this machine instead of Ray
python -m benchmarks.chaos --read --write-docs   # write the page from the recorded results, without measuring

The exit status is 1 if a bound is missed. New results replace the recorded ones of the same scenarios.
"""

import argparse
import asyncio
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.chaos.report import ENGINES, document, holds, plain, rows_table, summary, verdict
from benchmarks.chaos.scenarios import SCENARIOS, Scenario
from benchmarks.chaos.system import ROOT, EngineName, launched
from benchmarks.servers import CannotStart

RESULTS = Path(__file__).parent / "results.json"
DOCS = ROOT / "docs" / "reliability.md"


def main() -> None:
    options = _options()
    known = json.loads(options.out.read_text()) if options.out.exists() else {"scenarios": []}
    if options.read:
        results = known
    else:
        bars = options.bars or [scenario.bar for scenario in SCENARIOS]
        chosen = [scenario for scenario in SCENARIOS if scenario.bar.partition(" ")[0] in bars]
        found = {(entry["engine"], entry["bar"]): entry for entry in known["scenarios"]}
        results = {
            "machine": machine(),
            "versions": {"Python": platform.python_version()}
            | {name: version(name) for name in ("app-toolkit", "ray", "fastapi", "uvicorn", "uvloop")},
        }
        for scenario in chosen:  # save each result at once, in case the next scenario hangs
            found[options.engine, scenario.bar] = measure(scenario, options.engine, options.short)
            order = [(engine, each.bar) for engine in ENGINES for each in SCENARIOS]
            results["scenarios"] = [found[key] for key in order if key in found]
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.write_docs:
        DOCS.write_text(document(results))
    print(summary(results))
    sys.exit(0 if all(map(holds, results["scenarios"])) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    bars = sorted({scenario.bar.partition(" ")[0] for scenario in SCENARIOS})
    parser.add_argument("bars", nargs="*", metavar="BAR", help=f"scenarios to run: {', '.join(bars)} (default: all)")
    parser.add_argument("--engine", choices=list(ENGINES), default="ray", help="the engine to measure (default: ray)")
    parser.add_argument("--short", action="store_true", help="run the short form, about ten seconds per scenario")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the recorded results")
    parser.add_argument("--read", action="store_true", help="read the recorded results, without measuring")
    parser.add_argument("--write-docs", action="store_true", help="write docs/reliability.md")
    options = parser.parse_args()
    if unknown := set(options.bars) - set(bars):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; the scenarios are {', '.join(bars)}")
    return options


def measure(scenario: Scenario, engine: EngineName, short: bool) -> dict[str, Any]:
    """Run a scenario against a new system. If it cannot be measured, the result contains the reason."""
    print(f"{scenario.bar}: {scenario.title} ...", flush=True)
    rows: list[dict[str, Any]] = []
    failed, began = _missing(scenario.options), time.monotonic()
    if failed is None:
        # A garbage collection would pause the clients for 0.2 s, which they would measure as latency.
        gc.disable()
        try:
            with launched(engine, *scenario.options) as system:
                began = time.monotonic()
                rows = [plain(row) for row in asyncio.run(scenario.run(system, short))]
        except CannotStart as error:
            print(error, file=sys.stderr)
            failed = "the application did not start"
        except Exception as error:  # continue with the other scenarios
            sys.excepthook(type(error), error, error.__traceback__)
            failed = f"the scenario failed with {type(error).__name__}"
        finally:
            gc.enable()
    entry = {
        "engine": engine,
        "bar": scenario.bar,
        "title": scenario.title,
        "says": scenario.says,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "form": "short" if short else "long",
        "seconds": round(time.monotonic() - began, 1),
        "failed": failed,
        "rows": rows,
    }
    print(f"{rows_table(rows)}\n{scenario.bar}: {verdict(entry)}, {entry['seconds']:.0f} s\n", flush=True)
    return entry


def _missing(options: Sequence[str]) -> str | None:
    """Return a message if `app-toolkit run` lacks one of these options."""
    text = subprocess.run(
        [sys.executable, "-m", "app_toolkit.cli", "run", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    absent = [option for option in options if option.startswith("--") and option not in text]
    return f"`app-toolkit run` has no {absent[0]}" if absent else None


if __name__ == "__main__":
    main()
