"""Every template creates a project that works as it is."""

import compileall
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from cookiecutter.main import cookiecutter

from tests.docs.pages import Page, commands, page
from tests.docs.taken import only_taken, take, typed

from .projects import CHECKOUT, KINDS, NAMES, TEMPLATES, Kind, make, run

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def files(project: Path) -> list[Path]:
    return [path for path in project.rglob("*") if path.is_file()]


def check_style(project: Path) -> None:
    for check in (("ruff", "check", "--no-cache", "."), ("ruff", "format", "--no-cache", "--check", ".")):
        done = run(project, *check)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_project_passes_its_own_tests(tmp_path: Path) -> None:
    # All projects share one process, because each needs seconds for its imports. No folder has the name of a package.
    names = ["Zoo Keeper's", "Text Batches", "First Talk", "React Talk"]
    made = [make(tmp_path, k.template, project_name=n, **k.answers) for k, n in zip(KINDS, names, strict=True)]
    tests = [str(project / "tests") for project in made]
    options = ("-q", "-W", "error", "--import-mode", "importlib", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    done = run(tmp_path / "home", "pytest", *options, *tests, PYTHONPATH=os.pathsep.join(map(str, [*made, CHECKOUT])))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [project.name for project in made] == ["zoo-keeper-s", "text-batches", "first-talk", "react-talk"]


@pytest.mark.parametrize(
    ("license", "python_version"), [("Apache-2.0", "3.11"), ("MIT", "3.12"), ("none", "3.13")], ids=["a", "b", "c"]
)
@each_kind
def test_every_choice_is_complete_and_clean(tmp_path: Path, kind: Kind, license: str, python_version: str) -> None:
    project = make(tmp_path, kind.template, license=license, python_version=python_version, **kind.answers)
    for path in files(project):
        if path.suffix == ".woff2":
            continue
        text = path.read_text("utf-8")
        assert "cookiecutter" not in text, path
        assert "{%" not in text, path
        assert "vendor" in path.parts or not text or re.search(r"\S\n\Z", text), path
    assert (project / "LICENSE").is_file() == (license != "none")
    table = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    assert table["requires-python"] == f">={python_version}"
    assert table.get("license") == (None if license == "none" else license)
    assert f"FROM python:{python_version}-slim" in (project / "Dockerfile").read_text("utf-8")
    assert compileall.compile_dir(project, quiet=1)
    check_style(project)


@pytest.mark.slow
def test_a_project_is_laid_out_as_its_project_file_says(tmp_path: Path) -> None:
    done = run(make(tmp_path), "app_toolkit.cli", "plan")
    assert done.returncode == 0, done.stderr
    assert "application my-api (my_api.app:app" in done.stdout
    assert "deployment=events  kind=ingress  replicas=2" in done.stdout


def test_a_chat_has_the_front_end_that_was_chosen(tmp_path: Path) -> None:
    page = make(tmp_path / "a", "chat", frontend="built-in")
    react = make(tmp_path / "b", "chat", frontend="react")
    source = CHECKOUT / "examples/chat/static"
    copied = {path.relative_to(page / "my_chat/static") for path in files(page / "my_chat/static")}
    assert copied == {path.relative_to(source) for path in files(source)}
    own = "".join(path.read_text("utf-8") for path in (page / "my_chat/static").iterdir() if path.is_file())
    assert "My Chat" in own
    assert "ocumentation" not in own
    assert not (page / "frontend").exists()
    assert not (react / "my_chat/static").exists()
    assert "useChat" in (react / "frontend/src/runtime.ts").read_text("utf-8")


@each_kind
def test_the_readme_starts_with_two_commands_and_every_command_is_taken(tmp_path: Path, kind: Kind) -> None:
    project = make(tmp_path, kind.template, **kind.answers)
    readme = Page("README.md", (project / "README.md").read_text("utf-8"))
    (block,) = readme.shown("bash")
    assert len(block.splitlines()) == 2
    with only_taken(project):
        for shell in typed(readme):
            for command in commands(shell):
                take(command)
    for name in re.findall(r"^\| `([\w./]+)` \|", readme.text.partition("| file |")[2], re.MULTILINE):
        assert (project / name).exists(), name


@each_kind
def test_the_image_has_stages_and_its_user_is_not_root(tmp_path: Path, kind: Kind) -> None:
    project = make(tmp_path, kind.template, **kind.answers)
    dockerfile = (project / "Dockerfile").read_text("utf-8")
    (service,) = yaml.safe_load((project / "compose.yaml").read_text("utf-8"))["services"].values()
    contexts = service["build"]["additional_contexts"]
    assert contexts == {"app_toolkit": str(CHECKOUT)}
    stages = re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE)
    assert set(re.findall(r"--from=(\w+)", dockerfile)) == {*stages, *contexts}
    assert ("frontend" in stages) == (kind.answers.get("frontend") == "react")
    last = dockerfile.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["app"]
    (recommended,) = page("docs/observability.md").part("Logs").shown("dockerfile")
    said = json.loads(last.rpartition("CMD ")[2])
    assert said == [each for each in json.loads(recommended.removeprefix("CMD ")) if each != "shop.py"]


