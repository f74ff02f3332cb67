"""The template `api` makes a project that works as it is."""

import compileall
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter

from tests.docs.pages import Page, commands
from tests.docs.taken import only_taken, take, typed

CHECKOUT = Path(__file__).resolve().parents[2]
TEMPLATE = CHECKOUT / "templates/api"


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cookiecutter notes the last answers below the home folder, and takes defaults from there."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COOKIECUTTER_CONFIG", str(home / "config.yaml"))
    (home / "config.yaml").write_text(f"cookiecutters_dir: {home}/c\nreplay_dir: {home}/r\n")


def make(folder: Path, **answers: str) -> Path:
    return Path(cookiecutter(str(TEMPLATE), no_input=True, output_dir=str(folder), extra_context=answers))


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    # The project's own configuration decides, not what runs us.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make(tmp_path)


def test_the_defaults_make_a_project_that_passes_its_own_tests(project: Path) -> None:
    done = run(project, "pytest", "-q")
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_laid_out_as_its_project_file_says(project: Path) -> None:
    done = run(project, "app_toolkit.cli", "plan")
    assert done.returncode == 0, done.stderr
    assert "application my-api (my_api.app:app" in done.stdout
    assert "deployment=events  kind=ingress  replicas=2" in done.stdout


@pytest.mark.parametrize("license", ["Apache-2.0", "MIT", "none"])
@pytest.mark.parametrize("python_version", ["3.11", "3.12", "3.13"])
def test_every_choice_is_whole_and_clean(tmp_path: Path, license: str, python_version: str) -> None:
    project = make(tmp_path, license=license, python_version=python_version)
    files = [path for path in project.rglob("*") if path.is_file()]
    for path in files:
        text = path.read_text("utf-8")
        assert "{{" not in text, path
        assert "{%" not in text, path
        assert text.endswith("\n") or not text, path
    assert (project / "LICENSE").is_file() == (license != "none")
    table = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    assert table["requires-python"] == f">={python_version}"
    assert table.get("license") == (None if license == "none" else license)
    assert compileall.compile_dir(project, quiet=1)
    for check in (("ruff", "check", "--no-cache", "."), ("ruff", "format", "--no-cache", "--check", ".")):
        done = run(project, *check)
        assert done.returncode == 0, done.stdout + done.stderr


def test_other_names_go_everywhere(tmp_path: Path) -> None:
    project = make(tmp_path, project_name="Zoo Keeper's")
    assert project.name == "zoo-keeper-s"
    assert (project / "zoo_keeper_s/app.py").is_file()
    assert run(project, "pytest", "-q").returncode == 0


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ({"project_slug": "Zoo!"}, "project_slug 'Zoo!' is not made of"),
        ({"project_slug": "-zoo"}, "project_slug '-zoo' is not made of"),
        ({"package_name": "Zoo"}, "package_name 'Zoo' is not a small letter followed by"),
        ({"package_name": "9zoo"}, "package_name '9zoo' is not a small letter followed by"),
        ({"package_name": "class"}, "package_name 'class' is a word or a module of Python itself"),
        ({"package_name": "json"}, "package_name 'json' is a word or a module of Python itself"),
        ({"package_name": "fastapi"}, "package_name 'fastapi' would hide another package"),
        ({"package_name": "tests"}, "package_name 'tests' would hide another package"),
        ({"app_toolkit": "checkout"}, "app_toolkit 'checkout' is not index, a URL such as git+https://..., or the whole"),
        ({"app_toolkit": "/nowhere/at/all"}, "app_toolkit '/nowhere/at/all' is no checkout: it has no pyproject.toml"),
        ({"app_toolkit": "git+https://a/b c"}, "app_toolkit 'git+https://a/b c' holds a quote, a backslash or a blank"),
        (
            {"project_name": 'Zoo "x"', "project_slug": "zoo"},
            "project_name 'Zoo \"x\"' is empty, or holds a quote",
        ),
    ],
)
def test_a_name_that_would_not_work_is_refused_and_nothing_is_left(
    tmp_path: Path, answers: dict[str, str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    output.mkdir()
    with pytest.raises(FailedHookException):
        make(output, **answers)
    assert sentence in capfd.readouterr().err
    assert list(output.iterdir()) == []


def test_every_command_of_its_readme_is_taken(project: Path) -> None:
    readme = Page("README.md", (project / "README.md").read_text("utf-8"))
    with only_taken(project):
        for shell, _ in typed(readme):
            for command in commands(shell):
                take(command)


@pytest.mark.parametrize(
    ("answers", "requirement"),
    [
        ({}, f"app-toolkit @ {CHECKOUT.as_uri()}"),
        ({"app_toolkit": "index"}, "app-toolkit"),
        (
            {"app_toolkit": "git+https://example.org/app_toolkit@v1"},
            "app-toolkit @ git+https://example.org/app_toolkit@v1",
        ),
    ],
)
def test_app_toolkit_is_installed_from_the_checkout_of_the_template_or_as_somebody_says(
    tmp_path: Path, answers: dict[str, str], requirement: str
) -> None:
    project = tomllib.loads((make(tmp_path, **answers) / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dependencies"] == [requirement]
    direct = project["tool"]["hatch"].get("metadata", {}).get("allow-direct-references", False)
    assert direct == (" @ " in requirement)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_installs_from_the_checkout_and_passes_its_tests_there(tmp_path: Path, project: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # What app_toolkit itself depends on is there already, and need not come from an index once more.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    for command in (
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{project}[test]"),
        (python, "-P", "-c", f"import app_toolkit; assert app_toolkit.__file__.startswith({str(packages)!r})"),
        (python, "-m", "pytest", "-q"),
    ):
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr


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
    template = clone / "templates" / "api"
    shutil.copytree(TEMPLATE, template)
    shutil.copy(CHECKOUT / "pyproject.toml", clone)
    (clone / ".git").mkdir()
    (clone / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
    assert runpy.run_path(str(template / "local_extensions.py"))["source"]() == url
