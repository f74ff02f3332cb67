"""`app-toolkit new`: create a project from a template. It needs the extra `new`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app_toolkit.errors import ConfigError

PACKAGE = Path(__file__).parents[1]

FOLDERS = (PACKAGE / "templates", PACKAGE.parent / "templates")
"""Where the templates are: in an installed package, and in a checkout."""

ASKED = ("project_name", "frontend")
"""The questions that are asked. The other answers follow from these, or are set with NAME=VALUE."""


@dataclass(frozen=True, slots=True)
class Template:
    """One template."""

    name: str
    description: str
    folder: Path
    questions: Mapping[str, Any]
    """The default of each answer, or a list of choices."""
    prompts: Mapping[str, Any]


def templates() -> dict[str, Template]:
    """Return the templates by name."""
    folder = next(candidate for candidate in FOLDERS if (candidate / "cookiecutter.json").is_file())
    listed = json.loads((folder / "cookiecutter.json").read_text("utf-8"))["templates"]
    return {name: _read(name, entry["description"], folder / entry["path"]) for name, entry in listed.items()}


def _read(name: str, description: str, folder: Path) -> Template:
    asked = json.loads((folder / "cookiecutter.json").read_text("utf-8"))
    questions = {name: default for name, default in asked.items() if not name.startswith("_")}
    return Template(name, description, folder, questions, asked["__prompts__"])


def create_project(name: str | None, words: Sequence[str], output_dir: Path, *, ask: bool) -> Path:
    """Create a project and return its folder.

    Parameters:
        name: The template. None: ask for it.
        words: Answers, as `NAME=VALUE`.
        output_dir: The parent folder of the project. It is created if it does not exist.
        ask: Ask for the answers in `ASKED` that `words` does not give. False: use their defaults.

    Raises:
        ConfigError: cookiecutter is not installed, no project can be made of these answers, or the folder cannot be
            written. Nothing is created if an answer is refused.
    """
    try:
        from cookiecutter.exceptions import CookiecutterException
        from cookiecutter.main import cookiecutter
    except ImportError as error:
        raise ConfigError("`new` needs the package cookiecutter: pip install 'app-toolkit[new]'") from error
    by_name = templates()
    if name is None:
        if not ask:
            raise ConfigError(f"--no-input needs the name of a template: {', '.join(by_name)}")
        name = _ask_template(by_name)
    template = choose(by_name, name)
    answers = read_answers(template, words)
    if ask:
        answers |= _ask(template, answers)
    try:
        # Without folders of its own, cookiecutter would leave the answers in the home folder.
        with TemporaryDirectory() as scratch:
            made = cookiecutter(
                str(template.folder),
                no_input=True,
                extra_context=answers,
                output_dir=str(output_dir),
                default_config={"replay_dir": scratch, "cookiecutters_dir": scratch},
            )
    except CookiecutterException as error:
        raise ConfigError(str(error).removeprefix("Error: ").removesuffix(".")) from error
    except OSError as error:
        raise ConfigError(f"the project cannot be written: {error}") from error
    return Path(made)


def choose(by_name: Mapping[str, Template], name: str) -> Template:
    """Return the template of this name.

    Raises:
        ConfigError: There is none.
    """
    if name not in by_name:
        raise ConfigError(f"there is no template {name!r}{_nearest(name, by_name)}: choose from {', '.join(by_name)}")
    return by_name[name]


def read_answers(template: Template, words: Sequence[str]) -> dict[str, str]:
    """Return the answers that are given as `NAME=VALUE`.

    Raises:
        ConfigError: A word has another form, a name is no answer of the template, or a value is no choice.
    """
    answers: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is no answer: write NAME=VALUE, such as project_name='My API'")
        if name not in template.questions:
            near, names = _nearest(name, template.questions), ", ".join(template.questions)
            raise ConfigError(f"the template {template.name} has no answer {name!r}{near}: it has {names}")
        choices = template.questions[name]
        if isinstance(choices, list) and value not in choices:
            raise ConfigError(f"{name} = {value!r}: choose from {', '.join(choices)}")
        if "{{" in value or "{%" in value or "{#" in value:
            raise ConfigError(f"{name} = {value!r}: a value must not contain the brackets of a template")
        answers[name] = value
    return answers


def _nearest(name: str, names: Mapping[str, Any]) -> str:
    near = get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _ask_template(by_name: Mapping[str, Template]) -> str:
    from cookiecutter.prompt import read_user_choice

    lines = {template.name: f"{template.name}: {template.description}" for template in by_name.values()}
    return str(read_user_choice("template", list(by_name), {"template": {"__prompt__": "Which template?", **lines}}))


def _ask(template: Template, answers: Mapping[str, str]) -> dict[str, str]:
    from cookiecutter.prompt import read_user_choice, read_user_variable

    asked: dict[str, str] = {}
    for name in ASKED:
        if name in template.questions and name not in answers:
            default = template.questions[name]
            read = read_user_choice if isinstance(default, list) else read_user_variable
            asked[name] = read(name, default, template.prompts)
    return read_answers(template, [f"{name}={value}" for name, value in asked.items()])
