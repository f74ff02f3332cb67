"""Decides which text is final, if a text arrives as tokens that may end within a character."""

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
"""What decoders return for bytes that are no character, for example for the first bytes of one."""

MAX_WAITING = 8
"""Tokens that one character may have. A model that writes other bytes must not hold the text back."""


class TokenText:
    """A text that arrives token by token.

    The text of a token depends on the tokens before it, for example whether it begins with a space. So each token is
    decoded together with those that brought the last text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """`decode` returns the text of tokens."""
        self._decode = decode
        self._before: list[int] = []
        self._waiting: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that is final now; empty if the last character is not complete."""
        self._waiting.append(token)
        text = self._new_text()
        if text.endswith(UNFINISHED) and len(self._waiting) < MAX_WAITING:
            return ""
        if text:
            self._before, self._waiting = self._waiting, []
        return text

    def end(self) -> str:
        """Return the text of the tokens that were waiting, because no further token follows."""
        text = self._new_text().rstrip(UNFINISHED)
        self._waiting = []
        return text

    def _new_text(self) -> str:
        before = self._decode(self._before)
        return self._decode(self._before + self._waiting)[len(before) :]