@each_kind
def test_the_editor_and_the_ci_can_read_their_files(tmp_path: Path, kind: Kind) -> None:
    project = make(tmp_path, kind.template, python_version="3.12", **kind.answers)
    launch = json.loads((project / ".vscode/launch.json").read_text("utf-8"))
    assert [each["module"] for each in launch["configurations"]] == ["app_toolkit.cli", "pytest"]
    jobs = yaml.safe_load((project / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.12", "3.13"]
    assert jobs["test"]["steps"][1]["with"]["python-version"] == "${{ matrix.python }}"
    assert ("frontend" in jobs) == (kind.answers.get("frontend") == "react")


@pytest.mark.parametrize(
    ("app_toolkit", "dependency", "folder"),
    [
        (str(CHECKOUT), f"app-toolkit @ {CHECKOUT.as_uri()}", str(CHECKOUT)),
        ("index", "app-toolkit", None),
        ("git+https://example.org/app_toolkit@v1", "app-toolkit @ git+https://example.org/app_toolkit@v1", None),
        (
            "file:///srv/app_toolkit-1-py3-none-any.whl",
            "app-toolkit @ file:///srv/app_toolkit-1-py3-none-any.whl",
            "/srv",
        ),
    ],
    ids=["checkout", "index", "git", "wheel"],
)
def test_app_toolkit_is_installed_from_the_place_that_was_given(
    tmp_path: Path, app_toolkit: str, dependency: str, folder: str | None
) -> None:
    made = make(tmp_path, "batch-inference", app_toolkit=app_toolkit)
    project = tomllib.loads((made / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dependencies"] == [dependency, "numpy>=2"]
    direct = project["tool"]["hatch"].get("metadata", {}).get("allow-direct-references", False)
    assert direct == (" @ " in dependency)
    dockerfile = (made / "Dockerfile").read_text("utf-8")
    assert ("--no-install-recommends git" in dockerfile) == app_toolkit.startswith("git+")
    assert re.findall(r"^COPY --from=app_toolkit \. (.*)$", dockerfile, re.MULTILINE) == ([folder] if folder else [])
    assert ("additional_contexts" in (made / "compose.yaml").read_text("utf-8")) == bool(folder)
    assert ("app_toolkit is installed from" in (made / "README.md").read_text("utf-8")) == bool(folder)


def test_a_template_that_pip_has_compiled_leaves_no_bytecode_in_a_project(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATES, tmp_path / "templates")
    compileall.compile_dir(tmp_path / "templates/api", quiet=2)
    assert list((tmp_path / "templates/api").rglob("items.*.pyc"))
    project = cookiecutter(str(tmp_path / "templates/api"), no_input=True, output_dir=str(tmp_path))
    assert not list(Path(project).rglob("*.pyc"))


@pytest.mark.parametrize("name", ["local_extensions.py", "hooks/post_gen_project.py"])
def test_shared_files_are_the_same_in_all_templates(name: str) -> None:
    assert len({(TEMPLATES / each / name).read_bytes() for each in NAMES}) == 1


def test_the_list_of_templates_is_complete() -> None:
    listed = json.loads((TEMPLATES / "cookiecutter.json").read_text("utf-8"))["templates"]
    assert sorted(listed) == sorted(path.parent.name for path in TEMPLATES.glob("*/cookiecutter.json")) == list(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_project_installs_from_the_checkout_and_passes_its_tests_there(tmp_path: Path) -> None:
    project = make(tmp_path)
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # The dependencies of app_toolkit itself are there already, and need not come from an index once more.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    for command in (
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{project}[test]"),
        (python, "-P", "-c", f"import app_toolkit; assert app_toolkit.__file__.startswith({str(packages)!r})"),
        (python, "-m", "pytest", "-q"),
    ):
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
