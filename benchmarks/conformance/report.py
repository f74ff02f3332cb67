"""Write the pages of results: pure functions from the JSON document to text."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.conformance.clients import CUT_AFTER, NOT_SERVED, PASSED
from benchmarks.conformance.clients import FORMS as CLIENT_FORMS
from benchmarks.conformance.ecosystem import FORMS
from benchmarks.report import table

GROUPS = {
    "1": "framing",
    "2": "pings and pongs",
    "3": "reserved bits",
    "4": "opcodes",
    "5": "fragmentation",
    "6": "UTF-8",
    "7": "closing",
    "9": "limits and performance",
    "10": "automatic fragmentation",
    "12": "compression",
    "13": "compression with parameters",
}


def document(results: Mapping[str, Any]) -> str:
    """Return the section with the suites that the results have."""
    return "\n\n".join(_document(results)) + "\n"


def _document(results: Mapping[str, Any]) -> Iterator[str]:
    yield "# Conformance"
    yield (
        "Public test suites compare app_toolkit with plain uvicorn, case by case. The goal is the same result in each "
        "case. These commands write this section, and end with status 1 if a case differs:"
    )
    yield (
        "```bash\npython -m benchmarks.conformance autobahn --write-docs     # needs a Python 2.7\n"
        "python -m benchmarks.conformance tutorial --write-docs\n"
        "python -m benchmarks.conformance clients --write-docs      # needs Node, npm, Chromium and 9 GB of disk\n```"
    )
    yield (
        "In the first two suites, a proxy and one replica run without Ray on the side of app_toolkit. Both sides run "
        "in threads of one process, over real sockets, with httptools and websockets-sansio."
    )
    if "autobahn" in results:
        yield from _autobahn(results["autobahn"])
    if "tutorial" in results:
        yield from _tutorial(results["tutorial"])
    if "clients" in results:
        yield from _clients(results["clients"])


def _autobahn(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## WebSockets: the Autobahn test suite"
    yield f"The fuzzing client of `{results['suite']}` against an app that echoes, on {results['date']}."
    yield autobahn_table(results)
    unsteady = [case for case, said in results["cases"].items() if any(len(each) > 1 for each in said.values())]
    if unsteady:
        yield (
            f"The verdict of {', '.join(unsteady)} depends on timing, also on plain uvicorn: the client sends single "
            "bytes and checks what was echoed before the connection failed. A case that differs is run again. It "
            "counts as different if app_toolkit did something that plain uvicorn never did."
        )
    if results["differences"]:
        yield "What differs, as [behaviour, behaviour at the close, close code]:"
        yield "\n".join(
            f"- {case}: " + "; ".join(f"{form} {seen}" for form, seen in results["cases"][case].items())
            for case in results["differences"]
        )
    yield "The suite calls results that it allows INFORMATIONAL or NON-STRICT."


def autobahn_table(results: Mapping[str, Any]) -> str:
    """Return the table of the Autobahn suite, with one row for each group of cases."""
    groups: dict[str, list[str]] = {}
    for case in results["cases"]:
        groups.setdefault(case.partition(".")[0], []).append(case)
    rows = [
        (
            f"{group}: {GROUPS.get(group, '')}",
            f"{len(cases)}",
            *(_verdicts([results["cases"][case][form] for case in cases]) for form in results["forms"]),
            f"{sum(case in results['differences'] for case in cases)}",
        )
        for group, cases in groups.items()
    ]
    everything = list(results["cases"].values())
    total = (
        "all",
        f"{len(everything)}",
        *(_verdicts([each[form] for each in everything]) for form in results["forms"]),
        f"{len(results['differences'])}",
    )
    return table(("cases", "number", *results["forms"], "differ"), [*rows, total])


def _verdicts(seen: list[list[list[Any]]]) -> str:
    counts = Counter(each[0][0] for each in seen)
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())


def _tutorial(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## HTTP: the tests of FastAPI's tutorial"
    yield (
        f"From the source distribution of FastAPI {results['fastapi']}, on {results['date']}. Instead of `TestClient`, "
        "a client sends the requests of the unchanged tests over a socket and records each response. Then a seeded "
        "generator sends requests to every path in the OpenAPI document of each app, with valid and invalid values."
    )
    yield tutorial_table(results)
    yield (
        "The comparison leaves out the headers `date`, `server` and `x-request-id`, and the order of keys in JSON "
        "objects. A response is unsteady if two runs on plain uvicorn differ, for example in a time or a random id."
    )
    if results["intended"]:
        yield "Different by design:"
        yield "\n".join(f"- `{where}`: {why}." for where, why in results["intended"].items())


def tutorial_table(results: Mapping[str, Any]) -> str:
    rows = [
        ("apps", f"{results['apps']:,}"),
        ("tests", f"{results['tests']:,}"),
        ("tests that pass on plain uvicorn", f"{results['passed']['uvicorn']:,}"),
        ("tests that pass behind the proxy", f"{results['passed']['app_toolkit']:,}"),
        ("responses compared", f"{results['compared']:,}"),
        ("of these, to generated requests", f"{results['probes']:,}"),
        ("unsteady responses", f"{results['unsteady']:,}"),
        ("different by design", f"{len(results['intended']):,}"),
        ("**differences**", f"{len(results['differences']):,}"),
    ]
    return table(("", "number"), rows)


def _clients(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## Chat clients"
    yield (
        "The published clients, each in its own environment, against one app with `openai_router`, `anthropic_router`, "
        "`ag_ui_router`, `ollama_router`, `ai_sdk_router`, with and without stored conversations, "
        "`websocket_router`, a chain with an MCP server, a resumable route and a WebSocket route. The app and the "
        "commands have the default settings: `run -n 2` has two replicas of the ingress, which share a stream log and "
        f"a SQLite file. The table has the cases that pass, on {results['date']}."
    )
    yield clients_table(results)
    yield (
        "`benchmarks/conformance/clients.py` lists the cases, such as streams, tools, errors, retries, aborts and "
        f"reconnects. After an abort, the model must have stopped within 2 s. A relay resets the connections after "
        f"{CUT_AFTER:,} bytes, and every event must arrive once."
    )
    if results["differences"]:
        yield "The cases that fail:"
        yield "\n".join("- " + "; ".join(each.values()) for each in results["differences"])


def clients_table(results: Mapping[str, Any]) -> str:
    """Return a row for each client: how many of its cases pass in each form."""
    cases = results["cases"]
    shown = [form for form in CLIENT_FORMS if any(form in each for of in cases.values() for each in of.values())]
    rows = [
        (f"{title} {results['versions'][title]}", *(_passed(of_client, form) for form in shown))
        for title, of_client in cases.items()
    ]
    return table(("client", *shown), rows)


def _passed(cases: Mapping[str, Mapping[str, str]], form: str) -> str:
    verdicts = [each[form] for each in cases.values() if form in each]
    missing = verdicts.count(NOT_SERVED)
    passed = f"{verdicts.count(PASSED)}/{len(verdicts) - missing}" if verdicts else ""
    return f"{passed}, {missing} not served" if missing else passed


BEGIN, END = "<!-- python -m benchmarks.conformance ecosystem --write-docs -->", "<!-- end -->"
"""Between these lines of docs/parity.md is what the suite writes."""


def with_ecosystem(page: str, results: Mapping[str, Any]) -> str:
    """The page on parity with the table of packages as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    versions = {name: number for each in results["versions"].values() for name, number in sorted(each.items())}
    versions["mcp"] = " and ".join(sorted({each["mcp"] for each in results["versions"].values() if "mcp" in each}))
    listed = ", ".join(
        f"{name} {number}" for name, number in sorted(versions.items(), key=lambda each: each[0].lower())
    )
    return f"{before}{BEGIN}\n\n{ecosystem_table(results)}\n\nOn {results['date']}, with {listed}.\n\n{END}{after}"


def ecosystem_table(results: Mapping[str, Any]) -> str:
    """A row per package and kind of client: how many clients each form served."""
    cases = results["cases"]
    shown = [form for form in FORMS if any(form in each for each in cases.values())]
    rows = [
        (name, *(f"{each[form]['served']}/{each[form]['clients']}" if form in each else "" for form in shown))
        for name, each in cases.items()
    ]
    return table(("package", *shown), rows)
