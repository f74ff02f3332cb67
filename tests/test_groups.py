"""A change selects groups of tests. A test of a selected group is not skipped."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.groups import AGE_S, BASE, GROUPS, REQUIRE, ROOT, changed_files, selected
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("changed", "groups"),
    [
        ("docs/index.md", ["docs"]),
        ("app_toolkit/control/application.py", []),
        ("app_toolkit/streaming/redis.py", ["redis", "browser"]),
        ("app_toolkit/chat/shared_limits.py", ["redis", "browser", "clients"]),
        ("docs/stateful.md", ["redis", "docs", "ecosystem"]),
        ("examples/chat/static/chat.js", ["browser", "templates", "docs", "examples"]),
        ("app_toolkit/declare/toolkit.py", ["docs", "examples", "typechecks", "projects", "scripts"]),
        ("benchmarks/load.py", ["benchmarks"]),
        ("app_toolkit/exchange/exchange.py", ["ecosystem", "observability"]),
        ("app_toolkit/chat/transformers.py", ["browser", "transformers", "clients"]),
        ("tests/streaming/test_logs.py", ["redis"]),
        ("tests/templates/test_react_page.py", ["templates", "projects"]),
        ("pyproject.toml", [*GROUPS]),
    ],
)
def test_changed_file_runs_its_groups(changed: str, groups: list[str]) -> None:
    assert selected(["LICENSE", changed]) == groups
    assert selected([]) == []


def test_group_has_tests_and_its_paths_and_its_extra_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for name, group in GROUPS.items():
        assert group.tests(), name
        assert not [path for path in group.changes + group.paths if not list(ROOT.glob(f"{path.rstrip('/')}*"))]
        assert group.extra in ("", *extras)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit of each file: `first`, and `second` and `third`, which are both of the last hour."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", BASE):
        monkeypatch.delenv(name, raising=False)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.com")
    git(tmp_path, "init", "--quiet")
    for number, name in enumerate(("first", "second", "third")):
        (tmp_path / name).touch()
        git(tmp_path, "add", name)
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{1_000_000_000 + (AGE_S + number if number else 0)} +0000")
        git(tmp_path, "commit", "--quiet", "-m", name)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, timeout=PATIENCE_S)


def test_commit_is_compared_with_the_newest_commit_that_is_twelve_hours_older(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed_files(repository) == ["second", "third"]
    (repository / "first").write_text("not committed")
    assert changed_files(repository) == ["first", "second", "third"]
    monkeypatch.setenv(BASE, "HEAD~1")
    assert changed_files(repository) == ["first", "third"]


def test_commit_is_compared_with_nothing_if_no_commit_is_older(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "checkout", "--quiet", "HEAD~2")
    assert changed_files(repository) is None


def test_required_test_fails_if_its_program_is_missing(tmp_path: Path) -> None:
    path = "tests/streaming/test_logs.py"
    one = f"{path}::test_an_id_is_used_once[redis]"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), REQUIRE: "redis"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert re.search(r"\d+ error\b", done.stdout), done.stdout
    assert "must not be skipped with APP_TOOLKIT_TEST_REQUIRE: " in done.stdout
    assert "no redis-server is on PATH" in done.stdout
