"""Run a test suite of others against plain uvicorn and against us; ends with 1 where we differ.

python -m benchmarks.conformance autobahn --write-docs
python -m benchmarks.conformance tutorial --write-docs
python -m benchmarks.conformance tutorial --only test_websockets
python -m benchmarks.conformance ecosystem --write-docs
python -m benchmarks.conformance ecosystem --only mcp_app socketio_app
python -m benchmarks.conformance clients --write-docs
python -m benchmarks.conformance clients --only openai_client --forms uvicorn
python -m benchmarks.conformance clients --only open_webui_client
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.conformance import autobahn, clients, ecosystem, tutorial
from benchmarks.conformance.report import (
    autobahn_table,
    clients_table,
    document,
    ecosystem_table,
    tutorial_table,
    with_ecosystem,
)
from benchmarks.report import with_document

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "parity.md"
TABLES = {
    "autobahn": autobahn_table,
    "tutorial": tutorial_table,
    "ecosystem": ecosystem_table,
    "clients": clients_table,
}
MERGED = {"ecosystem": ecosystem, "clients": clients}
"""Suites that merge what they find with what is known."""
RESULTS = ROOT / "benchmarks" / "conformance" / "results.json"


def main() -> int:
    options = _options()
    known: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found: dict[str, Any] = {}
    for found in _run(options, known.get(options.suite, {})):
        if options.suite in MERGED or not options.only:
            known[options.suite] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **found}
            options.out.write_text(json.dumps(known, indent=1) + "\n")
    if options.write_docs:
        page = with_document(DOCS.read_text(), document(known))
        DOCS.write_text(with_ecosystem(page, known["ecosystem"]) if "ecosystem" in known else page)
    print(TABLES[options.suite](found))
    for difference in found["differences"]:
        print(f"DIFFERS: {json.dumps(difference)}")
    return 1 if found["differences"] else 0


def _run(options: argparse.Namespace, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of the suite; of those that merge theirs, whenever there are more."""
    if (merging := MERGED.get(options.suite)) is not None:
        forms = [each for each in merging.FORMS if each in (options.forms or merging.FORMS)]
        yield from merging.run(known, options.only or (), forms)
        return
    if options.suite == "tutorial":
        yield tutorial.run(options.only or ())
        return
    try:
        yield autobahn.run(options.only or (autobahn.ALL if options.all else autobahn.MOST), options.ray)
    except autobahn.CannotRun as error:
        sys.exit(str(error))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=tuple(TABLES))
    parser.add_argument(
        "--only",
        nargs="+",
        help="cases (7.1.*), folders of test_tutorial, or modules of packages and clients (only these are kept)",
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=tuple({**ecosystem.FORMS, **clients.FORMS}),
        help="ecosystem and clients: only these",
    )
    parser.add_argument("--all", action="store_true", help="autobahn: also all cases on compression, which take long")
    parser.add_argument("--ray", action="store_true", help="autobahn: also on Ray, with two replicas")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are kept, of all suites")
    parser.add_argument("--write-docs", action="store_true", help="write docs/parity.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
