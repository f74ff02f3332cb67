"""The arithmetic of the ecosystem suite: what counts as worse, what is kept, and the table."""

from typing import Any

import pytest

from benchmarks.conformance.ecosystem import AS_UVICORN, FORMS, PACKAGES, differences, merged
from benchmarks.conformance.report import BEGIN, END, ecosystem_table, with_ecosystem


def forms(clients: int = 30, **served: int) -> dict[str, Any]:
    """All forms serve everybody, except those named."""
    named = {form.translate({ord(sign): "_" for sign in " -,"}): form for form in FORMS}
    assert served.keys() <= named.keys()
    return {
        form: {"served": served.get(word, clients), "clients": clients, "failures": {}} for word, form in named.items()
    }


def found(**cases: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2026-11-23",
        "versions": {"one": {"mcp": "2.3", "gradio": "6"}, "other": {"mcp": "1.30"}},
        "cases": cases,
        "differences": list(differences(cases)),
    }


def test_serving_all_clients_is_no_difference() -> None:
    assert list(differences({"a": forms()})) == []


@pytest.mark.parametrize("form", ["dev", "run__n_1", "run__n_2__pinned", "run__n_3__affinity"])
def test_a_form_that_keeps_sessions_and_serves_a_client_less_than_uvicorn_is_a_difference(form: str) -> None:
    [difference] = differences({"a": forms(**{form: 29})})
    assert difference["where"] == "a"
    assert difference.keys() & set(AS_UVICORN)


def test_no_form_need_be_better_than_uvicorn() -> None:
    served = forms(uvicorn=20, workers_2=20, dev=20, run__n_1=25, run__n_2__pinned=20, run__n_3__affinity=20)
    assert list(differences({"a": served})) == []


@pytest.mark.parametrize(
    ("workers", "ours", "is_worse"), [(15, 10, False), (15, 2, True), (30, 29, False), (30, 20, True)]
)
def test_two_replicas_are_worse_than_two_workers_only_beyond_noise(workers: int, ours: int, is_worse: bool) -> None:
    said = list(differences({"a": forms(workers_2=workers, run__n_2=ours)}))
    assert bool(said) == is_worse


def test_two_replicas_may_be_better_than_two_workers() -> None:
    assert list(differences({"a": forms(workers_2=0)})) == []


def test_packages_that_are_run_again_replace_their_own_results_alone() -> None:
    one, other = (next(iter(package.clients.values())) for package in PACKAGES[:2])
    before = found(**{other: forms(dev=3), one: forms(dev=4, uvicorn=5)})
    after = merged(before, found(**{one: {"dev": forms()["dev"]}}))
    assert list(after["cases"]) == [one, other]
    assert after["cases"][one] == forms(uvicorn=5)
    assert [each["where"] for each in after["differences"]] == [other]


def test_the_table_stands_between_its_marks_and_nothing_else_changes() -> None:
    results = found(a=forms(dev=7))
    page = with_ecosystem(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n", results)
    assert page.startswith(f"before\n\n{BEGIN}\n")
    assert page.endswith(f"{END}\n\nafter\n")
    assert ecosystem_table(results) in page
    assert "old" not in page
    assert "gradio 6, mcp 1.30 and 2.3." in page
    assert "7/30" in page
    assert with_ecosystem(page, results) == page
