"""The answers that are refused, and the place that app_toolkit is installed from."""

import json
import keyword
import shutil
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from cookiecutter.exceptions import FailedHookException
from hypothesis import given, settings
from hypothesis import strategies as st

from .projects import CHECKOUT, KINDS, TEMPLATES, extension, make

EXTENSION = extension()
ANSWERS = {"project_name": "Zoo", "project_slug": "zoo", "package_name": "zoo", "app_toolkit": "index"}
WORDS = st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True) | st.text("abz019-_. /\\\"'{%\n", max_size=70)


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ({"project_slug": "Zoo!"}, "project_slug 'Zoo!' is not made of"),
        ({"project_slug": "-zoo"}, "project_slug '-zoo' is not made of"),
        ({"project_slug": "sub/zoo"}, "project_slug 'sub/zoo' is not made of"),
        ({"project_slug": "../zoo"}, "project_slug '../zoo' is not made of"),
        ({"project_name": " "}, "project_name ' ' is empty, or has a quote"),
        ({"project_name": "N" * 51}, "has 51 characters: use at most 50"),
        ({"package_name": "Zoo"}, "package_name 'Zoo' is not a small letter followed by"),
        ({"package_name": "9zoo"}, "package_name '9zoo' is not a small letter followed by"),
        ({"package_name": "class"}, "package_name 'class' is a word or a module of Python itself"),
        ({"package_name": "json"}, "package_name 'json' is a word or a module of Python itself"),
        ({"package_name": "fastapi"}, "package_name 'fastapi' would hide another package or folder"),
        ({"package_name": "tests"}, "package_name 'tests' would hide another package or folder"),
        (
            {"app_toolkit": "checkout"},
            "app_toolkit 'checkout' is not index, a URL such as git+https://..., or the whole",
        ),
        ({"app_toolkit": "/nowhere/at/all"}, "app_toolkit '/nowhere/at/all' is no checkout: it has no pyproject.toml"),
        ({"app_toolkit": "git+https://a/b c"}, "app_toolkit 'git+https://a/b c' has a quote, a backslash or a blank"),
        ({"project_name": 'Zoo "x"', "project_slug": "zoo"}, "project_name 'Zoo \"x\"' is empty, or has a quote"),
    ],
)
def test_an_answer_that_would_not_work_is_refused_and_leaves_no_files(
    tmp_path: Path, answers: dict[str, str], sentence: str
) -> None:
    output = tmp_path / "output"
    output.mkdir()
    with pytest.raises(FailedHookException) as refused:
        make(output, **answers)
    assert str(refused.value).startswith("Error: ")
    assert sentence in str(refused.value)
    assert list(output.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_template_checks_its_answers(tmp_path: Path, kind: Any) -> None:
    output = tmp_path / "output"
    with pytest.raises(FailedHookException, match="package_name 'class'"):
        make(output, kind.template, package_name="class", **kind.answers)
    assert not output.exists()


@settings(max_examples=60)
@given(name=WORDS | st.text(max_size=60), slug=WORDS, package=WORDS)
def test_accepted_names_are_safe_in_every_file(name: str, slug: str, package: str) -> None:
    answers = ANSWERS | {"project_name": name, "project_slug": slug, "package_name": package}
    if EXTENSION["mistake"](answers) is None:
        assert json.loads(f'"{name}"') == name
        assert Path("x", slug).parent == Path("x")
        assert slug == slug.lower().strip("-")
        assert package.isidentifier()
        assert not keyword.iskeyword(package)


def test_ordinary_names_are_accepted() -> None:
    assert EXTENSION["mistake"](ANSWERS) is None
    assert EXTENSION["mistake"](ANSWERS | {"project_name": "Zoo Keeper's café"}) is None


def test_a_checkout_with_the_templates_is_the_default() -> None:
    assert EXTENSION["source"]() == str(CHECKOUT)


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://git.example/org/repo.git", "git+https://git.example/org/repo.git"),
        ("https://user:TOKEN@git.example:8443/org/repo.git", "git+https://git.example:8443/org/repo.git"),
        ("https://TOKEN@git.example/org/repo.git", "git+https://git.example/org/repo.git"),
        ("git@git.example:org/repo.git", "git+ssh://git@git.example/org/repo.git"),
        ("git.example:org/repo.git", "git+ssh://git.example/org/repo.git"),
        ("ssh://git@git.example/org/repo.git", "git+ssh://git@git.example/org/repo.git"),
        ("ssh://git:SECRET@git.example:2222/org/repo.git", "git+ssh://git@git.example:2222/org/repo.git"),
        ("file:///srv/repo.git", "git+file:///srv/repo.git"),
        ("/srv/repo.git", "git+file:///srv/repo.git"),
    ],
)
def test_a_project_installs_from_the_remote_of_a_clone_without_its_credentials(
    tmp_path: Path, remote: str, url: str
) -> None:
    clone = tmp_path / ".cookiecutters" / "app-toolkit"
    shutil.copytree(TEMPLATES / "shared", clone / "templates/shared")
    shutil.copy(CHECKOUT / "pyproject.toml", clone)
    (clone / ".git").mkdir()
    (clone / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
    assert extension(clone / "templates/shared/extension.py")["source"]() == url


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (None, "index"),
        (
            {"url": "https://git.example/repo.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "git+https://git.example/repo.git@0a1b",
        ),
        ({"url": CHECKOUT.as_uri(), "dir_info": {}}, str(CHECKOUT)),
        ({"url": "file:///srv/a%20b-py3-none-any.whl", "archive_info": {}}, "file:///srv/a%20b-py3-none-any.whl"),
        ({"url": "https://example.org/a.whl", "archive_info": {}}, "https://example.org/a.whl"),
    ],
    ids=["index", "git", "folder", "wheel", "url"],
)
def test_installed_template_installs_app_toolkit_from_its_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, source: str
) -> None:
    packages = tmp_path / "site-packages"
    shutil.copytree(TEMPLATES / "shared", packages / "app_toolkit/templates/shared")
    (packages / "app_toolkit-1.dist-info").mkdir()
    (packages / "app_toolkit-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: app-toolkit\nVersion: 1\n")
    if origin:
        (packages / "app_toolkit-1.dist-info/direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(packages)
    assert Distribution.from_name("app-toolkit").version == "1"
    assert extension(packages / "app_toolkit/templates/shared/extension.py")["source"]() == source
