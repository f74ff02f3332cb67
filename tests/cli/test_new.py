"""`new` asks for a template and its answers, creates a project, and refuses wrong answers."""

import io
import sys
from pathlib import Path

import pytest

from app_toolkit.cli.main import main
from app_toolkit.cli.new import templates


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and a working folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return home


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["new", *arguments])
    assert ended.value.code == 2
    assert list(Path().iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    return line


def new(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new", *arguments])
    assert ended.value.code == 0


def test_it_creates_a_project_of_the_defaults_and_nothing_else(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new("chat", "--no-input")
    assert capsys.readouterr().out == f"Created {Path.cwd()}/my-chat. Its README.md has the next two commands.\n"
    assert Path("my-chat/my_chat/static/index.html").is_file()
    assert list(home.iterdir()) == []


def test_answers_are_given_as_name_and_value() -> None:
    new("chat", "project_name=A = B", "frontend=react", "license=none", "--no-input", "--output-dir", "a/b")
    assert Path("a/b/a-b/frontend/package.json").is_file()
    assert '"A = B"' in Path("a/b/a-b/a_b/app.py").read_text()


def test_without_a_template_it_lists_them_and_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "2", "Talk", "2")
    new()
    out = capsys.readouterr().out
    for each in templates().values():
        assert f"{each.name}: {each.description}" in out
    assert Path("talk/frontend").is_dir()


def test_it_does_not_ask_for_an_answer_that_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "")
    new("chat", "frontend=react")
    assert "front end" not in capsys.readouterr().out
    assert Path("my-chat/frontend").is_dir()


def test_an_unknown_template_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    said = "Error: there is no template 'chatt' (did you mean 'chat'?): choose from api, chat, batch-inference"
    assert refused(capsys, "chatt") == said


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("Zoo", "'Zoo' is no answer: write NAME=VALUE"),
        (
            "front=react",
            "the template chat has no answer 'front' (did you mean 'frontend'?): it has project_name, front",
        ),
        ("_extensions=x", "the template chat has no answer '_extensions'"),
        ("frontend=vue", "frontend = 'vue': choose from built-in, react"),
        ("project_name={{ 1 }}", "project_name = '{{ 1 }}': a value must not contain the brackets of a template"),
        ("project_slug=a/../../b", "project_slug 'a/../../b' is not made of"),
        ("package_name=class", "package_name 'class' is a word or a module of Python itself"),
    ],
)
def test_a_wrong_answer_is_refused_in_one_sentence_and_leaves_no_files(
    capsys: pytest.CaptureFixture[str], word: str, sentence: str
) -> None:
    assert refused(capsys, "chat", word, "--no-input").startswith(f"Error: {sentence}")


def test_without_input_a_template_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no-input needs the name of a template" in refused(capsys, "--no-input")


def test_a_folder_that_exists_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my-api").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["new", "api", "--no-input"])
    assert ended.value.code == 2
    assert "already exists" in capsys.readouterr().err
    assert list(Path("my-api").iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["new", "api", "--no-input", "--output-dir", "file/sub"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("Error: the project cannot be written: ")


def test_without_cookiecutter_it_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cookiecutter.main", None)
    said = "Error: `new` needs the package cookiecutter: pip install 'app-toolkit[new]'"
    assert refused(capsys, "api", "--no-input") == said
