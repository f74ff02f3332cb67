"""Decides which part of a streamed text may be sent, if the text ends at one of several strings."""

from collections.abc import Sequence


class StopStrings:
    """A text that arrives in parts and ends before the first of the stop strings.

    The end of the text is held back as long as it could be the beginning of a stop string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """`strings`: the stop strings. Empty ones are ignored."""
        self.stopped = False
        """Whether the text has ended at a stop string. Further parts are ignored."""
        self._strings = tuple(each for each in strings if each)
        self._held = ""

    def add(self, part: str) -> str:
        """Return the text that is final now."""
        if self.stopped:
            return ""
        text = self._held + part
        found = [at for each in self._strings if (at := text.find(each)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        held = max((_overlap(text, each) for each in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return the text that was held back, because no further part follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest end of the text with which the string begins. It is shorter than the string."""
    longest = min(len(text), len(string) - 1)
    return next((length for length in range(longest, 0, -1) if string.startswith(text[len(text) - length :])), 0)
