"""A YAML file as data with lines: what is text, what is a number, and what is refused."""

from typing import Any

import pytest

from app_toolkit.config.document import MOST_VALUES, from_toml, from_yaml
from app_toolkit.errors import ConfigError


def data(text: str) -> Any:
    document = from_yaml(text, "app.yaml")
    assert not document.mistakes
    return document.data


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("017", 17),
        ("0o17", 15),
        ("0x1f", 31),
        ("-3", -3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.2.3", "1.2.3"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_plain_scalars_follow_yaml_1_2(written: str, read: Any) -> None:
    found = data(f"x: {written}")["x"]
    assert (found, type(found)) == (read, type(read))


def test_each_key_and_item_has_its_line() -> None:
    document = from_yaml("a:\n  b:\n    - 1\n    - c: 2\n", "app.yaml")
    assert document.lines == {(): 1, ("a",): 1, ("a", "b"): 2, ("a", "b", "0"): 3, ("a", "b", "1"): 4} | {
        ("a", "b", "1", "c"): 4
    }
    assert document.at(("a", "b", "1")) == "app.yaml:4"
    assert document.at(("a", "b", "absent", "x")) == "app.yaml:2"


def test_error_names_both_lines_of_a_duplicate_key() -> None:
    document = from_yaml("a:\n  b: 1\n  c: 2\n  b: 3\n  c: 4\n", "app.yaml")
    assert [each.message for each in document.mistakes] == [
        "app.yaml:4: a.b appears twice, first on line 2",
        "app.yaml:5: a.c appears twice, first on line 3",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x:\n  1: a", "app.yaml:2: '1' is a key, and keys are text: put it in quotes"),
        ("x:\n  [a]: b", "app.yaml:2: this is a key, and keys are text: put it in quotes"),
        ("x:\n  ? {a: b}\n  : c", "app.yaml:2: this is a key, and keys are text: put it in quotes"),
        ("a: 1\nx: .inf", "app.yaml:2: '.inf' is no float"),
        ("a: 1\nx: .nan", "app.yaml:2: '.nan' is no float"),
        ("x: !!int many", "app.yaml:1: 'many' is no int"),
        ("x: !secret a", "app.yaml:1: the tag '!secret' is not supported"),
        (
            "x: !!python/object:os.system {}",
            "app.yaml:1: the tag 'tag:yaml.org,2002:python/object:os.system' is not supported",
        ),
        ("x: " + "9" * 5_000, "is no int"),
    ],
)
def test_values_that_json_lacks_are_refused(text: str, sentence: str) -> None:
    [mistake] = from_yaml(text, "app.yaml").mistakes
    assert sentence in mistake.message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: [", "app.yaml:2: expected the node content, but found '<stream end>'"),
        ("a: 1\n---\nb: 2", "app.yaml:2: but found another document"),
        ("a: *x", "app.yaml:1: found undefined alias 'x'"),
        ("a: 1\nb: \x07", "app.yaml:2: special characters are not allowed"),
        ("a: &a\n  b: *a", "app.yaml:1: this value contains an alias of itself"),
        ("[" * 5_000, "app.yaml is nested too deeply"),
    ],
)
def test_invalid_yaml_is_one_sentence_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_yaml(text, "app.yaml")
    assert str(refused.value) == sentence


def test_aliases_are_resolved_and_bounded() -> None:
    assert data("a: &a {x: 1}\nb: *a\n") == {"a": {"x": 1}, "b": {"x": 1}}
    laughs = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for one, other in zip("abcdef", "bcdefg", strict=True):
        laughs += f"{other}: &{other} [{', '.join([f'*{one}'] * 10)}]\n"
    with pytest.raises(ConfigError, match=f"a file may have {MOST_VALUES} values, aliases counted each time"):
        from_yaml(laughs, "app.yaml")


def test_an_empty_file_says_nothing() -> None:
    assert from_yaml("# nothing\n", "app.yaml").data is None


def test_error_names_the_table_of_toml() -> None:
    document = from_toml({"a": {"b": 1}}, "pyproject.toml", "tool.app_toolkit")
    assert document.at(("a", "b")) == "pyproject.toml"
    assert (document.display_name(("a", "b")), document.display_name(())) == (
        "[tool.app_toolkit].a.b",
        "[tool.app_toolkit]",
    )
