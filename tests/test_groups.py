"""Which groups of tests a change runs, and that none of their tests is skipped then."""

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
        ("docs/index.md", []),
        ("app_toolkit/core/rollout.py", []),
        ("app_toolkit/streaming/redis.py", ["redis", "browser"]),
        ("app_toolkit/chat/shared_limits.py", ["redis", "browser", "clients"]),
        ("docs/messages.md", ["redis"]),
        ("examples/chat/static/chat.js", ["browser", "templates"]),
        ("app_toolkit/chat/transformers.py", ["browser", "transformers", "clients"]),
        ("tests/streaming/test_logs.py", ["redis"]),
        ("tests/templates/test_react_page.py", ["templates"]),
        ("pyproject.toml", [*GROUPS]),
    ],
)
def test_a_change_runs_the_groups_that_it_concerns(changed: str, groups: list[str]) -> None:
    assert selected(["README.md", changed]) == groups
    assert selected([]) == []


def test_each_group_has_tests_and_its_paths_and_its_extra_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for name, group in GROUPS.items():
        assert group.tests(), name
        assert not [path for path in group.changes if not list(ROOT.glob(f"{path.rstrip('/')}*"))]
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


def test_a_commit_is_compared_with_the_newest_one_of_twelve_hours_before(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed_files(repository) == ["second", "third"]
    (repository / "first").write_text("not committed")
    assert changed_files(repository) == ["first", "second", "third"]
    monkeypatch.setenv(BASE, "HEAD~1")
    assert changed_files(repository) == ["first", "third"]


def test_without_an_older_commit_there_is_nothing_to_compare_with(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "checkout", "--quiet", "HEAD~2")
    assert changed_files(repository) is None


def test_a_required_test_fails_if_its_program_is_missing(tmp_path: Path) -> None:
    path = "tests/streaming/test_logs.py"
    one = f"{path}::test_an_id_is_used_once[redis]"
    environment = {**os.environ, "PATH": str(tmp_path)}
    for required, outcome in (("", "skipped"), ("redis", "error")):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one],
            cwd=ROOT,
            env={**environment, REQUIRE: required},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert re.search(rf"\d+ {outcome}\b", done.stdout), done.stdout
    assert "must not be skipped with APP_TOOLKIT_TEST_REQUIRE: " in done.stdout
    assert "no redis-server is on PATH" in done.stdout
