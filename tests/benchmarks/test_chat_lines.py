"""The comparison of chat backends: what a line of code is."""

from benchmarks.chat_lines import code_lines

SOURCE = '''"""A module.

With a docstring."""

import json  # a library

# A comment.
TEXT = """two
lines"""


def read(
    text: str,
) -> str:
    """Return it."""
    return json.loads(text)
'''


def test_blank_lines_comments_and_docstrings_are_no_lines_of_code() -> None:
    assert code_lines(SOURCE) == 7
